"""tools/image --sisctl builds an image in which sisctl runs, and nothing else can be run."""

import pathlib
import sys
import tempfile
import unittest
import zipfile

import sis
from server.testing.live_server import LiveServer
from tests.deploy.image.built_image import BuiltImageTest

MAX_MEBIBYTES = 200


class SisctlImageTest(BuiltImageTest):
    options = ["--sisctl"]

    @classmethod
    def environment(cls):
        """With a wheel, as far as the image needs one."""
        folder = cls.enterClassContext(tempfile.TemporaryDirectory())
        package = pathlib.Path(sis.__file__).parent
        with zipfile.ZipFile(f"{folder}/sis_ratio-0.0.0-py3-none-any.whl", "w") as wheel:
            for path in package.rglob("*"):
                if path.is_file():
                    wheel.write(path, path.relative_to(package.parent))
        return {"WHEELS": folder}

    def sisctl(self, *words):
        process = self.image_process(*self.configuration["Entrypoint"], *words)
        output, errors = process.communicate(timeout=60)
        if process.returncode == 77:
            self.skipTest(errors.strip())
        self.assertEqual(process.returncode, 0, errors)
        return output

    def test_it_asks_servers(self):
        self.assertIn("Usage: sisctl", self.sisctl("--help"))
        server = self.enterContext(LiveServer())
        with sis.Client(server.address, timeout=20) as client:
            client.create_run("addition", seed=1, vocabulary_size=10, top_k=2)
        self.assertIn("addition", self.sisctl("run", "list", "--server", server.address))

    def test_nothing_else_is_inside(self):
        self.assertEqual(self.configuration["User"], "65532:65532")
        self.assertEqual(
            {path for path in self.programs() if path.startswith(("usr/bin/", "usr/sbin/"))},
            {f"usr/bin/python3.{sys.version_info.minor}"},
        )
        self.assertLess(self.mebibytes(), MAX_MEBIBYTES)
        names = {package["name"] for package in self.bill["packages"]}
        self.assertLessEqual({"sis_ratio-0.0.0-py3-none-any.whl", "python3-grpcio"}, names)


if __name__ == "__main__":
    unittest.main()
