"""Which runs there are, and in which order: seed by seed, so that whenever it is cut off all cells
and arms have the same number of runs, but for one seed."""

import hashlib
import pathlib
from typing import Container, List, NamedTuple

from client.study.report.design import Design

_WORKSPACE = pathlib.Path(__file__).parents[3]
# What a run's numbers depend on, beside the packages.
_SOURCES = (
    *(
        f"client/study/language_model/{name}"
        for name in (
            "arms.py", "design.txt", "engine.py", "evaluation.py", "int4.py", "settings.py", "task.py", "training.py",
            "weights.py",
        )
    ),
    *(f"client/python/sis/trl/{name}.py" for name in ("capture", "config", "rollouts", "trainer")),
)  # fmt: skip


class Run(NamedTuple):
    cell: str
    arm: str
    seed: int

    def __str__(self) -> str:
        return f"{self.cell} {self.arm} {self.seed}"


def runs(design: Design) -> List[Run]:
    most = max(seeds for cell in design.cells.values() for seeds in cell.arms.values())
    return [
        Run(cell.name, arm, design.first_seed + number)
        for number in range(most)
        for cell in design.cells.values()
        for arm, seeds in cell.arms.items()
        if number < seeds
    ]


def missing(design: Design, there: Container[Run]) -> List[Run]:
    return [run for run in runs(design) if run not in there]


def sources() -> str:
    """A digest of what made a result: results of other sources are not of the same study."""
    digest = hashlib.sha256()
    for path in _SOURCES:
        digest.update((_WORKSPACE / path).read_bytes())
    return digest.hexdigest()[:16]
