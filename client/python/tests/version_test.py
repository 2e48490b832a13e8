"""Every place that says which version this is says the same."""

import pathlib
import re
import tomllib
import unittest

import sis

ROOT = pathlib.Path(__file__).absolute().parents[3]


class VersionTest(unittest.TestCase):
    def test_all_say_the_same(self):
        client, server = (
            tomllib.loads((ROOT / folder / "python/pyproject.toml").read_text())["project"]
            for folder in ("client", "server")
        )
        [wheel_of_server] = client["optional-dependencies"]["server"]
        said = {
            "server/python/pyproject.toml": server["version"],
            "client/python/pyproject.toml": wheel_of_server.partition("sis-ratio-server==")[2],
        }
        for name, pattern in (
            ("CHANGELOG.md", r"(?m)^## (\S+) - \d{4}-\d\d-\d\d$"),
            ("CITATION.cff", r"(?m)^version: (.*)$"),
            ("proto/version.h", r'kVersion\[\] = "(.*)"'),
            ("deploy/compose/compose.yaml", r"(?m)image: sis-ratio-service:(.*)$"),
            ("deploy/helm/sis-ratio-service/Chart.yaml", r'(?m)^appVersion: "(.*)"'),
            ("deploy/helm/sis-ratio-service/Chart.yaml", r"(?m)^version: (.*)"),
            ("deploy/README.md", r"sis-ratio-(?:service|sisctl)[-:](\d[\d.]*\d)"),
        ):
            found = re.findall(pattern, (ROOT / name).read_text())
            said[name, pattern] = " and ".join(sorted(set(found)))
        self.assertEqual(said, dict.fromkeys(said, sis.__version__))


if __name__ == "__main__":
    unittest.main()
