"""Files, folders, headings and Bazel targets that documents name exist; the table of contents lists every page; the
pages stay short; a test runs each Python snippet."""

import collections
import os
import pathlib
import re
import unittest
from typing import Iterator, Set, Tuple

from client.python.tests import snippets

# The source tree, to which Bazel's test data links.
ROOT = pathlib.Path(os.path.realpath("README.md")).parent
FOLDERS = "bazel|client|deploy|docs|kernels|proto|server|tests|tools"
SOURCES = (".bzl", ".cc", ".cu", ".h", ".proto", ".py", ".sh")


def files() -> Iterator[pathlib.Path]:
    for folder, subfolders, names in os.walk(ROOT):
        subfolders[:] = [name for name in subfolders if not name.startswith((".", "bazel-", "build"))]
        yield from (pathlib.Path(folder, name) for name in names)


def pages() -> Iterator[pathlib.Path]:
    return (path for path in files() if path.suffix == ".md")


def links(page: pathlib.Path) -> Iterator[Tuple[pathlib.Path, str]]:
    """Yields the target of each relative link of the page, and its anchor, which may be empty."""
    for name, anchor in re.findall(r"\]\((?!\))([^)#:\s]*)(?:#([^)\s]*))?\)", page.read_text()):
        yield (page.parent / name if name else page), anchor


def anchors(page: pathlib.Path) -> Set[str]:
    """Returns the anchors that GitHub gives the headings of a page."""
    text = re.sub(r"^(```|~~~).*?^\1", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    times: collections.Counter[str] = collections.Counter()
    names = set()
    for heading in re.findall(r"^#{1,6} +(.*\S)", text, flags=re.MULTILINE):
        shown = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading)
        name = re.sub(r"[^\w\- ]", "", shown.lower()).replace(" ", "-")
        names.add(f"{name}-{times[name]}" if times[name] else name)
        times[name] += 1
    return names


def is_there(name: str) -> bool:
    """Returns true if the path from the root exists. It may contain `*`, and omit the ending of a source."""
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

    def test_each_python_snippet_is_run_by_a_test(self) -> None:
        tests = "".join(path.read_text() for path in (ROOT / "client/python/tests").rglob("*.py"))
        self.assert_all(
            (bool(re.search(rf'(run|printed)\("{page}", {number}\b', tests)), f"{page}.md, snippet {number}")
            for page in snippets.PAGES
            for number in range(1, len(snippets.of_page(page, "python")) + 1)
        )

    def test_links(self) -> None:
        self.assert_all(
            (target.exists(), f"{page.relative_to(ROOT)}: {os.path.relpath(target, page.parent)}")
            for page in pages()
            for target, _ in links(page)
        )

    def test_anchors(self) -> None:
        self.assert_all(
            (
                target.is_file() and anchor in anchors(target),
                f"{page.relative_to(ROOT)}: {os.path.relpath(target, page.parent)}#{anchor}",
            )
            for page in pages()
            for target, anchor in links(page)
            if anchor
        )

    def test_the_table_of_contents_has_every_page(self) -> None:
        contents = ROOT / "docs/README.md"
        listed = {target.resolve() for target, _ in links(contents)}
        self.assert_all(
            # A folder, such as runbooks, stands for its pages.
            (page in listed or page.parent in listed, f"{page.relative_to(ROOT)} is not in docs/README.md")
            for page in pages()
            if ROOT / "docs" in page.parents and page != contents
        )

    def test_the_pages_are_short_enough_to_be_read(self) -> None:
        words = sum(len(page.read_text().split()) for page in (ROOT / "docs").glob("*.md"))
        self.assertLessEqual(words, 18_900, "words in docs/*.md: say each fact on one page")

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
