"""Is one side the other at another temperature?"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from sis.diagnose.check import Check
from sis.diagnose.compared import Compared, Part


class TemperatureFit(NamedTuple):
    """The temperature at which one recording looks most like the other."""

    # With at least three tokens in common.
    positions: int
    # The log-probs of B are about `slope` times those of A, up to what normalises them: B is A at temperature
    # 1 / slope. 1 if there are no positions, or the log-probs hardly correlate.
    slope: float = 1.0
    correlates: bool = False
    # Share of the squared differences that the slope explains, in [0, 1].
    explained: float = 0.0


def fit_temperature(part: Part) -> TemperatureFit:
    # Below it the lists hardly have to do with each other: another context, with more spread or less.
    least_correlation = 0.7
    compared = part.compared
    squares = compared.cached("products", lambda: _products(compared))[:, part.positions]
    aa, bb, ab, counted = squares.sum(axis=1).tolist()
    if not (aa > 0 and bb > 0 and ab > least_correlation * math.sqrt(aa * bb)):
        return TemperatureFit(int(counted))
    # Both sides have noise: the slope that treats them alike.
    slope = math.sqrt(bb / aa)
    without = aa + bb - 2 * ab
    with_it = (bb + slope * slope * aa - 2 * slope * ab) / slope
    # Differences of the size of float32's rounding tell nothing.
    explained = max(0.0, 1 - with_it / without) if without > 1e-9 * aa else 0.0
    return TemperatureFit(int(counted), slope, True, explained)


def _products(compared: Compared) -> np.ndarray:
    """Returns, [4, C], sums of squares and products of centred log-probs, and whether a position counts."""
    a, b = compared.centred
    counts = compared.in_common >= 3
    rows, size = compared.common.rows, len(compared)
    sums = [np.where(counts, np.bincount(rows, product, minlength=size), 0.0) for product in (a * a, b * b, a * b)]
    return np.stack([*sums, counts.astype(np.float64)])


def check_temperature(part: Part) -> Check:
    # Noise as large as that of 4-bit weights gives less than 0.02.
    enough, least = 5, 0.03
    check = Check(
        "temperature",
        "Is the same temperature applied?",
        "share of the squared differences of log-probs that one temperature explains, if it is 3% from 1",
        0.2,
        "numerical noise gives 0.06 and less, a temperature of 0.95 0.3",
        "the temperature: divide the trainer's logits by that of sampling, or record raw log-probs",
    )
    fit = fit_temperature(part)
    if fit.positions < enough:
        return check.untested("too few positions with tokens in common")
    if not fit.correlates:
        return check.untested("the lists hardly have to do with each other")
    near_1 = abs(math.log(fit.slope)) < least
    return check.decide(
        0.0 if near_1 else fit.explained,
        f"The temperature is applied on one side only: B looks like A at temperature {1 / fit.slope:.2f} (A like B at "
        f"{fit.slope:.2f}), which explains {100 * fit.explained:.0f}% of the squared differences.",
    )
