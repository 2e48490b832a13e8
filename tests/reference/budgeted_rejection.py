"""Budgeted rejection in float32 numpy, written from docs/numerics.md, section 12."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tests.reference.numerics import Bools, Float32s, exp32, flush, used_slots

_ONE = np.float32(1)
_MINUS_INFINITY = np.float32(-np.inf)


class Decisions(NamedTuple):
    accepted: Bools  # [N]
    acceptance_probabilities: Float32s  # [N]
    log_ratios: Float32s  # [N], of the modified ratio
    ratios: Float32s  # [N]


def decide(log_ratios: Float32s, log_lambda: float, words: NDArray[np.uint32]) -> Decisions:
    """From lw and the uniforms, [N]."""
    bound = np.float32(log_lambda)
    excess = flush(log_ratios - bound)
    a = np.where(excess >= 0, _ONE, exp32(np.minimum(excess, np.float32(0))))
    accepted = words.astype(np.float64) < np.floor(a.astype(np.float64) * 2.0**32)
    modified = np.where(accepted, flush(np.maximum(log_ratios, bound)), _MINUS_INFINITY)
    return Decisions(accepted, a, modified, exp32(modified))


def normalizers(behaviour: Float32s, current: Float32s, log_lambda: float) -> Float32s:
    """[N], from the log-probs at the first k slots, [N, k]; -inf of behaviour where unused."""
    used = used_slots(behaviour)
    total = np.zeros(len(used), np.float32)
    for slot in range(used.shape[1]):
        here = used[:, slot]
        least = np.minimum(behaviour[here, slot], current[here, slot] - np.float32(log_lambda))
        total[here] += exp32(least)
    return total
