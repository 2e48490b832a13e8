"""Are the differences larger in some sequences, or at a few positions?"""

from __future__ import annotations

import math

import numpy as np

from sis.diagnose.check import Check
from sis.diagnose.compared import Part

_LEAST = 0.1  # nats


def _ascending(noise: np.ndarray) -> np.ndarray:
    return np.sort(noise[~np.isnan(noise)])


def check_uneven(part: Part) -> Check:
    """The differences are larger in some sequences than in most."""
    enough_sequences, enough = 4, 16
    check = Check(
        "uneven",
        "Are all sequences apart alike?",
        "median difference of listed log-probs in the sequence where it is largest, if it is above 0.1 nats, over the "
        "median sequence's",
        6,
        "noise is of one size, within a factor of two",
        "which replica, adapter or version of the weights served these responses",
    )
    medians = []
    for sequence, positions in part.by_sequence:
        noise = _ascending(part.compared.noise[positions])
        if len(noise) >= enough:
            medians.append((float(noise[len(noise) // 2]), sequence))
    if len(medians) < enough_sequences:
        return check.untested("too few sequences are long enough")
    medians.sort()
    middle, (largest, where) = medians[len(medians) // 2][0], medians[-1]
    if largest < _LEAST:
        return check.clear()
    check.decide(
        largest / middle if middle > 0 else check.limit,
        f"Sequences differ unlike others: in {where} listed log-probs differ by {largest:.2g} nats, in most by "
        f"{middle:.2g}. Other weights made, or scored, them.",
    )
    if check.fault:
        far = max(_LEAST, check.limit * middle)
        check.sequences = sorted(sequence for median, sequence in medians if median >= far)
    return check


def check_outliers(part: Part) -> Check:
    """The differences are those of a few positions."""
    enough = 30
    check = Check(
        "outliers",
        "Are the differences those of all positions, not of a few?",
        "differences of listed log-probs at a position, in nats: the root of the mean square over the median, if it is "
        "above 0.1",
        6,
        "noise everywhere gives below 3, however large",
        "routed experts: replay the engine's in the trainer; else kernels that depend on the batch",
    )
    noise = _ascending(part.compared.noise[part.positions])
    if len(noise) < enough:
        return check.untested("too few positions with tokens in common")
    median = float(noise[len(noise) // 2])
    root = math.sqrt(float((noise * noise).mean()))
    if root < _LEAST:
        return check.clear()
    far = max(_LEAST, check.limit * median)
    beyond = int((noise > far).sum())
    return check.decide(
        root / median if median > 0 else check.limit,
        f"The differences are those of {beyond} of {len(noise)} positions, with more than {far:.2g} nats; half of all "
        f"have less than {median:.2g}. That is no noise of weights or arithmetic, which is everywhere: other experts "
        "were routed to, or single steps went another way.",
    )
