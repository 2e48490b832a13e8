"""Every file, folder and Bazel target that the documentation names is there."""

import os
import pathlib
import re
import unittest
from typing import Iterator, Tuple

# The source tree: what Bazel gives a test is a link to it.
ROOT = pathlib.Path(os.path.realpath("README.md")).parent
FOLDERS = "bazel|client|deploy|docs|kernels|proto|server|tests|tools"
SOURCES = (".bzl", ".cc", ".cu", ".h", ".proto", ".py", ".sh")


def files() -> Iterator[pathlib.Path]:
    for folder, subfolders, names in os.walk(ROOT):
        subfolders[:] = [name for name in subfolders if not name.startswith((".", "bazel-", "build"))]
        yield from (pathlib.Path(folder, name) for name in names)


def pages() -> Iterator[pathlib.Path]:
    return (path for path in files() if path.suffix == ".md")


def is_there(name: str) -> bool:
    """A path from the root, which may contain `*`, or lack an ending that only sources have."""
    stem = name.rstrip("/")
    return any(next(ROOT.glob(stem + ending), None) is not None for ending in ("", *SOURCES))


def has_target(package: str, target: str) -> bool:
    build = ROOT / package / "BUILD"
    return build.is_file() and (not target or f'"{target}"' in build.read_text())


class PathsTest(unittest.TestCase):
    def assert_all(self, found: Iterator[Tuple[bool, str]]) -> None:
        checked = list(found)
        self.assertTrue(checked)
        self.assertEqual([text for there, text in checked if not there], [])

    def test_paths_in_code_spans(self) -> None:
        self.assert_all(
            (is_there(name), f"{page.relative_to(ROOT)}: {name}")
            for page in pages()
            for name in re.findall(rf"`((?:{FOLDERS})/[\w./*-]*)`", page.read_text())
        )

    def test_file_names_in_code_spans(self) -> None:
        names = {path.name for path in files()}
        self.assert_all(
            (name in names, f"{page.relative_to(ROOT)}: {name}")
            for page in pages()
            for name in re.findall(r"`([\w-]+\.(?:bzl|cc|cu|dot|h|md|proto|py|sh))`", page.read_text())
        )

    def test_includes(self) -> None:
        self.assert_all(
            ((ROOT / name).is_file(), f"{page.relative_to(ROOT)}: {name}")
            for page in pages()
            for name in re.findall(r'#include "([^"]+)"', page.read_text())
        )

    def test_links(self) -> None:
        self.assert_all(
            ((page.parent / link).exists(), f"{page.relative_to(ROOT)}: {link}")
            for page in pages()
            for link in re.findall(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)", page.read_text())
        )

    def test_targets(self) -> None:
        self.assert_all(
            (has_target(package, target), f"{page.relative_to(ROOT)}: //{package}:{target}")
            for page in pages()
            for package, target in re.findall(rf"(?<![\w:])//((?:{FOLDERS})[\w/]*)(?::(\w+))?", page.read_text())
        )

    def test_pages_that_sources_name(self) -> None:
        self.assert_all(
            ((ROOT / name).is_file(), f"{path.relative_to(ROOT)}: {name}")
            for path in files()
            if path.suffix in SOURCES
            for name in re.findall(r"\bdocs/[\w/-]+\.md\b", path.read_text())
        )


if __name__ == "__main__":
    unittest.main()
