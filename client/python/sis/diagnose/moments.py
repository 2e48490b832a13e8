"""Mean and standard error of measurements."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np


class Moments(NamedTuple):
    count: int
    # Both NaN without a value; the error is the mean's.
    mean: float
    standard_error: float

    @staticmethod
    def of(values: np.ndarray) -> Moments:
        """Returns the moments of the values that are not NaN."""
        there = values[~np.isnan(values)].astype(np.float64)
        count = len(there)
        if not count:
            return Moments(0, math.nan, math.nan)
        mean = float(there.sum()) / count
        variance = float((there * there).sum()) / count - mean * mean
        return Moments(count, mean, math.sqrt(max(0.0, variance) / count))
