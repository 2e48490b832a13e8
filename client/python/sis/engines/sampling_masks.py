"""The masks that engines return of sampling: the tokens that top-p, top-k and min-p left, of which each was
drawn."""

from __future__ import annotations

import itertools
import warnings
from typing import NamedTuple, Optional, Sequence, Tuple

import numpy as np

Mask = Sequence[int]

# Tokens of a position that a record can have at most: kMaxTopK of kernels/records/record_view.h.
MOST_LISTED = 512


class Kept(NamedTuple):
    """Of T positions."""

    # int64 [T]: how many tokens the sampler kept; 0 where there is no mask.
    counts: np.ndarray
    # bool [T, C]: which of C listed tokens are among them. All where there is no mask.
    listed: np.ndarray


def kept(tokens: np.ndarray, sampled: np.ndarray, masks: Sequence[Optional[Mask]]) -> Kept:
    """tokens: int [T, C], negative where there is none. sampled: int [T], those drawn. ValueError for one
    that is not in its mask."""
    known = np.fromiter((mask is not None for mask in masks), bool, len(masks))
    counts, ids = flat(masks)
    # A token of a position, as one number.
    places = np.arange(len(masks), dtype=np.int64) << 32
    inside = np.repeat(places, counts) | ids
    refuse_others(sampled, np.isin(places | sampled, inside) | ~known)
    return Kept(counts, np.isin(places[:, None] | tokens, inside) | ~known[:, None])


def flat(masks: Sequence[Optional[Mask]]) -> Tuple[np.ndarray, np.ndarray]:
    """int64: how many tokens each has, 0 where there is none, and all of them, one mask's after the
    other's."""
    counts = np.fromiter((0 if mask is None else len(mask) for mask in masks), np.int64, len(masks))
    return counts, np.fromiter(itertools.chain.from_iterable(mask or () for mask in masks), np.int64, int(counts.sum()))


def refuse_others(sampled: np.ndarray, inside: np.ndarray) -> None:
    """ValueError for a sampled token [T] that is not inside its mask."""
    if not inside.all():
        position = int(np.argmin(inside))
        raise ValueError(f"position {position}: token {sampled[position]} was drawn, and its sampling mask has not got it")


def most_probable(rows: np.ndarray, ids: np.ndarray, log_probs: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Which of all masks' tokens, [sum of counts] each, are among the MOST_LISTED most probable of their position,
    of equal ones those of smaller id. Position after position."""
    if counts.max(initial=0) <= MOST_LISTED:
        return np.arange(len(ids))
    ordered = np.lexsort((ids, -log_probs, rows))
    rank = np.arange(len(ids)) - np.repeat(np.cumsum(counts) - counts, counts)
    return ordered[rank < MOST_LISTED]


class CutOff:
    """Positions whose mask is longer than what is recorded of them. Warns once. Not thread-safe."""

    def __init__(self) -> None:
        # Of all that had a mask.
        self.positions = 0
        self.masked = 0
        self._told = False

    def add(self, counts: np.ndarray, top_k: int) -> None:
        """counts: of Kept."""
        longer = int((counts > top_k).sum())
        masked = int((counts > 0).sum())
        self.masked += masked
        self.positions += longer
        if longer and not self._told:
            self._told = True
            warnings.warn(
                f"at {longer} of {masked} positions the sampler kept more than the {top_k} tokens that are recorded, "
                f"up to {counts.max()}: there the current policy can't be renormalised over them (docs/uses.md). Record "
                "more (top_k of the run), or filter more",
                RuntimeWarning,
                stacklevel=3,
            )
