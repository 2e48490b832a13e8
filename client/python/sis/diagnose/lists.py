"""Listed tokens of many positions, one after the other."""

from __future__ import annotations

import functools
from typing import Tuple

import numpy as np

from sis import _ragged

# Ids are below 2^24 (-1 for none), so a row and an id make one number.
_ROW = 1 << 25


class Lists:
    """The tokens that N positions list, M in all: most probable first, ties by id.

    Attributes:
        starts, counts: int64 [N]. Where a position's tokens begin, and how many there are.
        rows: int64 [M]. The position of each token.
        ids, log_probs: int64 [M], float32 [M], nats.
    """

    def __init__(self, counts: np.ndarray, ids: np.ndarray, log_probs: np.ndarray) -> None:
        """The tokens of each row must be in order."""
        self.counts = counts
        self.starts = np.cumsum(counts) - counts
        self.rows = np.repeat(np.arange(len(counts)), counts)
        self.ids, self.log_probs = ids, log_probs

    @staticmethod
    def ranked(size: int, rows: np.ndarray, ids: np.ndarray, log_probs: np.ndarray) -> Lists:
        """Makes the lists of `size` positions of tokens in any order."""
        order = np.lexsort((ids, -log_probs, rows))
        return Lists(np.bincount(rows, minlength=size), ids[order], log_probs[order])

    @functools.cached_property
    def probs(self) -> np.ndarray:
        """float64 [M]."""
        return np.exp(self.log_probs.astype(np.float64))

    @functools.cached_property
    def _by_id(self) -> Tuple[np.ndarray, np.ndarray]:
        """Rows and ids as numbers that ascend, and the tokens that have them."""
        keys = self.rows * _ROW + self.ids
        order = np.argsort(keys)
        return keys[order], order

    def __len__(self) -> int:
        return len(self.counts)

    def _find(self, rows: np.ndarray, ids: np.ndarray) -> np.ndarray:
        """Returns where `ids` [...] stand in the lists of `rows` [...]: indices of tokens, -1 if they don't."""
        wanted = rows * _ROW + ids
        keys, order = self._by_id
        if not len(keys):
            return np.full(wanted.shape, -1)
        places = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
        return np.where(keys[places] == wanted, order[places], -1)

    def log_probs_of(self, rows: np.ndarray, ids: np.ndarray) -> np.ndarray:
        """Returns the log-probs of `ids` in the lists of `rows`, float64; NaN if they are not listed."""
        return np.append(self.log_probs.astype(np.float64), np.nan)[self._find(rows, ids)]

    def probs_of(self, rows: np.ndarray, ids: np.ndarray) -> np.ndarray:
        """Returns the probabilities of `ids` in the lists of `rows`, float64; 0 if they are not listed."""
        return np.append(self.probs, 0.0)[self._find(rows, ids)]

    def take(self, rows: np.ndarray) -> Lists:
        """Returns the lists of these rows, in their order."""
        tokens = _ragged.places(self.starts[rows], self.counts[rows])
        return Lists(self.counts[rows], self.ids[tokens], self.log_probs[tokens])

    def only(self, kept: np.ndarray) -> Lists:
        """Returns the lists of the tokens of which `kept`, bool [M], is True."""
        return Lists(np.bincount(self.rows[kept], minlength=len(self)), self.ids[kept], self.log_probs[kept])

    def first(self, values: np.ndarray, default: float) -> np.ndarray:
        """Returns, of `values` [M], that of each list's first token, [N]; `default` for an empty list."""
        return np.where(self.counts > 0, np.append(values, default)[self.starts], default)

    def last(self, values: np.ndarray, default: float) -> np.ndarray:
        """Returns, of `values` [M], that of each list's last token, [N]; `default` for an empty list."""
        return np.where(self.counts > 0, np.append(values, default)[self.starts + self.counts - 1], default)

    def sums(self, values: np.ndarray) -> np.ndarray:
        """Returns the sum over each list of `values` [M], in the order of the list."""
        return np.bincount(self.rows, values, minlength=len(self))

    def ranks(self) -> np.ndarray:
        """Returns the rank of each token in its list, from 0."""
        return np.arange(len(self.ids)) - self.starts[self.rows]
