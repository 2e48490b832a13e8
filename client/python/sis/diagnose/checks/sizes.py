"""How large are the differences, and are they the same everywhere?"""

from __future__ import annotations

import math

import numpy as np

from sis.diagnose.check import Answer, Measured, Moments, question
from sis.diagnose.compared import Compared
from sis.diagnose.difference import BEYOND_NOISE


# Twice what 4-bit weights give, the largest numerical noise measured.
@question(
    "Are the differences small enough for the same weights?",
    "D per token in nats, less two standard errors",
    BEYOND_NOISE,
    "the checkpoint and adapters that both sides have loaded, whether the engine's weights are updated, the chat "
    "template",
)
def check_weights(compared: Compared) -> Answer:
    enough = 5
    d = Moments.of(compared.deviations)
    if d.number < enough:
        return "too few positions have a ratio"
    return Measured(
        d.mean - 2 * d.standard_error,
        f"The differences, D = {d.mean:.2g} nats per token, are too large for numerical noise: other weights (another "
        "version of the policy, an adapter left out), or another prompt or chat template.",
    )


# Numerical noise gives below 0.15, what differs everywhere below 0.3.
@question(
    "Do the files differ at all positions alike?",
    "total variation of the lists in the range of positions where it is largest, less that elsewhere",
    0.4,
    "prefix caching and how long prompts are cut, at the start; sliding windows, the longest context and the scaling "
    "of positions, at the end",
)
def check_range(compared: Compared) -> Answer:
    # Numerical noise gives a position 0.05, another context 0.6 and more.
    apart_from, enough = 0.25, 8
    # How far the files are apart at each position, from 0 to 1.
    apart = np.where(compared.has_lists, compared.total_variations, np.abs(compared.decisions.log_ratios))
    there = ~np.isnan(apart)
    positions, apart = compared.positions[there], np.minimum(apart[there], 1.0)
    if len(apart) < 2 * enough:
        return "too few positions in common"
    counts = np.bincount(positions)
    excess = np.bincount(positions, apart) - apart_from * counts
    # The range whose excess is largest: from where the sum before it was last the least.
    sums = np.concatenate([[0.0], np.cumsum(excess)])
    gains = sums[1:] - np.minimum.accumulate(sums[:-1])
    end = int(gains.argmax()) + 1 if gains.max() > 0 else 0
    begin = end - 1 - int(sums[:end][::-1].argmin()) if end else 0
    inside = (positions >= begin) & (positions < end)
    within, outside = Moments.of(apart[inside]), Moments.of(apart[~inside])
    if within.number < enough or outside.number < enough:
        return None
    if begin == 0:
        why = "The context was another one at first: a prompt that was cut, or values cached of another prompt."
    elif end == len(counts):
        why = "From there on the context is another one: it was cut or grew too long for one side."
    else:
        why = "What generated or scored them had another context."
    return Measured(
        within.mean - outside.mean,
        f"The files differ at positions {begin} to {end - 1} alone: there the lists' total variation is "
        f"{within.mean:.2g}, elsewhere {outside.mean:.2g}. {why}",
    )


_LEAST_NOISE = 0.1  # nats
# Noise has one size, within a factor of two to three. This multiple of the median is no noise.
_FAR = 6


@question(
    "Are all sequences apart alike?",
    "median difference of listed log-probs in the sequence where it is largest, if it is above 0.1 nats, over the "
    "median sequence's",
    _FAR,
    "which replica, adapter or version of the weights served these responses",
)
def check_uneven(compared: Compared) -> Answer:
    """The differences are larger in some sequences than in most."""
    enough_sequences, enough = 4, 16
    medians = []
    for sequence, noise in zip(compared.numbers.tolist(), np.split(compared.noise, np.cumsum(compared.counts)[:-1])):
        ascending = _ascending(noise)
        if len(ascending) >= enough:
            medians.append((float(ascending[len(ascending) // 2]), sequence))
    if len(medians) < enough_sequences:
        return "too few sequences are long enough"
    medians.sort()
    middle, (largest, where) = medians[len(medians) // 2][0], medians[-1]
    if largest < _LEAST_NOISE:
        return None
    far = max(_LEAST_NOISE, _FAR * middle)
    return Measured(
        largest / middle if middle > 0 else _FAR,
        f"Sequences differ unlike others: in {where} listed log-probs differ by {largest:.2g} nats, in most by "
        f"{middle:.2g}. Other weights made, or scored, them.",
        sorted(sequence for median, sequence in medians if median >= far),
    )


def _ascending(noise: np.ndarray) -> np.ndarray:
    return np.sort(noise[~np.isnan(noise)])


@question(
    "Are the differences those of all positions, not of a few?",
    "differences of listed log-probs at a position, in nats: the root of the mean square over the median, if it is "
    "above 0.1",
    _FAR,
    "routed experts: replay the engine's in the trainer; else kernels that depend on the batch",
)
def check_outliers(compared: Compared) -> Answer:
    """The differences are those of a few positions."""
    enough = 30
    noise = _ascending(compared.noise)
    if len(noise) < enough:
        return "too few positions with tokens in common"
    median, root = float(noise[len(noise) // 2]), math.sqrt(float((noise * noise).mean()))
    if root < _LEAST_NOISE:
        return None
    far = max(_LEAST_NOISE, _FAR * median)
    return Measured(
        root / median if median > 0 else _FAR,
        f"The differences are those of {int((noise > far).sum())} of {len(noise)} positions, with more than {far:.2g} "
        f"nats; half of all have less than {median:.2g}. That is no noise of weights or arithmetic, which is "
        "everywhere: other experts were routed to, or single steps went another way.",
    )
