"""Sets without the slots that a run's mass leaves out (numerics.md, section 4): those need not travel."""

from __future__ import annotations

from typing import TYPE_CHECKING, Iterator, List, Sequence, Union

import numpy as np

from sis import arrays
from sis.arrays import ArrayLike

if TYPE_CHECKING:
    from sis.run import RunConfig

# Beyond the target, so that no sum here reaches it that the server's, of another exponential, does not:
# the server cuts what this leaves, and the record is what it makes of whole sets. Two exponentials of at
# most 1 in all differ by less than 2^-21, the sums by a rounding each per slot.
_MARGIN, _MARGIN_OF_SLOT = 2.0**-21, 2.0**-23
# Of fewer slots leaving some out takes longer than sending and cutting all.
FEWEST_SLOTS = 32
# Most sets are short: the first slots of all are looked at, then more of those that go on.
_WIDTHS = (4, 12, 48, 1 << 30)
# Rows whose sums stay in the processor's caches.
_ROWS = 4096


def pays(config: RunConfig) -> bool:
    """Whether to leave out what the run's mass cuts: there is something, and sending it takes longer."""
    return 0 < config.mass < 1 and config.top_k >= FEWEST_SLOTS


def cut(columns: Sequence[np.ndarray], mass: float) -> Sequence[np.ndarray]:
    """The arrays of a block, as they are or ragged with counts [T] as the fifth: what takes fewer bytes.

    No slot is left out that the server keeps, and of invalid records none that makes them so within
    what is kept. mass: the run's, strictly between 0 and 1.
    """
    sampled_ids, sampled_log_probs, ids, log_probs = columns
    rows, slots = ids.shape
    counts = _slots_to_mass(log_probs, mass)
    # Sets that never reach it end before their unused slots.
    whole = np.flatnonzero(counts == slots)
    used = ((ids[whole] != -1) | (log_probs[whole] != -np.inf))[:, ::-1]
    counts[whole] = np.where(used.any(axis=1), slots - used.argmax(axis=1), 0)
    total = int(counts.sum())
    if 8 * total + 2 * rows >= 8 * rows * slots:
        return columns
    at = places(np.arange(0, rows * slots, slots), counts)
    return [
        sampled_ids, sampled_log_probs, ids.ravel().take(at), log_probs.ravel().take(at), counts.astype("<u2"),
    ]  # fmt: skip


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


def cut_each(columns: Sequence[np.ndarray], ends: Sequence[int], mass: float) -> Iterator[Sequence[np.ndarray]]:
    """`cut` of several short blocks at once, one after the other, which end at these rows."""
    return split(cut(columns, mass), ends)


def split(columns: Sequence[np.ndarray], ends: Sequence[int]) -> Iterator[Sequence[np.ndarray]]:
    """Yields the arrays of several blocks, one after the other, which end at these rows of `columns`:
    the arrays of one block, perhaps ragged."""
    if len(columns) == 4:
        for begin, end in zip([0, *ends], ends):
            yield [array[begin:end] for array in columns]
        return
    sampled_ids, sampled_log_probs, ids, log_probs, counts = columns
    slots = np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])
    for begin, end in zip([0, *ends], ends):
        rows = slice(begin, end)
        used = slots_of(rows, slots)
        yield [sampled_ids[rows], sampled_log_probs[rows], ids[used], log_probs[used], counts[rows]]


def _slots_to_mass(log_probs: np.ndarray, mass: float) -> np.ndarray:
    """int [T]: the first slots of each row whose probabilities surely sum to the mass; K where all do
    not."""
    counts = np.ones(len(log_probs), np.int64)
    for begin in range(0, len(log_probs), _ROWS):
        _count(log_probs[begin : begin + _ROWS], mass + _MARGIN, counts[begin : begin + _ROWS])
    return np.minimum(counts, log_probs.shape[1])


def _count(log_probs: np.ndarray, mass: float, counts: np.ndarray) -> None:
    """Adds to 1 the slots at whose end the mass is not reached."""
    rows, slots = log_probs.shape
    left: Union[slice, np.ndarray] = slice(None)
    covered = np.zeros(rows, np.float32)
    begin = 0
    for width in _WIDTHS:
        end = min(begin + width, slots)
        # What is no number ends a set too: the server says so.
        with np.errstate(over="ignore", invalid="ignore"):
            masses = np.exp(np.ascontiguousarray(log_probs[left, begin:end].T))
            masses[0] += covered
            for before, after in zip(masses, masses[1:]):
                np.add(before, after, out=after)
            below = masses < np.float32(mass + end * _MARGIN_OF_SLOT)
        counts[left] += below.sum(axis=0, dtype=np.uint16)
        goes_on = np.flatnonzero(below[-1])
        left, covered = goes_on if isinstance(left, slice) else left[goes_on], masses[-1, goes_on]
        begin = end
        if begin == slots or not len(left):
            return


def converted(
    sampled_ids: ArrayLike,
    sampled_log_probs: ArrayLike,
    top_k_ids: ArrayLike,
    top_k_log_probs: ArrayLike,
    top_k_counts: ArrayLike,
    top_k: int,
) -> List[np.ndarray]:
    """The arrays of a ragged block, contiguous. ValueError if shapes or types are wrong, or the counts
    do not say how long the others are."""
    ids = arrays.int32("sampled_ids", sampled_ids, [None])
    counts = arrays.int32("top_k_counts", top_k_counts, [len(ids)])
    wrong = (counts < 0) | (counts > top_k)
    if wrong.any():
        row = int(np.argmax(wrong))
        raise ValueError(f"top_k_counts, position {row}: {counts[row]} is not in [0, {top_k}]")
    total = int(counts.sum())
    given = arrays.to_numpy(top_k_counts)
    return [
        ids,
        arrays.float32("sampled_log_probs", sampled_log_probs, [len(ids)]),
        arrays.int32("top_k_ids", top_k_ids, [total]),
        arrays.float32("top_k_log_probs", top_k_log_probs, [total]),
        np.ascontiguousarray(given.astype("<u2", copy=False)),
    ]


def widened(values: np.ndarray, counts: np.ndarray, slots: int, unused: float) -> np.ndarray:
    """[T, slots] of the used slots [S], of which each row has counts [T]."""
    rows = np.full((len(counts), slots), unused, values.dtype)
    rows[np.arange(slots) < counts[:, None]] = values
    return rows


def padded(columns: Sequence[np.ndarray], top_k: int) -> List[np.ndarray]:
    """The four arrays of a block that `converted` has returned, with unused slots."""
    sampled_ids, sampled_log_probs, ids, log_probs, counts = columns
    wide = [widened(ids, counts, top_k, -1), widened(log_probs, counts, top_k, -np.inf)]
    return [sampled_ids, sampled_log_probs, *wide]
