"""The base algorithms in float64 numpy: docs/algorithms.md as formulas, without the service's
arithmetic.

Arrays are [N] float64 unless said otherwise. `g` is the surrogate of a ratio; `c` the coefficient
of A * grad log p(y), for an advantage A whose sign selects the branch.
"""

import dataclasses
from typing import Callable, Optional, Union

import numpy as np
from numpy.typing import NDArray

from tests.reference import numerics

Array = NDArray[np.float64]
Bools = NDArray[np.bool_]

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
    exp: Callable[[Array], Array] = np.exp

    def ratios(self) -> Array:
        return self.exp(self.log_ratios)

    def importance_ratios(self) -> Array:
        return self.exp(self.log_importance_ratios)

    def corrections(self) -> Array:
        """1 with two policies."""
        return self.exp(np.zeros_like(self.log_ratios) if self.log_corrections is None else self.log_corrections)

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


def _clip(w: Array, advantages: Array, low: float, high: float) -> tuple[Array, Array]:
    """The coefficient is the derivative of min(w A, clip(w) A) by log w, over A."""
    clipped = ((advantages > 0) & (w > 1 + high)) | ((advantages < 0) & (w < 1 - low))
    return np.clip(w, 1 - low, 1 + high), np.where(clipped, 0, w)


def _leads_away(w: Array, advantages: Array) -> Bools:
    return ((advantages > 0) & (w > 1)) | ((advantages < 0) & (w < 1))


def _outward_factors(batch: Batch) -> Array:
    return np.where(_leads_away(batch.importance_ratios(), batch.advantages), batch.acceptance_probabilities, 1)


def _trust_region(w: Array, batch: Batch, distance: Array, threshold: float) -> tuple[Array, Array]:
    far = distance > threshold
    return np.where(far, 0, w), np.where(far & _leads_away(w, batch.advantages), 0, w)


def _binary_distance(batch: Batch) -> Array:
    return np.abs(np.exp(batch.current_log_probs) - np.exp(batch.reference_log_probs))


@dataclasses.dataclass(frozen=True)
class Rule:
    """A base algorithm."""

    # Returns surrogate and coefficient, or one array that is both, from (ratios w, batch, *parameters).
    weigh: Callable[..., Union[Array, tuple[Array, Array]]]
    defaults: tuple[float, ...] = ()
    # Exact in float32, so that a ratio can lie on a bound; other than the defaults, and than each other.
    others: tuple[float, ...] = ()
    # Returns the weight of a ratio. With three policies this ratio is the correction, and `weigh` weighs the other one.
    correct: Optional[Callable[..., Array]] = None
    # Whether accepted tokens count as on-policy.
    exempts: bool = True
    # Whether the correction of three policies is a factor.
    corrected: bool = True
    # Whether it needs log-probs at every slot, and two policies.
    every_slot: bool = False


RULES = {
    "importance_sampling": Rule(lambda w, batch: w),
    "no_correction": Rule(lambda w, batch: np.ones_like(w)),
    "grpo": Rule(lambda w, batch, epsilon: _clip(w, batch.advantages, epsilon, epsilon), (0.2,), (0.25,)),
    "dapo": Rule(lambda w, batch, *bounds: _clip(w, batch.advantages, *bounds), (0.2, 0.28), (0.25, 0.5)),
    "gspo": Rule(
        lambda w, batch, *bounds: _clip(sequence_ratios(batch), batch.advantages, *bounds),
        (3e-4, 4e-4),
        (0.125, 0.25),
        exempts=False,
    ),
    "cispo": Rule(lambda w, batch, high: np.minimum(w, 1 + high), (0.2,), (0.5,)),
    "dppo_top_k": Rule(
        lambda w, batch, threshold: _trust_region(w, batch, batch.total_variations, threshold),
        (0.15,),
        (0.25,),
        every_slot=True,
    ),
    "dppo_binary": Rule(
        lambda w, batch, threshold: _trust_region(w, batch, _binary_distance(batch), threshold), (0.15,), (0.125,)
    ),
    "clip_cov": Rule(
        lambda w, batch, *choice: np.where(dropped(batch, *choice), 0, w), (1.0, 5.0, 0.0002), (0.5, 4.0, 0.0625)
    ),
    "tis": Rule(
        lambda w, batch, truncation, *bounds: _clip(w, batch.advantages, *bounds),
        (2.0, 0.2, 0.2),
        (1.5, 0.25, 0.5),
        correct=lambda w, truncation, *bounds: np.minimum(w, truncation),
    ),
    "ice_pop": Rule(
        lambda w, batch, alpha, beta, *bounds: _clip(w, batch.advantages, *bounds),
        (0.5, 5.0, 0.2, 0.2),
        (0.75, 1.5, 0.25, 0.5),
        correct=lambda w, alpha, beta, *bounds: np.where((w >= alpha) & (w <= beta), w, 0),
    ),
    "soft_acceptance": Rule(lambda w, batch: w * _outward_factors(batch), exempts=False),
    "damped_truncation": Rule(
        lambda w, batch: np.minimum(batch.importance_ratios(), 1) * _outward_factors(batch),
        exempts=False,
        corrected=False,
    ),
}


def apply(name: str, parameters: tuple[float, ...], batch: Batch) -> tuple[Array, Array]:
    """Surrogate and coefficient."""
    rule, three_policies = RULES[name], batch.log_corrections is not None
    w, correction = batch.ratios(), batch.corrections()
    if rule.correct and not three_policies:
        weights: Union[Array, tuple[Array, Array]] = rule.correct(w, *parameters)
    else:
        weights = rule.weigh(w, batch, *parameters)
    if rule.correct and three_policies:
        correction = rule.correct(correction, *parameters)
    g, c = weights if isinstance(weights, tuple) else (weights, weights)
    if rule.exempts and not three_policies:
        g, c = np.where(batch.accepted, 1, g), np.where(batch.accepted, 1, c)
    if rule.corrected:
        g, c = correction * g, correction * c
    limit = np.exp(88)
    return np.where(batch.masked, 0, np.minimum(g, limit)), np.where(batch.masked, 0, np.minimum(c, limit))


def top_k_total_variation(behaviour: Array, current: Array, outside_behaviour: Array, outside_current: Array) -> Array:
    """[N] from log-probs [N, K] and of sampled tokens outside [N]; -inf in `behaviour` marks what
    is not there."""
    q = np.exp(np.column_stack([behaviour, outside_behaviour]))
    there = q > 0
    p = np.where(there, np.exp(np.where(there, np.column_stack([current, outside_current]), 0)), 0)
    q_rest, p_rest = np.maximum(1 - q.sum(axis=1), 0), np.maximum(1 - p.sum(axis=1), 0)
    return np.minimum(1, (np.abs(p - q).sum(axis=1) + np.abs(p_rest - q_rest)) / 2)
