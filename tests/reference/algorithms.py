"""The base algorithms in float64 numpy: docs/algorithms.md as formulas, without the service's
arithmetic.

Arrays are [N] float64 unless said otherwise. `g` is the surrogate of a ratio; `c` the coefficient
of A * grad log p(y), for an advantage A whose sign selects the branch.
"""

import dataclasses
from typing import Optional

import numpy as np
from numpy.typing import NDArray

from tests.reference import numerics

Array = NDArray[np.float64]
Bools = NDArray[np.bool_]

DEFAULTS = {
    "importance_sampling": (),
    "no_correction": (),
    "grpo": (0.2,),
    "dapo": (0.2, 0.28),
    "gspo": (3e-4, 4e-4),
    "cispo": (0.2,),
    "dppo_top_k": (0.15,),
    "dppo_binary": (0.15,),
    "clip_cov": (1.0, 5.0, 0.0002),
    "tis": (2.0, 0.2, 0.2),
    "ice_pop": (0.5, 5.0, 0.2, 0.2),
    "soft_acceptance": (),
    "damped_truncation": (),
}


@dataclasses.dataclass(frozen=True)
class Batch:
    """Parts of sequences, one after the other."""

    keys: list[int]  # the sequence key of each part
    first_positions: list[int]
    counts: list[int]
    masked: Bools
    accepted: Bools
    log_ratios: Array  # log w~ or, with three policies, log current - log proximal
    log_corrections: Optional[Array]  # three policies: log of the modified proximal / behaviour ratio
    current_log_probs: Array
    reference_log_probs: Array
    total_variations: Array
    log_importance_ratios: Array  # log current - log behaviour, whatever was modified
    acceptance_probabilities: Array
    advantages: Array
    draw: int

    def sequences(self) -> NDArray[np.uint64]:
        """The key [N] of every position."""
        return np.repeat(np.array(self.keys, np.uint64), self.counts)

    def positions(self) -> NDArray[np.uint32]:
        return np.concatenate([np.arange(f, f + n, dtype=np.uint32) for f, n in zip(self.first_positions, self.counts)])


def sequence_ratios(batch: Batch) -> Array:
    """s~ at every position: exp of the mean log-ratio over the unmasked positions of its
    sequence."""
    sequences, ratios = batch.sequences(), np.ones(len(batch.masked))
    for key in set(batch.keys):
        here = sequences == key
        scored = here & ~batch.masked
        if scored.any():
            ratios[here] = np.exp(np.clip(batch.log_ratios[scored], -64, 64).mean())
    return ratios


def covariances(batch: Batch) -> Array:
    """Returns the products of log p and A about their means over the unmasked positions; NaN where masked."""
    scored = ~batch.masked
    log_probs = np.maximum(batch.current_log_probs, -64)
    return np.where(
        scored, (log_probs - log_probs[scored].mean()) * (batch.advantages - batch.advantages[scored].mean()), np.nan
    )


def choice_words(batch: Batch) -> NDArray[np.uint32]:
    """The Philox word of every position, in domain 2."""
    words = []
    for key, position in zip(batch.sequences().tolist(), batch.positions().tolist()):
        counter = np.array([[position >> 2, batch.draw & 0xFFFFFFFF, batch.draw >> 32, 2]], np.uint32)
        words.append(numerics.philox4x32_10((key & 0xFFFFFFFF, key >> 32), counter)[0, position & 3])
    return np.array(words, np.uint32)


def dropped(batch: Batch, lower: float, upper: float, fraction: float) -> Bools:
    """Clip-Cov's choice."""
    covariance = covariances(batch)
    candidates = ~batch.masked & (covariance > lower) & (covariance < upper)
    if batch.log_corrections is None:
        candidates &= ~batch.accepted
    count = max(1, int(np.float32(fraction).astype(float) * (~batch.masked).sum()))
    keys, positions, words = batch.sequences(), batch.positions(), choice_words(batch)
    order = sorted(np.flatnonzero(candidates), key=lambda i: (words[i], keys[i], positions[i]))
    chosen = np.zeros(len(batch.masked), bool)
    chosen[order[:count]] = True
    return chosen


def _clip(w: Array, low: float, high: float) -> Array:
    return np.clip(w, 1 - low, 1 + high)


def _clip_coefficient(w: Array, advantages: Array, low: float, high: float) -> Array:
    """The derivative of min(w A, clip(w) A) by log w, over A."""
    return np.where(((advantages > 0) & (w > 1 + high)) | ((advantages < 0) & (w < 1 - low)), 0, w)


def _leads_away(w: Array, advantages: Array) -> Bools:
    return ((advantages > 0) & (w > 1)) | ((advantages < 0) & (w < 1))


def apply(name: str, parameters: tuple[float, ...], batch: Batch) -> tuple[Array, Array]:
    """Surrogate and coefficient."""
    w, advantages = np.exp(batch.log_ratios), batch.advantages
    correction = np.ones_like(w) if batch.log_corrections is None else np.exp(batch.log_corrections)
    if name == "importance_sampling":
        g = c = w
    elif name == "no_correction":
        g = c = np.ones_like(w)
    elif name in ("grpo", "dapo"):
        low, high = parameters[0], parameters[-1]
        g, c = _clip(w, low, high), _clip_coefficient(w, advantages, low, high)
    elif name == "gspo":
        s = sequence_ratios(batch)
        g, c = _clip(s, *parameters), _clip_coefficient(s, advantages, *parameters)
    elif name == "cispo":
        g = c = np.minimum(w, 1 + parameters[0])
    elif name in ("dppo_top_k", "dppo_binary"):
        distance = batch.total_variations
        if name == "dppo_binary":
            distance = np.abs(np.exp(batch.current_log_probs) - np.exp(batch.reference_log_probs))
        far = distance > parameters[0]
        g, c = np.where(far, 0, w), np.where(far & _leads_away(w, advantages), 0, w)
    elif name == "clip_cov":
        g = c = np.where(dropped(batch, *parameters), 0, w)
    elif name == "soft_acceptance":
        outward = _leads_away(np.exp(batch.log_importance_ratios), advantages)
        g = c = w * np.where(outward, batch.acceptance_probabilities, 1)
    elif name == "damped_truncation":
        total = np.exp(batch.log_importance_ratios)
        g = c = np.minimum(total, 1) * np.where(_leads_away(total, advantages), batch.acceptance_probabilities, 1)
        correction = np.ones_like(w)
    else:
        # The weight is on the behaviour policy's side; the rest of the ratio, with three policies,
        # is clipped.
        kept = correction if batch.log_corrections is not None else w
        if name == "tis":
            weight = np.minimum(kept, parameters[0])
        else:
            weight = np.where((kept >= parameters[0]) & (kept <= parameters[1]), kept, 0)
        if batch.log_corrections is None:
            g = c = weight
        else:
            g, c = _clip(w, *parameters[-2:]), _clip_coefficient(w, advantages, *parameters[-2:])
        correction = weight if batch.log_corrections is not None else correction
    if batch.log_corrections is None and name not in ("gspo", "soft_acceptance", "damped_truncation"):
        g, c = np.where(batch.accepted, 1, g), np.where(batch.accepted, 1, c)
    limit = np.exp(88)
    g, c = np.minimum(correction * g, limit), np.minimum(correction * c, limit)
    return np.where(batch.masked, 0, g), np.where(batch.masked, 0, c)


def top_k_total_variation(behaviour: Array, current: Array, outside_behaviour: Array, outside_current: Array) -> Array:
    """[N] from log-probs [N, K] and of sampled tokens outside [N]; -inf in `behaviour` marks what
    is not there."""
    q = np.exp(np.column_stack([behaviour, outside_behaviour]))
    there = q > 0
    p = np.where(there, np.exp(np.where(there, np.column_stack([current, outside_current]), 0)), 0)
    q_rest, p_rest = np.maximum(1 - q.sum(axis=1), 0), np.maximum(1 - p.sum(axis=1), 0)
    return np.minimum(1, (np.abs(p - q).sum(axis=1) + np.abs(p_rest - q_rest)) / 2)
