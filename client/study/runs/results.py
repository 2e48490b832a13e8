"""What came of the runs of the study in miniature: a file with a line for each."""

import dataclasses
import pathlib
from typing import Dict, List

import numpy as np

from client.study.runs.design import Run

# In the order of a line's words, after cell, arm and seed, and before the curve.
FIELDS = (
    "final_reward",
    "final_greedy",
    "mean_reward",
    "accept_rate",
    "d",
    "d_sis",
    "entropy",
    "zeroed",
    "largest_gradient",
)
# Of these, those that arms are compared by.
OUTCOMES = ("final_reward", "mean_reward", "final_greedy")
# Points of a curve.
POINTS = 12


@dataclasses.dataclass(frozen=True)
class Outcome:
    values: Dict[str, float]
    # Rewards of the rollouts, or means of parts of them.
    curve: np.ndarray
    # What else was measured.
    curves: Dict[str, np.ndarray] = dataclasses.field(default_factory=dict)

    @property
    def collapsed(self) -> bool:
        """As the design defines it."""
        return bool(self.curve[-1] < 0.7 * self.curve.max())


# Cell -> arm -> seed.
ByArm = Dict[str, Dict[str, Dict[int, Outcome]]]


def by_arm(results: Dict[Run, Outcome]) -> ByArm:
    found: ByArm = {}
    for run, outcome in results.items():
        found.setdefault(run.cell, {}).setdefault(run.arm, {})[run.seed] = outcome
    return found


def read(path: pathlib.Path) -> Dict[Run, Outcome]:
    results = {}
    for line in complete_lines(path):
        cell, arm, seed, *words = line.split()
        curve = np.array([float(point) for point in words[-1].split(",")])
        values = dict(zip(FIELDS, map(float, words[:-1])))
        results[Run(cell, arm, int(seed))] = Outcome(values, curve)
    return results


def write(path: pathlib.Path, results: Dict[Run, Outcome]) -> None:
    """In the order of `results`."""
    def line(run: Run, outcome: Outcome) -> str:
        values = " ".join(f"{outcome.values[field]:.5g}" for field in FIELDS)
        return f"{run} {values} {','.join(f'{point:.5g}' for point in outcome.curve)}"

    heading = f"# cell arm seed {' '.join(FIELDS)} curve"
    write_lines(path, [heading, *(line(run, outcome) for run, outcome in results.items())])


def complete_lines(path: pathlib.Path) -> List[str]:
    """Without comments, and without a last line that was cut off. Empty if there is no file."""
    text = path.read_text() if path.exists() else ""
    lines = text[: text.rfind("\n") + 1].splitlines()
    return [line for line in lines if not line.startswith("#")]


def write_lines(path: pathlib.Path, lines: List[str]) -> None:
    """All of them, whole or not at all."""
    part = path.with_suffix(".part")
    part.write_text("".join(line + "\n" for line in lines))
    part.rename(path)
