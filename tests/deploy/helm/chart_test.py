"""Runs the checks of the chart with Helm's own code, which comes from deploy/helm/requirements.txt."""

import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

FOLDER = pathlib.Path(__file__).parent
REQUIREMENTS = FOLDER.parents[2] / "deploy/helm/requirements.txt"


def run_command(*command):
    return subprocess.run(
        list(map(str, command)),
        capture_output=True,
        text=True,
        timeout=600,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
    )


class ChartTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        if sys.version_info < (3, 11):
            raise unittest.SkipTest("Helm's wheel needs Python 3.11")
        folder = cls.enterClassContext(tempfile.TemporaryDirectory())
        # Debian's grpcio and numpy are the system's.
        made = run_command(sys.executable, "-m", "venv", "--system-site-packages", folder)
        if made.returncode:
            raise unittest.SkipTest("python3 -m venv makes no environment with pip here")
        cls.python = pathlib.Path(folder, "bin/python")
        pip = (cls.python, "-m", "pip", "-q", "--disable-pip-version-check", "install", "--no-deps", "--no-compile")
        installed = run_command(*pip, "--retries=0", "--timeout=20", "-r", REQUIREMENTS)
        if "from versions: none" in installed.stderr:
            raise unittest.SkipTest("pip reaches no index here")
        assert installed.returncode == 0, installed.stderr

    def check(self, program):
        checked = run_command(self.python, program, "-v")
        # Helm tells of every symbolic link. Bazel makes one of each file: thousands of lines, below
        # which nobody, and not Bazel either, would show what failed.
        said = re.sub(r"\S+ \S+ INFO found symbolic link in path.*\n", "", checked.stdout + checked.stderr)
        sys.stderr.write(said)
        self.assertEqual(checked.returncode, 0)

    def test_checks(self):
        for program in sorted(FOLDER.glob("*_checks.py")):
            with self.subTest(program.name):
                self.check(program)


if __name__ == "__main__":
    unittest.main()
