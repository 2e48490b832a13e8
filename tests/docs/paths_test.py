"""Files, folders, headings and Bazel targets that documents name exist; the table of contents lists every page; the
pages stay short; Python snippets import what they use."""

import ast
import builtins
import collections
import os
import pathlib
import re
import unittest
from typing import Iterator, Set, Tuple

# The source tree, to which Bazel's test data links.
ROOT = pathlib.Path(os.path.realpath("README.md")).parent
FOLDERS = "bazel|client|deploy|docs|kernels|proto|server|tests|tools"
# Names of modules in snippets.
MODULES = {"asyncio", "functools", "itertools", "np", "pandas", "sis", "sys", "torch", "vllm"}
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


def not_imported(snippet: str) -> Set[str]:
    """Returns modules and classes that a snippet uses without importing or defining them."""
    tree = compile(snippet, "snippet", "exec", ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    nodes = list(ast.walk(tree))
    used = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
    bound = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    bound |= {node.name for node in nodes if isinstance(node, ast.ClassDef)}
    for node in nodes:
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            bound |= {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
    return {name for name in used - bound if name in MODULES or re.match("[A-Z].", name) and not hasattr(builtins, name)}


def not_in_package(snippet: str) -> Set[str]:
    """Returns names that a snippet imports from `sis`, and that no such module of the package has."""
    tree = compile(snippet, "snippet", "exec", ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    lacking = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and f"{node.module}.".startswith("sis."):
            module = ROOT / "client/python" / str(node.module).replace(".", "/")
            places = (module.with_suffix(".py"), module / "__init__.py", module / "_names.py")
            text = "".join(place.read_text() for place in places if place.is_file())
            lacking |= {alias.name for alias in node.names if not re.search(rf"\b{alias.name}\b", text)}
        elif isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names if f"{alias.name}.".startswith("sis.")]
            lacking |= {name for name in modules if not is_there(f"client/python/{name.replace('.', '/')}")}
    return lacking


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

    def test_snippets_import_what_they_name(self) -> None:
        self.assert_all(
            (not (lacking := not_imported(snippet) | not_in_package(snippet)), f"{page.relative_to(ROOT)}: {sorted(lacking)} in\n{snippet}")
            for page in pages()
            for snippet in re.findall(r"^```python\n(.*?)^```", page.read_text(), flags=re.MULTILINE | re.DOTALL)
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
