"""Workflows, templates and CITATION.cff are well-formed, and workflows call tools that exist."""

import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

import yaml

# The source tree: what Bazel gives a test is a link to it.
ROOT = pathlib.Path(os.path.realpath("README.md")).parent
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
SCHEMAS = {
    "github-workflows": WORKFLOWS,
    "github-issue-forms": [
        path for path in (ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml") if path.stem != "config"
    ],
    "github-issue-config": [ROOT / ".github/ISSUE_TEMPLATE/config.yml"],
    "citation-file-format": [ROOT / "CITATION.cff"],
}


def run_command(*command):
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    return subprocess.run(
        list(map(str, command)), capture_output=True, text=True, timeout=240, env=environment
    )


class WorkflowsTest(unittest.TestCase):
    def setUp(self):
        self.workflows = {path.name: yaml.safe_load(path.read_text()) for path in WORKFLOWS}
        self.jobs = [job for each in self.workflows.values() for job in each["jobs"].values()]
        self.steps = [step for job in self.jobs for step in job["steps"]]

    def test_tools_that_they_call_are_there(self):
        scripts = "\n".join(step["run"] for step in self.steps if "run" in step)
        called = set(re.findall(r"(?m)^tools/\S+", scripts))
        self.assertEqual(called, {"tools/test", "tools/release"})
        for tool in called:
            self.assertTrue(os.access(ROOT / tool, os.X_OK), tool)

    def test_actions_are_pinned_to_a_major_version(self):
        used = [step["uses"] for step in self.steps if "uses" in step]
        self.assertTrue(used)
        for action in used:
            self.assertRegex(action, r"^[\w-]+/[\w-]+@v\d+$")

    def test_none_may_do_more_than_it_must(self):
        for name, workflow in self.workflows.items():
            self.assertEqual(workflow["permissions"], {"contents": "read"}, name)
            self.assertIn("concurrency", workflow, name)
        rights = [job["permissions"] for job in self.jobs if "permissions" in job]
        self.assertEqual(rights, [{"contents": "write"}])
        for job in self.jobs:
            self.assertIn("timeout-minutes", job)


class CheckersTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = cls.enterClassContext(tempfile.TemporaryDirectory())
        cls.bin = pathlib.Path(folder, "bin")
        if run_command(sys.executable, "-m", "venv", folder).returncode:
            raise unittest.SkipTest("python3 -m venv makes no environment with pip here")
        pip = (cls.bin / "python", "-m", "pip", "-q", "--disable-pip-version-check", "install")
        wanted = ("--no-deps", "--retries=0", "--timeout=20", "-r", "tests/github/requirements.txt")
        installed = run_command(*pip, *wanted)
        if "from versions: none" in installed.stderr:
            raise unittest.SkipTest("pip reaches no index here")
        assert installed.returncode == 0, installed.stderr

    def check(self, *command):
        checked = run_command(*command)
        self.assertEqual(checked.returncode, 0, checked.stdout + checked.stderr)

    def test_actionlint(self):
        self.check(self.bin / "actionlint", *WORKFLOWS)

    def test_schemas(self):
        for schema, paths in SCHEMAS.items():
            with self.subTest(schema):
                self.assertTrue(paths)
                schema = ("--builtin-schema", f"vendor.{schema}")
                self.check(self.bin / "check-jsonschema", *schema, *paths)


if __name__ == "__main__":
    unittest.main()
