"""What trainers log of an optimiser step."""

from __future__ import annotations

import math
from typing import Dict

from sis.evaluation import Totals


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
