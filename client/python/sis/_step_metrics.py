"""Metrics of an optimiser step, for trainers' logs."""

from __future__ import annotations

import collections
from typing import Counter, Dict, Iterable, Mapping

from sis._evaluation import Totals
from sis._records import MissingRange, MissingReason


def step_metrics(totals: Totals) -> Dict[str, float]:
    """Returns metrics by name, per scored position. Exceptions: `missing` is a share, `envelope_violations` a number.
    NaN without positions."""
    return {
        "accept_rate": totals.accept_rate,
        "expected_accept_rate": totals.mean_expected_acceptance,
        "d": totals.mean_d,
        "d_sis": totals.mean_d_sis,
        "k3": totals.mean_k3,
        "residual_mass": totals.mean_residual_mass,
        "log_envelope": totals.mean_log_envelope,
        "missing": totals.missing_share,
        "envelope_violations": totals.envelope_violations,
    }


def missing_counts(ranges: Iterable[MissingRange]) -> Dict[MissingReason, int]:
    """Positions without a record, by reason, of Evaluation.missing."""
    counts: Counter[MissingReason] = collections.Counter()
    for part in ranges:
        counts[part.reason] += part.length
    return counts


def missing_shares(counts: Mapping[MissingReason, float], totals: Totals) -> Dict[str, float]:
    """Returns "missing_REASON" for each reason, a share as "missing" is; nothing where there is nothing. Positions of
    unreachable servers have no reason."""
    reasons = [reason for reason in MissingReason if reason and totals.seen]
    return {f"missing_{reason.name.lower()}": counts.get(reason, 0) / totals.seen for reason in reasons}
