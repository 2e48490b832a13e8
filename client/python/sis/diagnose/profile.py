"""Differences of recordings by sequence, and by position over all sequences."""

from __future__ import annotations

from dataclasses import dataclass
from typing import List, Tuple

import numpy as np

from sis.diagnose.compared import Part
from sis.diagnose.moments import Moments

_FIRST_RANGE = 4


@dataclass(frozen=True)
class Row:
    # A sequence, or the first position of a range and its last one.
    first: int
    last: int
    positions: int
    # Nats per token, of positions with a ratio, and total variation of the lists, where both files have one; NaN
    # without any.
    d: float
    total_variation: float


@dataclass(frozen=True)
class Profile:
    sequences: Tuple[Row, ...]
    # Ranges whose lengths double, from 4 positions on, because few sequences are long.
    positions: Tuple[Row, ...]


def profile_of(part: Part) -> Profile:
    sequences = [_row(part, sequence, sequence, np.arange(at.start, at.stop)) for sequence, at in part.by_sequence]
    positions: List[Row] = []
    at = part.positions
    of_at = part.compared.positions[at]
    first, last = 0, _FIRST_RANGE
    # [0, 4), [4, 8), [8, 16), [16, 32), ...
    while first <= of_at.max(initial=-1):
        positions.append(_row(part, first, last - 1, at[(of_at >= first) & (of_at < last)]))
        first, last = last, 2 * last
    return Profile(tuple(sequences), tuple(positions))


def _row(part: Part, first: int, last: int, at: np.ndarray) -> Row:
    compared = part.compared
    d = Moments.of(compared.deviations[at]).mean
    lists = Moments.of(compared.total_variations[at[compared.has_lists[at]]]).mean
    return Row(first, last, len(at), d, lists)
