"""Differences between pairs of runs with the same seed, and how sure they are."""

import dataclasses
import functools
import math
from typing import Optional

import numpy as np

from client.study.report.results import Results


def _student_cdf_above_zero(x: float, degrees: int) -> float:
    """The probability of [0, x], by Simpson's rule."""
    log_scale = math.lgamma((degrees + 1) / 2) - math.lgamma(degrees / 2) - 0.5 * math.log(degrees * math.pi)
    points = np.linspace(0.0, x, 4001)
    density = np.exp(log_scale - (degrees + 1) / 2 * np.log1p(points * points / degrees))
    weights = np.ones_like(points)
    weights[1:-1:2], weights[2:-1:2] = 4.0, 2.0
    return float((weights * density).sum() * x / 4000 / 3)


@functools.lru_cache(maxsize=None)
def student_quantile(degrees: int, confidence: float) -> float:
    """t of which a variable by Student's law is in [-t, t] with probability `confidence`."""
    low, high = 0.0, 1.0
    while _student_cdf_above_zero(high, degrees) < confidence / 2:
        high *= 2.0
    for _ in range(60):
        middle = (low + high) / 2
        if _student_cdf_above_zero(middle, degrees) < confidence / 2:
            low = middle
        else:
            high = middle
    return high


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

    @property
    def verdict(self) -> str:
        return {1: "higher", -1: "lower", 0: "not to be told from chance"}[self.sign]

    def text(self) -> str:
        """In thousandths; an asterisk if 0 is outside of the interval."""
        if math.isnan(self.half):
            return f"{1000 * self.mean:+.0f}"
        return f"{1000 * self.mean:+.0f} ± {1000 * self.half:.0f}{' *' if self.sign else ''}"


def of_differences(differences: np.ndarray, confidence: float = 0.95) -> Difference:
    """differences [pairs], at least one."""
    pairs = len(differences)
    if pairs < 2:
        return Difference(float(differences.mean()), math.nan, pairs)
    error = differences.std(ddof=1) / math.sqrt(pairs)
    half = student_quantile(pairs - 1, confidence) * error
    return Difference(float(differences.mean()), float(half), pairs)


def paired(
    results: Results, cell: str, arm: str, base_cell: str, base_arm: str, field: str = "final_reward",
    confidence: float = 0.95,
) -> Optional[Difference]:
    """Cell and arm less base, over the seeds that both have; None without any."""
    runs = results.get(cell, {}).get(arm, {})
    base = results.get(base_cell, {}).get(base_arm, {})
    seeds = sorted(set(runs) & set(base))
    if not seeds:
        return None
    differences = [runs[seed].values[field] - base[seed].values[field] for seed in seeds]
    return of_differences(np.array(differences), confidence)
