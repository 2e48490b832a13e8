"""Sets of as many slots as each position uses, one position's after the other's."""

from __future__ import annotations

from typing import Sequence, Union

import numpy as np


def places(begins: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """int [sum of counts]: begins[i], begins[i] + 1, ... of counts[i] numbers, for one i after the other."""
    return np.repeat(begins - (np.cumsum(counts) - counts), counts) + np.arange(counts.sum())


# Of the rows of an array: a slice where they stand one after the other, else their numbers.
Selection = Union[slice, np.ndarray]


def joined(parts: Sequence[slice]) -> Selection:
    """The rows of all parts, one after the other."""
    if not parts:
        return slice(0, 0)
    if all(part.stop == later.start for part, later in zip(parts, parts[1:])):
        return slice(parts[0].start, parts[-1].stop)
    return np.concatenate([np.arange(part.start, part.stop) for part in parts])


def slots_of(rows: Selection, offsets: np.ndarray) -> Selection:
    """Where the used slots of these rows stand. offsets: int64 [N + 1], where each row's begin, and the
    end."""
    if isinstance(rows, slice):
        start, stop, _ = rows.indices(len(offsets) - 1)
        return slice(int(offsets[start]), int(offsets[stop]))
    return places(offsets[rows], offsets[rows + 1] - offsets[rows])


def offsets(counts: np.ndarray) -> np.ndarray:
    """int64 [T + 1]: where the slots of each row begin, and the end."""
    return np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])


def narrowed(rows: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """[S] of rows [T, slots], of whose first slots each row uses counts [T]."""
    used = np.arange(rows.shape[1]) < counts[:, None]
    return rows.ravel() if used.all() else rows[used]


def widened(values: np.ndarray, counts: np.ndarray, slots: int, unused: float) -> np.ndarray:
    """[T, slots] of the used slots [S], of which each row has counts [T]."""
    if len(values) == len(counts) * slots:
        return values.reshape(-1, slots)
    rows = np.full((len(counts), slots), unused, values.dtype)
    rows[np.arange(slots) < counts[:, None]] = values
    return rows
