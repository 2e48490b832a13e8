"""Optimal budgeted rejection sampling, as Jackpot (arXiv 2602.06107) uses it (docs/math.md, section 8)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Optional

import numpy as np

from sis.arrays import ArrayLike, to_numpy


@dataclass(frozen=True)
class BudgetedRejection:
    """Accept each token with probability min(1, w / lambda), in the recorded set or not. An accepted
    token's modified ratio is max(w, lambda), a rejected one's 0."""

    # In [-64, 64]. budgeted_log_lambda finds it.
    log_lambda: float


def budgeted_log_lambda(log_ratios: ArrayLike, accepted_share: float, mask: Optional[ArrayLike] = None) -> float:
    """The log lambda with which a batch accepts a share of its tokens on average over the draw: the
    largest that solves mean(min(1, w / lambda)) = accepted_share (exactly, but for float64).

    log_ratios: [N], log p(y) - log q(y) of the sampled tokens, -inf allowed: the log-probs that are
    sent less records.sampled_log_probs. Of the whole batch, whatever servers hold it.
    accepted_share: in (0, 1].
    mask: [N], booleans; false where there is no record or the position is not trained on.

    It may lie outside [-64, 64], which the server refuses.

    ValueError if a log-ratio that counts is NaN or +inf, if none counts, or if tokens with w = 0
    make the share impossible.
    """
    if not 0 < accepted_share <= 1:
        raise ValueError(f"accepted_share is {accepted_share}, must be in (0, 1]")
    logs: Any = np.asarray(to_numpy(log_ratios), np.float64)
    if mask is not None:
        logs = logs[np.asarray(to_numpy(mask), bool)]
    if not logs.size or not (logs < math.inf).all():
        raise ValueError("log_ratios: some must count, and none of them be NaN or +inf")
    accepted = accepted_share * logs.size
    logs = np.sort(logs[logs > -math.inf])[::-1]
    if logs.size < accepted:
        raise ValueError(f"accepted_share is {accepted_share}, but only {logs.size} ratios are not 0")
    # With lambda = w[m] the first m tokens are accepted for certain, and the others' w / lambda are
    # added up. That rises with m.
    log_rest = np.logaddexp.accumulate(logs[::-1])[::-1]
    m = int(np.argmax(np.arange(logs.size) + np.exp(log_rest - logs) >= accepted))
    return float(log_rest[m] - math.log(accepted - m))
