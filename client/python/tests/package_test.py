"""The package as pip installs it, with the oldest and newest grpcio and protobuf that it allows."""

import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

TESTS = pathlib.Path(__file__).parent
ROOT = TESTS.parents[2]
# Tests that need only the package: their server runs in the process of the test.
RUN = ("client_test.py", "append_test.py", "replicas_client_test.py")
# Prints the lower bounds of the package's requirements.
OLDEST = """
from importlib import metadata
from pip._vendor.packaging.requirements import Requirement
for requirement in map(Requirement, metadata.requires("sis-ratio")):
    if requirement.name in ("grpcio", "protobuf") and requirement.marker.evaluate():
        (lower,) = (s.version for s in requirement.specifier if s.operator == ">=")
        print(requirement.name, lower, sep="==")
"""
NEWEST = ["grpcio", "protobuf", "numpy"]
VERSION = "from importlib import metadata; import sis; assert sis.__version__ == metadata.version('sis-ratio')"
# With the libraries in the wheel; without them it warns.
KERNELS = "from sis import _blocks; assert _blocks.crc32c(0, b'123456789') == 0xE3069283"
# All that is imported where neither an engine nor PyTorch is installed.
ENGINES = (
    "import sis.engines.llama_cpp, sis.engines.transformers, sis.engines.vllm, "
    "sis.integrations.verl._rollout"
)


def run(*command, seconds=280, **environment):
    kept = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    return subprocess.run(
        list(map(str, command)),
        capture_output=True,
        text=True,
        timeout=seconds,
        env={**kept, "PYTHONDONTWRITEBYTECODE": "1", **environment},
    )


class PackageTest(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        if run(sys.executable, "-m", "venv", self.folder / "clean").returncode:
            self.skipTest("python3 -m venv makes no environment with pip here")
        probe = ("download", "-q", "--no-deps", "--retries=0", "--timeout=20", "setuptools<81")
        if self.pip(*probe, "-d", self.folder / "probe").returncode:
            self.skipTest("pip reaches no index here")

    def python(self, *words, **environment):
        return run(self.folder / "clean/bin/python", *words, **environment)

    def pip(self, *words):
        return self.python("-m", "pip", *words)

    def done(self, result):
        self.assertEqual(result.returncode, 0, (result.stdout + result.stderr)[-4000:])
        return result.stdout

    def wheel(self):
        """Built as a release is."""
        wheels = self.folder / "wheels"
        self.done(run(ROOT / "tools/wheels", "client", wheels, PYTHON=sys.executable, BINARIES=str(ROOT)))
        (wheel,) = wheels.glob("*.whl")
        return wheel

    def test_the_oldest_and_the_newest_runtime(self):
        wheel = self.wheel()
        self.done(self.pip("install", "-q", "--no-deps", wheel))
        oldest = self.done(self.python("-c", OLDEST)).split()
        self.assertEqual(len(oldest), 2)
        if sys.version_info < (3, 12):
            # Debian 12 has 1.51.1 and 4.21.12.
            self.assertEqual(oldest, ["grpcio==1.49.1", "protobuf==4.21.6"])
        # Between them what the engines of some years ago pin: each major version of protobuf once.
        runtimes = {
            "oldest": oldest,
            "protobuf 4": ["protobuf==4.25.*"],
            "protobuf 5": ["protobuf==5.*"],
            "protobuf 6": ["protobuf==6.*"],
            "newest": [],
        }
        for name, pinned in runtimes.items():
            with self.subTest(name):
                self.done(self.pip("install", "-q", "--upgrade", "--only-binary=:all:", *(pinned or NEWEST), wheel))
                self.done(self.pip("check"))
                where = self.done(self.python("-c", "import sis; print(sis.__file__)"))
                self.assertTrue(where.startswith(str(self.folder)), where)
                self.done(self.python("-c", VERSION))
                self.done(self.python("-W", "error", "-c", KERNELS))
                # The engines' adapters need no engine before they are given its objects.
                self.done(self.python("-c", ENGINES))
                for test in RUN if name in ("oldest", "newest") else ():
                    self.done(self.python(TESTS / test, PYTHONPATH=str(TESTS)))

    def test_the_command_line_tool(self):
        self.done(self.pip("install", "-q", self.wheel()))
        sisctl = self.folder / "clean/bin/sisctl"
        self.assertEqual(run(sisctl, "--help").stderr, "sisctl needs typer: pip install 'sis-ratio[cli]'\n")
        self.done(self.pip("install", "-q", "sis-ratio[cli]"))
        self.assertIn("sequence", self.done(run(sisctl, "--help")))
        refused = run(sisctl, "run", "list", "--server=127.0.0.1:1")
        self.assertEqual(refused.returncode, 1)
        self.assertIn("UNAVAILABLE", refused.stderr)


if __name__ == "__main__":
    unittest.main(verbosity=2)
