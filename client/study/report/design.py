"""The design of a study, read from the same file as the program that runs it: client/study/cells.txt has the one in
miniature, and says what its lines mean."""

import dataclasses
import pathlib
from typing import Dict, List, Tuple


@dataclasses.dataclass
class Cell:
    name: str
    # As they stand in the file: name -> value.
    settings: Dict[str, str]
    # Arm -> how many seeds it runs on.
    arms: Dict[str, int]


@dataclasses.dataclass
class Design:
    cells: Dict[str, Cell]
    # The fixed comparisons: cell and arm, less cell and arm.
    primary: List[Tuple[str, str, str, str]]
    first_seed: int = 0

    @property
    def runs(self) -> int:
        return sum(seeds for cell in self.cells.values() for seeds in cell.arms.values())


def read(path: pathlib.Path) -> Design:
    """The file must be valid: the program that runs it says what is wrong with one that isn't."""
    sets: Dict[str, List[str]] = {}
    design = Design({}, [])
    for line in path.read_text().splitlines():
        words = line.split("#")[0].split()
        if not words:
            continue
        if words[0] == "first_seed":
            design.first_seed = int(words[1])
        elif words[0] == "arms":
            sets[words[1]] = words[2:]
        elif words[0] == "primary":
            design.primary.append((words[1], words[2], words[3], words[4]))
        elif words[0] in ("cell", "more"):
            settings = dict(word.split("=", 1) for word in words[2:])
            seeds = int(settings.pop("seeds"))
            arms = {arm: seeds for name in settings.pop("arms").split(",") for arm in sets[name]}
            if words[0] == "cell":
                design.cells[words[1]] = Cell(words[1], settings, {})
            design.cells[words[1]].arms.update(arms)
    return design
