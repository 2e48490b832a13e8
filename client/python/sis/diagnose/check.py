"""What a check for one fault says: what it measured, where the limit lies and why, and what follows."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import List

CLEAR, FAULT, UNTESTED = "clear", "fault", "untested"
AT_LEAST, AT_MOST = "at_least", "at_most"


@dataclass
class Check:
    # For programs; does not change.
    name: str
    # That it answers, and what `value` measures.
    question: str
    statistic: str
    # The limit is a fault itself. Why it lies there.
    limit: float
    reason: str
    # What to look at if it is a fault.
    setting: str
    # On which side of the limit the fault is.
    fault_if: str = AT_LEAST
    outcome: str = UNTESTED
    # NaN if there was no need to measure it.
    value: float = math.nan
    # What the fault is, or why it could not be tested.
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
