"""Arrays of used slots: the slots of all positions, contiguous."""

from __future__ import annotations

from typing import Sequence, Union

import numpy as np


def places(begins: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Returns int [sum of counts]: for each i, the counts[i] numbers begins[i], begins[i] + 1, ..."""
    return np.repeat(begins - (np.cumsum(counts) - counts), counts) + np.arange(counts.sum())


# Rows of an array: a slice if they are consecutive, otherwise their numbers.
Selection = Union[slice, np.ndarray]


def joined(parts: Sequence[slice]) -> Selection:
    """Returns the rows of all parts, in order."""
    if not parts:
        return slice(0, 0)
    if all(part.stop == later.start for part, later in zip(parts, parts[1:])):
        return slice(parts[0].start, parts[-1].stop)
    return np.concatenate([np.arange(part.start, part.stop) for part in parts])


def slots_of(rows: Selection, offsets: np.ndarray) -> Selection:
    """Returns the used slots of these rows. offsets: int64 [N + 1], where the slots of each row begin, and the end."""
    if isinstance(rows, slice):
        start, stop, _ = rows.indices(len(offsets) - 1)
        return slice(int(offsets[start]), int(offsets[stop]))
    return places(offsets[rows], offsets[rows + 1] - offsets[rows])


def offsets(counts: np.ndarray) -> np.ndarray:
    """Returns int64 [T + 1]: where the slots of each row begin, and the end."""
    return np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])


def used(counts: np.ndarray, slots: int) -> np.ndarray:
    """Returns bool [T, slots]: True at the used slots, which are the first ones. counts: of a type that holds `slots`;
    uint8 takes an eighth of the time."""
    return np.arange(slots, dtype=counts.dtype) < counts[:, None]


def narrowed(rows: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Returns the used slots [S] of rows [T, slots]. Row i uses its first counts[i] slots."""
    slots = rows.shape[1]
    return rows.ravel() if counts.min(initial=slots) == slots else rows[used(counts, slots)]


def widened(values: np.ndarray, counts: np.ndarray, slots: int, unused: float) -> np.ndarray:
    """Returns [T, slots] from used slots [S]. Row i has counts[i] of them, and `unused` elsewhere."""
    if len(values) == len(counts) * slots:
        return values.reshape(-1, slots)
    rows = np.full((len(counts), slots), unused, values.dtype)
    rows[used(counts, slots)] = values
    return rows
