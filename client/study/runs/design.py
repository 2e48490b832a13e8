"""The design of a study: its runs, and the comparisons that were fixed beforehand.

client/study/cells.txt has the one in miniature, and says what the lines of such a file mean. Besides
there are `margin X`, `settings NAME=VALUE ...` of all runs, and `in_turn cells`: see Design.
"""

import dataclasses
import pathlib
from typing import Any, Dict, List, NamedTuple, Optional, Tuple


class Run(NamedTuple):
    cell: str
    arm: str
    seed: int

    def __str__(self) -> str:
        return f"{self.cell} {self.arm} {self.seed}"


def plain(run: Run) -> str:
    """As runs are called on a server, and files."""
    return str(run).replace(" ", "-").replace("+", "-")


@dataclasses.dataclass
class Cell:
    name: str
    # As they stand in the file: name -> value.
    settings: Dict[str, str]
    # Arm -> how many seeds it runs on.
    arms: Dict[str, int]


@dataclasses.dataclass
class Design:
    first_seed: int = 0
    # Runs are made cell after cell, and each is finished by itself; else seed after seed, over all cells.
    cells_in_turn: bool = False
    # Of all runs, as they stand in the file: name -> value.
    settings: Dict[str, str] = dataclasses.field(default_factory=dict)
    # Smaller differences of the outcome don't count; None: it tests for no equivalence.
    margin: Optional[float] = None
    # Name -> settings.
    starts: Dict[str, Dict[str, str]] = dataclasses.field(default_factory=dict)
    cells: Dict[str, Cell] = dataclasses.field(default_factory=dict)
    # Cell and arm, less cell and arm.
    primary: List[Tuple[str, str, str, str]] = dataclasses.field(default_factory=list)

    @property
    def seeds(self) -> int:
        return max(seeds for cell in self.cells.values() for seeds in cell.arms.values())

    @property
    def runs(self) -> List[Run]:
        """All of them, in order: what is there at any time is a design with fewer seeds, or fewer cells."""
        runs = [
            Run(cell.name, arm, self.first_seed + number)
            for number in range(self.seeds)
            for cell in self.cells.values()
            for arm, seeds in cell.arms.items()
            if number < seeds
        ]
        if self.cells_in_turn:
            runs.sort(key=lambda run: [*self.cells].index(run.cell))
        return runs

    def finished(self, results: Dict[Run, Any]) -> Dict[Run, Any]:
        """Those of seeds that have all of their runs, of their cell where cells are made in turn, in order."""

        def block(run: Run) -> Tuple[str, int]:
            return (run.cell if self.cells_in_turn else "", run.seed)

        unfinished = {block(run) for run in self.runs if run not in results}
        return {run: results[run] for run in self.runs if block(run) not in unfinished}


def read(path: pathlib.Path) -> Design:
    """ValueError names the line that is wrong. What settings and arms there are, those know who
    make the runs."""
    design = Design()
    sets: Dict[str, List[str]] = {}
    for number, line in enumerate(path.read_text().splitlines(), 1):
        words = line.split("#")[0].split()
        try:
            if words:
                _add(design, sets, *words)
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{path}, line {number}: {error}: {line}") from None
    return design


def _add(design: Design, sets: Dict[str, List[str]], kind: str, name: str, *words: str) -> None:
    if kind == "first_seed":
        design.first_seed = int(name)
    elif kind == "settings":
        design.settings = _settings((name, *words))
    elif kind == "in_turn":
        if name != "cells":
            raise ValueError("only cells may be")
        design.cells_in_turn = True
    elif kind == "margin":
        design.margin = float(name)
    elif kind == "start":
        design.starts[name] = _settings(words)
    elif kind == "arms":
        sets[name] = list(words)
    elif kind in ("cell", "more"):
        settings = _settings(words)
        seeds = int(settings.pop("seeds"))
        arms = {arm: seeds for of in settings.pop("arms").split(",") for arm in sets[of]}
        if kind == "cell":
            design.cells[name] = Cell(name, settings, {})
        elif settings:
            raise ValueError("only arms and seeds may differ")
        design.cells[name].arms.update(arms)
    elif kind == "primary":
        arm, base_cell, base_arm = words
        for of, there in ((name, arm), (base_cell, base_arm)):
            if there not in design.cells[of].arms:
                raise ValueError(f"{there} is no arm of {of}")
        design.primary.append((name, arm, base_cell, base_arm))
    else:
        raise ValueError("there is no such line")


def _settings(words: Tuple[str, ...]) -> Dict[str, str]:
    return dict(word.split("=", 1) for word in words)  # type: ignore[misc]
