"""The result of a check for one fault: measured value, limit with its reason, and advice. And what checks measure with."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import List, NamedTuple

import numpy as np

CLEAR, FAULT, UNTESTED = "clear", "fault", "untested"
AT_LEAST, AT_MOST = "at_least", "at_most"


@dataclass
class Check:
    # For programs; does not change.
    name: str
    # Question that the check answers, and the quantity in `value`.
    question: str
    statistic: str
    # Limit, which counts as a fault itself, and the reason for it.
    limit: float
    reason: str
    # Setting to look at if it is a fault.
    setting: str
    # On which side of the limit the fault is.
    fault_if: str = AT_LEAST
    outcome: str = UNTESTED
    # NaN if it was not measured.
    value: float = math.nan
    # Description of the fault, or why the check could not be made.
    finding: str = ""
    # The only sequences that have the fault; empty if all have it.
    sequences: List[int] = field(default_factory=list)

    @property
    def fault(self) -> bool:
        return self.outcome == FAULT

    def decide(self, measured: float, finding: str) -> Check:
        """A value beyond the limit is a fault; `finding` says which."""
        self.value = float(measured)
        beyond = measured >= self.limit if self.fault_if == AT_LEAST else measured <= self.limit
        self.outcome = FAULT if beyond else CLEAR
        self.finding = finding if beyond else ""
        return self

    def clear(self) -> Check:
        self.outcome = CLEAR
        return self

    def untested(self, why: str) -> Check:
        self.outcome = UNTESTED
        self.finding = why
        return self


class Moments(NamedTuple):
    number: int
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
