"""The masks that engines return of sampling: the tokens that top-p, top-k and min-p left, of which each was
drawn."""

from __future__ import annotations

import itertools
import warnings
from typing import NamedTuple, Optional, Sequence

import numpy as np

Mask = Sequence[int]


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
    counts = np.fromiter((0 if mask is None else len(mask) for mask in masks), np.int64, len(masks))
    ids = np.fromiter(itertools.chain.from_iterable(mask or () for mask in masks), np.int64, int(counts.sum()))
    # A token of a position, as one number.
    places = np.arange(len(masks), dtype=np.int64) << 32
    inside = np.repeat(places, counts) | ids
    own = np.isin(places | sampled, inside) | ~known
    if not own.all():
        position = int(np.argmin(own))
        raise ValueError(f"position {position}: token {sampled[position]} was drawn, and its sampling mask has not got it")
    return Kept(counts, np.isin(places[:, None] | tokens, inside) | ~known[:, None])


class CutOff:
    """Positions whose mask is longer than what is recorded of them. Warns once. Not thread-safe."""

    def __init__(self) -> None:
        # Of all that had a mask.
        self.positions = 0
        self.masked = 0
        self._told = False

    def add(self, counts: Optional[np.ndarray], top_k: int) -> None:
        """counts: of Kept. None: no masks."""
        if counts is None:
            return
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
