"""Runs the checks of the chart with Helm's own code, which comes from requirements.txt."""

import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

FOLDER = pathlib.Path(__file__).parent


class ChartTest(unittest.TestCase):
    def test_the_chart(self):
        if sys.version_info < (3, 11):
            self.skipTest("Helm's wheel needs Python 3.11")
        with tempfile.TemporaryDirectory() as folder:
            # Debian's grpcio and numpy are the system's.
            made = self.run_command(sys.executable, "-m", "venv", "--system-site-packages", folder)
            if made.returncode:
                self.skipTest("python3 -m venv makes no environment with pip here")
            python = pathlib.Path(folder, "bin/python")
            pip = (python, "-m", "pip", "-q", "--disable-pip-version-check", "install", "--no-deps")
            requirements = ("--retries=0", "--timeout=20", "-r", "deploy/helm/requirements.txt")
            installed = self.run_command(*pip, *requirements)
            if "from versions: none" in installed.stderr:
                self.skipTest("pip reaches no index here")
            self.assertEqual(installed.returncode, 0, installed.stderr)
            checked = self.run_command(python, FOLDER / "chart_checks.py", "-v")
            sys.stderr.write(checked.stdout + checked.stderr)
            self.assertEqual(checked.returncode, 0)

    def run_command(self, *command):
        return subprocess.run(
            list(map(str, command)),
            capture_output=True,
            text=True,
            timeout=600,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PYTHONDONTWRITEBYTECODE": "1"},
        )


if __name__ == "__main__":
    unittest.main()
