"""docs/architecture.dot shows the build graph, and docs/architecture.svg is its picture, with all
arrows pointing down."""

import pathlib
import re
import unittest
from typing import Dict, Set, Tuple
from xml.etree import ElementTree

DOT = pathlib.Path("docs/architecture.dot").read_text()
SVG = ElementTree.parse("docs/architecture.svg")
BUILD_GRAPH = pathlib.Path("tests/docs/build_graph").read_text()
DRAW = "dot -Tsvg docs/architecture.dot -o docs/architecture.svg"

Arrows = Set[Tuple[str, str]]  # from a room to one that it uses

# Name -> what the picture says of it.
ROOMS = dict(re.findall(r'"([^"]+)" \[label="([^"]+)"\]', DOT))
DRAWN: Arrows = {
    (user, used)
    for user, several in re.findall(r'"([^"]+)" -> ([^;]+);', DOT)
    for used in re.findall(r'"([^"]+)"', several)
}


def room_of(package: str) -> str:
    """The room that a package is, or that it is a folder of; the package itself if the picture has
    none."""
    rooms = [room for room in ROOMS if f"{package}/".startswith(f"{room}/")]
    return max(rooms, key=len, default=package)


def built() -> Arrows:
    packages = re.findall(r'"//([^":]*):[^"]*" -> "//([^":]*):', BUILD_GRAPH)
    arrows = {(room_of(user), room_of(used)) for user, used in packages}
    return {(user, used) for user, used in arrows if user != used}


def closure(arrows: Arrows) -> Arrows:
    """All pairs of rooms with a way along arrows from the first to the second."""
    used_by: Dict[str, Set[str]] = {}
    for user, used in arrows:
        used_by.setdefault(user, set()).add(used)

    def reach(room: str, reached: Set[str]) -> Set[str]:
        for used in used_by.get(room, set()) - reached:
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
        self.assertEqual(sorted({room for arrow in built() for room in arrow}), sorted(ROOMS))

    def test_no_arrow_follows_from_others(self) -> None:
        self.assertEqual([arrow for arrow in sorted(DRAWN) if arrow in closure(DRAWN - {arrow})], [])

    def test_the_picture_is_that_of_the_source(self) -> None:
        # Not byte by byte: the version of Graphviz and the fonts of the machine move everything a
        # little.
        labels, heights, arrows = {}, {}, set()
        for group in SVG.iterfind(".//{*}g"):
            title = group.findtext("{*}title", "")
            texts = group.findall("{*}text")
            if group.get("class") == "node":
                labels[title] = r"\n".join(text.text or "" for text in texts)
                heights[title] = -float(texts[0].get("y", "nan"))
            elif group.get("class") == "edge":
                arrows.add(tuple(title.split("->")))
        self.assertEqual(labels, ROOMS, f"run: {DRAW}")
        self.assertEqual(arrows, DRAWN, f"run: {DRAW}")
        self.assertEqual([arrow for arrow in sorted(arrows) if heights[arrow[0]] <= heights[arrow[1]]], [], "upwards")


if __name__ == "__main__":
    unittest.main()
