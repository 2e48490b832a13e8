"""The checked-in dashboards are what their program writes, and Grafana's types as the SDK has them
hold everything that they say."""

import filecmp
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

REQUIREMENTS = "deploy/grafana/requirements.txt"
# Reads a dashboard by the SDK's types for it, its panels and its queries, and writes what they took.
READ = """
import json, sys
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard
register_default_plugins()
with open(sys.argv[1]) as file:
    read = Dashboard.from_json(json.load(file))
print(json.dumps(read, cls=JSONEncoder, indent=2, sort_keys=True))
"""


class GenerateTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        if sys.version_info < (3, 11):
            raise unittest.SkipTest("grafana-foundation-sdk needs Python 3.11")
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.folder = pathlib.Path(folder.name)
        if cls.run_command(sys.executable, "-m", "venv", cls.folder / "venv").returncode:
            raise unittest.SkipTest("python3 -m venv makes no environment with pip here")
        pip = (cls.folder / "venv/bin/python", "-m", "pip", "-q", "--disable-pip-version-check", "install")
        installed = cls.run_command(*pip, "--no-deps", "--retries=0", "--timeout=20", "-r", REQUIREMENTS)
        if "from versions: none" in installed.stderr:
            raise unittest.SkipTest("pip reaches no index here")
        assert installed.returncode == 0, installed.stderr

    @classmethod
    def run_command(cls, *command):
        kept = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
        environment = {**kept, "PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": os.getcwd()}
        return subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=120, env=environment)

    def python(self, *arguments):
        result = self.run_command(self.folder / "venv/bin/python", *arguments)
        self.assertEqual(result.returncode, 0, result.stderr)
        return result.stdout

    def test_the_program_writes_what_is_checked_in(self):
        written = self.folder / "written"
        written.mkdir()
        self.python("-m", "deploy.grafana.generate", written)
        names = {path.name for path in written.iterdir()}
        self.assertEqual(names, {path.name for path in pathlib.Path("deploy/grafana").glob("*.json")})
        for name in names:
            same = filecmp.cmp(written / name, pathlib.Path("deploy/grafana") / name, shallow=False)
            self.assertTrue(same, f"{name}: run python3 -m deploy.grafana.generate (deploy/README.md)")

    def test_the_types_of_grafana_hold_all_of_it(self):
        for path in pathlib.Path("deploy/grafana").glob("*.json"):
            self.assert_holds(json.loads(self.python("-c", READ, path)), json.loads(path.read_text()), path.name)

    def assert_holds(self, read, written, place):
        """All of `written` is in `read`, which may have defaults besides."""
        if isinstance(written, dict):
            self.assertLessEqual(set(written), set(read), place)
            for key, value in written.items():
                self.assert_holds(read[key], value, f"{place}.{key}")
        elif isinstance(written, list):
            self.assertEqual(len(read), len(written), place)
            for index, value in enumerate(written):
                self.assert_holds(read[index], value, f"{place}[{index}]")
        else:
            self.assertEqual(read, written, place)


if __name__ == "__main__":
    unittest.main()
