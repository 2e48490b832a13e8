"""What the paper authors' released code decides, in float32 numpy; written from the description in
docs/algorithms.md.

Where it departs from the paper: nothing asks whether y is among the recorded tokens, log-ratios are
clamped to +-20, an exactly equal log-prob is always accepted, and D is averaged per token with
rejected tokens clipped.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tests.reference.numerics import exp32, flush

Float32s = NDArray[np.float32]


class Decisions(NamedTuple):
    accepted: NDArray[np.bool_]  # [N]
    acceptance_probabilities: Float32s  # [N]
    log_ratios: Float32s  # [N], clamped


def clamp(log_ratios: Float32s) -> Float32s:
    return np.clip(log_ratios, np.float32(-20), np.float32(20))


def decide(
    behaviour: Float32s, current: Float32s, slot_behaviour: Float32s, slot_current: Float32s, words: NDArray[np.uint32]
) -> Decisions:
    """From log-probs of the sampled tokens [N] and at the slots [N, K], -inf where unused by
    behaviour, and uniforms."""
    log_w = clamp(flush(current - behaviour))
    used = np.isfinite(slot_behaviour)
    slots = np.where(used, slot_current - np.where(used, slot_behaviour, np.float32(0)), np.float32(-np.inf))
    log_m = clamp(flush(slots)).max(axis=1)
    a = np.minimum(np.float32(1), exp32(np.minimum(flush(log_w - log_m), np.float32(0))))
    a = np.where(current == behaviour, np.float32(1), a)
    accepted = words.astype(np.float64) < np.floor(a.astype(np.float64) * 2.0**32)
    return Decisions(accepted, a, log_w)


def mean_deviation(decisions: Decisions, low: float, high: float) -> tuple[float, float]:
    """D before and after, per token."""
    log_w = decisions.log_ratios.astype(np.float64)
    after = np.where(decisions.accepted, 0, np.abs(np.clip(log_w, np.log(1 - low), np.log(1 + high))))
    return np.abs(log_w).mean(), after.mean()
