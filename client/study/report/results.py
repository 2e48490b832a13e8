"""What came of the runs, read from the file that the program of the study wrote."""

import dataclasses
import pathlib
from typing import Dict, List

import numpy as np

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


@dataclasses.dataclass(frozen=True)
class Run:
    values: Dict[str, float]
    curve: np.ndarray

    @property
    def collapsed(self) -> bool:
        """As the design defines it."""
        return bool(self.curve[-1] < 0.7 * self.curve.max())


# Cell -> arm -> seed.
Results = Dict[str, Dict[str, Dict[int, Run]]]


def read(path: pathlib.Path) -> Results:
    results: Results = {}
    for line in path.read_text().splitlines():
        if line.startswith("#"):
            continue
        cell, arm, seed, *words = line.split()
        curve = np.array([float(point) for point in words[-1].split(",")])
        values = dict(zip(FIELDS, map(float, words[:-1])))
        results.setdefault(cell, {}).setdefault(arm, {})[int(seed)] = Run(values, curve)
    return results


def values(results: Results, cell: str, arm: str, field: str) -> List[float]:
    return [run.values[field] for run in results.get(cell, {}).get(arm, {}).values()]
