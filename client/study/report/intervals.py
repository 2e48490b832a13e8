"""Differences between pairs of runs with the same seed, and how sure they are."""

import dataclasses
import math
from typing import Optional

import numpy as np
from scipy import stats

from client.study.runs.results import ByArm


@dataclasses.dataclass(frozen=True)
class Difference:
    """The mean over pairs, and half of its interval; NaN with fewer than two pairs."""

    mean: float
    half: float
    pairs: int

    @property
    def sign(self) -> int:
        """1 or -1 if the interval lies above or below 0, else 0."""
        if not abs(self.mean) > self.half:
            return 0
        return 1 if self.mean > 0 else -1

    def verdict(self, margin: Optional[float] = None) -> str:
        """What the interval says of the first of the two. With a margin it may be as good as the
        other: the whole interval lies within it on both sides, which are two one-sided tests
        (Schuirmann, 1987), each of them at no more than half of the interval's error."""
        if self.pairs < 2:
            return "of one pair"
        if self.sign:
            return "higher" if self.sign > 0 else "lower"
        if margin is None:
            return "not to be told from chance"
        within = abs(self.mean) + self.half <= margin
        return "as good as" if within else "not to be told apart"

    def text(self) -> str:
        """In thousandths; an asterisk if 0 is outside of the interval."""
        if math.isnan(self.half):
            return f"{1000 * self.mean:+.0f}"
        return f"{1000 * self.mean:+.0f} ± {1000 * self.half:.0f}{' *' if self.sign else ''}"


def of_differences(differences: np.ndarray, confidence: float = 0.95) -> Difference:
    """differences [pairs], at least one. The interval is Student's."""
    pairs = len(differences)
    half = math.nan
    if pairs > 1:
        quantile = stats.t.ppf((1 + confidence) / 2, pairs - 1)
        half = float(quantile * differences.std(ddof=1) / math.sqrt(pairs))
    return Difference(float(differences.mean()), half, pairs)


def paired(
    found: ByArm, cell: str, arm: str, base_cell: str, base_arm: str, field: str = "final_reward",
    confidence: float = 0.95,
) -> Optional[Difference]:  # fmt: skip
    """Cell and arm less base, over the seeds that both have; None without any."""
    runs = found.get(cell, {}).get(arm, {})
    base = found.get(base_cell, {}).get(base_arm, {})
    seeds = sorted(runs.keys() & base.keys())
    if not seeds:
        return None
    differences = [runs[seed].values[field] - base[seed].values[field] for seed in seeds]
    return of_differences(np.array(differences), confidence)
