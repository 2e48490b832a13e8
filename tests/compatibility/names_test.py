"""No flag, subcommand or name of Python's that a version had is gone, and those of this version are
listed."""

import pathlib
import unittest
from typing import Callable, Iterable, Set

from tests.compatibility import flags, python_names

FOLDER = pathlib.Path("tests/compatibility")
MAKE = "bazel run //tests/compatibility:make_fixtures"


def parts(lines: Iterable[str]) -> Set[str]:
    """Each name, and each with one of its parameters."""
    named = [line.split() for line in lines]
    with_each = {f"{name}({each})" for name, *rest in named for each in rest}
    return {name for name, *_ in named} | with_each


class NamesTest(unittest.TestCase):
    maxDiff = None

    def check(
        self, file: str, lines: Iterable[str], parts: Callable[[Iterable[str]], Set[str]]
    ) -> None:
        there = parts(lines)
        self.assertGreater(len(there), 20)
        versions = [path.name for path in FOLDER.iterdir() if (path / file).is_file()]
        self.assertIn(python_names.version(), versions, f"run: {MAKE}")
        for version in versions:
            listed = parts((FOLDER / version / file).read_text().splitlines())
            self.assertEqual(sorted(listed - there), [], f"gone since {version}")
            if version == python_names.version():
                self.assertEqual(sorted(there - listed), [], f"not listed; run: {MAKE}")

    def test_flags(self) -> None:
        self.check("flags.txt", flags.lines(), set)

    def test_python_names(self) -> None:
        self.check("python_names.txt", python_names.lines(), parts)

    def test_what_this_version_stores_is_kept(self) -> None:
        kept = FOLDER / python_names.version() / "stored_items.base64"
        self.assertTrue(kept.is_file(), f"run: {MAKE}")


if __name__ == "__main__":
    unittest.main()
