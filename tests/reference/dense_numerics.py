"""The dense form in numpy: a second implementation of docs/dense_numerics.md, made from that
document.

The section numbers below are its sections. One position at a time; logits are float32, which holds
bfloat16 exactly.
"""

import math
from typing import NamedTuple

import numpy as np

from tests.reference import numerics
from tests.reference.numerics import Float32s

BLOCK = 1024
RUNNING_SUMS = 64
REFERENCES = 6
MAX_LOG_SUM_EXP = 2.0**40
_ODD = (17, 15, 13, 11, 9, 7, 5, 3, 1)


def reference(maximum: np.float32) -> np.float32:
    """Section 2: R of a block whose largest logit is `maximum`."""
    if abs(maximum) >= 2.0**26:
        return maximum
    return np.float32(8 * math.ceil(float(numerics.flush(maximum)) / 8))


def block_sum(logits: Float32s, block_reference: np.float32) -> np.float32:
    """Section 2: s of a block [at most 1024], which begins at its first id."""
    with np.errstate(over="ignore"):  # -inf below the largest float32
        differences = logits - block_reference
    terms = np.zeros(BLOCK, np.float32)
    terms[: len(logits)] = numerics.exp32(differences)
    sums = np.zeros(RUNNING_SUMS, np.float32)
    for row in terms.reshape(-1, RUNNING_SUMS):
        sums = sums + row
    while len(sums) > 1:
        half = len(sums) // 2
        sums = sums[:half] + sums[half:]
    return sums[0]


def log64(x: float) -> float:
    """Section 3."""
    bits = int(np.float64(x).view(np.int64))
    n = (bits - 0x3FE6A09E667F3BCD) >> 52
    z = float(np.int64(bits - (n << 52)).view(np.float64))
    f = (z - 1) / (z + 1)
    g = f * f
    p = 1 / 19
    for odd in _ODD:
        p = p * g + 1 / odd
    return n * float.fromhex("0x1.62e42fefa39efp-1") + (2 * f) * p


def log_sum_exp(logits: Float32s) -> float:
    """Section 3: L of the logits [V], of which one at least is above -inf; ValueError where
    log-probs are lost in rounding."""
    pairs = []
    for begin in range(0, len(logits), BLOCK):
        block = logits[begin : begin + BLOCK]
        if block.max() == -np.inf:
            continue
        block_reference = reference(block.max())
        pairs.append((float(block_reference), int(float(block_sum(block, block_reference)) * 2.0**36)))
    largest = max(block_reference for block_reference, _ in pairs)
    t = 0.0
    for j in reversed(range(REFERENCES)):
        integers = sum(integer for block_reference, integer in pairs if (largest - block_reference) / 8 == j)
        t = t * float.fromhex("0x1.5fc21041027adp-12") + float(integers)
    total = largest + log64(t * 2.0**-36)
    if abs(total) > MAX_LOG_SUM_EXP:
        raise ValueError(f"the log-sum-exp {total} is beyond 2^40 in magnitude")
    return total


class Dense(NamedTuple):
    """Section 4, for one position."""

    log_sum_exp: float
    sampled_log_prob: np.float32
    log_probs: Float32s


def gather(logits: Float32s, sampled_id: int, ids: np.ndarray) -> Dense:
    """From the logits [V], at the sampled token and the recorded ids [K], -1 in unused slots."""
    total = log_sum_exp(logits)

    def log_probs(values: Float32s) -> Float32s:
        return numerics.flush((values.astype(np.float64) - total).astype(np.float32))

    gathered = np.where(ids >= 0, logits[ids], np.float32(-np.inf))
    return Dense(total, log_probs(logits[[sampled_id]])[0], log_probs(gathered))
