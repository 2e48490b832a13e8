"""The package passes `mypy --strict`, as [tool.mypy] of pyproject.toml says, and ships its types."""

import os
import pathlib
import subprocess
import tempfile
import unittest

PACKAGE = pathlib.Path(os.path.realpath(__file__)).parents[1]
MYPY = pathlib.Path(os.environ.get("SIS_API", "build/api")) / "bin/mypy"


class TypesTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        if not MYPY.is_file():
            raise unittest.SkipTest("mypy is absent: tools/rl-environment api installs it, and SIS_API names its folder")
        cls.command = [str(MYPY), f"--cache-dir={cls.enterClassContext(tempfile.TemporaryDirectory())}"]

    def check(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run([*self.command, *arguments], cwd=PACKAGE, capture_output=True, text=True)

    def test_mypy(self) -> None:
        done = self.check()
        self.assertEqual((done.returncode, done.stderr), (0, ""), done.stdout)

    def test_a_caller_is_checked(self) -> None:
        with tempfile.NamedTemporaryFile("w", suffix=".py") as caller:
            caller.write(
                "import sis\n"
                'client = sis.Client("localhost:1")\n'
                "run: sis.Run = client.get_run('run').run\n"
                "accepted: str = client.list_steps(run, draws=[1])[1].totals.accepted\n"
                "client.delete_run(7)\n"
            )
            caller.flush()
            # test_mypy shows errors of the package itself.
            done = self.check("--strict", "--ignore-missing-imports", "--follow-imports=silent", caller.name)
        self.assertIn('expression has type "int", variable has type "str"', done.stdout)
        self.assertIn('Argument 1 to "delete_run" of "Client" has incompatible type "int"', done.stdout)
        self.assertIn("Found 2 errors in 1 file", done.stdout)

    def test_the_wheel_says_that_it_has_types(self) -> None:
        self.assertTrue((PACKAGE / "sis/py.typed").is_file())
        self.assertIn('"py.typed"', (PACKAGE / "pyproject.toml").read_text())


if __name__ == "__main__":
    unittest.main()
