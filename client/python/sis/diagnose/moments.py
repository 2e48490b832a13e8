"""Mean and standard error of what is measured one by one."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Moments:
    count: int = 0
    sum: float = 0.0
    squares: float = 0.0

    @staticmethod
    def of(values: np.ndarray) -> Moments:
        """Returns the moments of the values that are not NaN."""
        there = values[~np.isnan(values)].astype(np.float64)
        return Moments(len(there), float(there.sum()), float((there * there).sum()))

    @property
    def mean(self) -> float:
        """NaN without a value."""
        return self.sum / self.count if self.count else math.nan

    @property
    def standard_error(self) -> float:
        """Of the mean; NaN without a value."""
        if not self.count:
            return math.nan
        return math.sqrt(max(0.0, self.squares / self.count - self.mean * self.mean) / self.count)
