"""Questions about a comparison, and the checks that answer them."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Callable, List, NamedTuple, Union

import numpy as np

if TYPE_CHECKING:
    from sis.diagnose.compared import Compared

CLEAR, FAULT, UNTESTED = "clear", "fault", "untested"
AT_LEAST, AT_MOST = "at_least", "at_most"


@dataclass
class Check:
    # For programs; does not change.
    name: str
    # Question that the check answers, and the quantity in `value`.
    question: str
    statistic: str
    # Limit, which counts as a fault itself.
    limit: float
    # Setting to look at if it is a fault.
    setting: str
    # On which side of the limit the fault is.
    fault_if: str
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


class Measured(NamedTuple):
    value: float
    # Description of the fault if `value` is beyond the limit; empty if such a value is harmless.
    finding: str
    sequences: List[int] = []


# None: clear, without a value. A text: the reason why nothing could be measured.
Answer = Union[Measured, str, None]
# Called with a comparison, and, if another fault makes the answer meaningless, with the reason.
Question = Callable[..., Check]


def question(
    text: str, statistic: str, limit: float, setting: str, fault_if: str = AT_LEAST
) -> Callable[[Callable[[Compared], Answer]], Question]:
    """Makes a question of a function check_NAME, which measures the answer."""

    def with_answer(measure: Callable[[Compared], Answer]) -> Question:
        def ask(compared: Compared, meaningless: str = "") -> Check:
            check = Check(measure.__name__[len("check_") :], text, statistic, limit, setting, fault_if)
            answer = meaningless or measure(compared)
            if isinstance(answer, str):
                check.finding = answer
                return check
            check.outcome = CLEAR
            if answer is not None:
                check.value = float(answer.value)
                beyond = answer.value >= limit if fault_if == AT_LEAST else answer.value <= limit
                if beyond and answer.finding:
                    check.outcome, check.finding, check.sequences = FAULT, answer.finding, answer.sequences
            return check

        return ask

    return with_answer


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
