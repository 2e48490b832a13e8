"""docs/architecture.dot shows the dependencies of the build, without cycles."""

import pathlib
import re
import unittest
from typing import Dict, Set, Tuple

DOT = pathlib.Path("docs/architecture.dot").read_text()
BUILD_GRAPH = pathlib.Path("tests/docs/build_graph").read_text()

Arrows = Set[Tuple[str, str]]  # (user, used)

MODULES = re.findall(r'"([^"]+)" \[label="[^"]+"\]', DOT)
DRAWN: Arrows = {
    (user, used)
    for user, several in re.findall(r'"([^"]+)" -> ([^;]+);', DOT)
    for used in re.findall(r'"([^"]+)"', several)
}


def module_of(package: str) -> str:
    """Returns the innermost drawn module that contains the package, or the package if none does."""
    around = [module for module in MODULES if f"{package}/".startswith(f"{module}/")]
    return max(around, key=len, default=package)


def built() -> Arrows:
    packages = re.findall(r'"//([^":]*):[^"]*" -> "//([^":]*):', BUILD_GRAPH)
    arrows = {(module_of(user), module_of(used)) for user, used in packages}
    return {(user, used) for user, used in arrows if user != used}


def closure(arrows: Arrows) -> Arrows:
    """Returns all pairs of modules with a path from the first to the second."""
    used_by: Dict[str, Set[str]] = {}
    for user, used in arrows:
        used_by.setdefault(user, set()).add(used)

    def reach(module: str, reached: Set[str]) -> Set[str]:
        for used in used_by.get(module, set()) - reached:
            reached.add(used)
            reach(used, reached)
        return reached

    return {(user, used) for user in used_by for used in reach(user, set())}


class ArchitectureTest(unittest.TestCase):
    maxDiff = None

    def test_the_arrows_are_those_of_the_build(self) -> None:
        self.assertGreater(len(built()), 10)
        self.assertEqual(sorted(built() - closure(DRAWN)), [], "not drawn")
        self.assertEqual(sorted(DRAWN - closure(built())), [], "drawn, but not in the BUILD files")
        self.assertEqual(sorted({module for arrow in built() for module in arrow}), sorted(MODULES))

    def test_there_is_no_cycle(self) -> None:
        self.assertEqual([module for module, used in closure(DRAWN) if module == used], [])

    def test_no_arrow_follows_from_others(self) -> None:
        self.assertEqual([arrow for arrow in sorted(DRAWN) if arrow in closure(DRAWN - {arrow})], [])


if __name__ == "__main__":
    unittest.main()
