"""Listed tokens of many positions, one after the other."""

from __future__ import annotations

import functools
from typing import Optional, Tuple

import numpy as np

from sis import _ragged

# Ids are below 2^24 (-1 for none), so a row and an id make one number.
_ROW = 1 << 25


class Lists:
    """The tokens that N positions list, M in all: most probable first, ties by id.

    Attributes:
        starts, counts: int64 [N]. Where a position's tokens begin, and how many there are.
        rows: int64 [M]. The position of each token.
        ids, log_probs: int64 [M], float32 [M], finite, nats.
    """

    def __init__(
        self, counts: np.ndarray, ids: np.ndarray, log_probs: np.ndarray, probs: Optional[np.ndarray] = None
    ) -> None:
        """The tokens of each row must be in order."""
        self.counts = counts
        self.starts = np.cumsum(counts) - counts
        self.rows = np.repeat(np.arange(len(counts)), counts)
        self.ids, self.log_probs = ids, log_probs
        # Computed once: how numpy rounds depends on the place in an array.
        self.probs = np.exp(log_probs.astype(np.float64)) if probs is None else probs

    @functools.cached_property
    def _by_id(self) -> Tuple[np.ndarray, np.ndarray]:
        """Rows and ids as numbers that ascend, and the tokens that have them."""
        keys = self.rows * _ROW + self.ids
        order = np.argsort(keys)
        return keys[order], order

    def __len__(self) -> int:
        return len(self.counts)

    def find(self, rows: np.ndarray, ids: np.ndarray) -> np.ndarray:
        """Returns where `ids` [...] stand in the lists of `rows` [...]: indices of tokens, -1 if they don't."""
        wanted = rows * _ROW + ids
        keys, order = self._by_id
        if not len(keys):
            return np.full(wanted.shape, -1)
        places = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
        return np.where(keys[places] == wanted, order[places], -1)

    def log_probs_at(self, found: np.ndarray) -> np.ndarray:
        """Returns the log-probs of tokens that `find` returned, float64; NaN for -1."""
        return np.append(self.log_probs.astype(np.float64), np.nan)[found]

    def probs_at(self, found: np.ndarray) -> np.ndarray:
        """Returns probabilities of tokens that `find` returned, float64; 0 for -1."""
        return np.append(self.probs, 0.0)[found]

    def take(self, rows: np.ndarray) -> Lists:
        """Returns the lists of these rows, in their order."""
        if len(rows) == len(self) and (rows == np.arange(len(self))).all():
            return self
        tokens = _ragged.places(self.starts[rows], self.counts[rows])
        return Lists(self.counts[rows], self.ids[tokens], self.log_probs[tokens], self.probs[tokens])

    def first(self, default: float) -> np.ndarray:
        """Returns each list's largest log-prob, float64 [N]; `default` for an empty list."""
        return self._at(self.starts, default)

    def last(self, default: float) -> np.ndarray:
        """Returns each list's smallest log-prob, float64 [N]; `default` for an empty list."""
        return self._at(self.starts + self.counts - 1, default)

    def _at(self, tokens: np.ndarray, default: float) -> np.ndarray:
        values = np.full(len(self), default)
        there = self.counts > 0
        values[there] = self.log_probs[tokens[there]]
        return values

    def sums(self, values: np.ndarray) -> np.ndarray:
        """Returns the sum over each list of `values` [M], in the order of the list."""
        return np.bincount(self.rows, values, minlength=len(self))

    def ranks(self) -> np.ndarray:
        """Returns the rank of each token in its list, from 0."""
        return np.arange(len(self.ids)) - self.starts[self.rows]


def ranked(rows: np.ndarray, ids: np.ndarray, log_probs: np.ndarray) -> np.ndarray:
    """Returns the order of tokens, whose rows ascend, that puts each row's most probable first, ties by id."""
    same = rows[1:] == rows[:-1]
    falls = (log_probs[1:] < log_probs[:-1]) | (log_probs[1:] == log_probs[:-1]) & (ids[1:] > ids[:-1])
    if (falls | ~same).all():
        return np.arange(len(rows))
    return np.lexsort((ids, -log_probs, rows))


def repeated(rows: np.ndarray, ids: np.ndarray) -> bool:
    """Returns True if an id occurs twice in a row's list."""
    keys = np.sort(rows * _ROW + ids)
    return bool((keys[1:] == keys[:-1]).any())
