"""What trainers log of an optimiser step."""

from __future__ import annotations

import math
from typing import Dict, Iterable, List, Sequence

from sis.evaluation import Totals
from sis.records import MissingRange, MissingReason


def step_metrics(totals: Totals) -> Dict[str, float]:
    """By name, per scored position but for `missing`, a share, and `envelope_violations`, a number.
    NaN where there is nothing."""
    seen = totals.scored + totals.missing
    return {
        "accept_rate": totals.accept_rate,
        "expected_accept_rate": totals.mean_expected_acceptance,
        "d": totals.mean_d,
        "d_sis": totals.mean_d_sis,
        "k3": totals.mean_k3,
        "residual_mass": totals.mean_residual_mass,
        "log_envelope": totals.mean_log_envelope,
        "missing": totals.missing / seen if seen else math.nan,
        "envelope_violations": totals.envelope_violations,
    }


class MissingPositions:
    """What a trainer counts, by reason, of positions without a record."""

    def __init__(self) -> None:
        self._counts = dict.fromkeys(MissingReason, 0)

    def add(self, ranges: Iterable[MissingRange]) -> None:
        """Of Evaluation.missing."""
        for part in ranges:
            self._counts[part.reason] += part.length

    def take(self) -> List[int]:
        """Their numbers since the last call, in the order of MissingReason."""
        counts, self._counts = list(self._counts.values()), dict.fromkeys(MissingReason, 0)
        return counts


def missing_shares(counts: Sequence[float], totals: Totals) -> Dict[str, float]:
    """"missing_REASON" for each reason, a share as "missing" is; nothing where there is nothing. What no
    server answered has no reason. counts: in the order of MissingReason."""
    seen = totals.scored + totals.missing
    # An older server's answer may lack the reason.
    by_reason = {reason: count for reason, count in zip(MissingReason, counts) if reason or count}
    return {f"missing_{reason.name.lower()}": count / seen for reason, count in by_reason.items()} if seen else {}
