"""The positions of two recordings that were sampled in the same context."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Tuple

import numpy as np

from sis import _ragged
from sis.diagnose.decisions import LARGEST, Decisions, decide
from sis.diagnose.lists import Lists
from sis.diagnose.recordings import Pair, Recording


def equal_tokens(pair: Pair, shift: int = 0) -> np.ndarray:
    """Returns, int64 [S], how many tokens of A, from the first on, B has `shift` positions later."""
    a, b, skip_a, skip_b = pair.a, pair.b, max(0, -shift), max(0, shift)
    counts = np.maximum(0, np.minimum(a.lengths - skip_a, b.lengths - skip_b))
    differ = (
        a.sampled[_ragged.places(a.starts + skip_a, counts)] != b.sampled[_ragged.places(b.starts + skip_b, counts)]
    )
    starts = np.cumsum(counts) - counts
    places = np.append(np.flatnonzero(differ), len(differ))
    return np.minimum(places[np.searchsorted(places, starts)] - starts, counts)


def common_positions(pair: Pair) -> np.ndarray:
    """Returns, int64 [S], the positions up to and including the first where the sampled tokens differ."""
    return np.minimum(equal_tokens(pair) + 1, np.minimum(pair.a.lengths, pair.b.lengths))


def total_variations(a: Lists, b: Lists, rows: np.ndarray) -> np.ndarray:
    """Returns, float64 [N], half the sum of abs(p - q) over the tokens that the lists of A or those of B at `rows`
    have. One that a list leaves out counts as impossible there. In [0, 1], except for rounding."""
    q = b.probs_of(rows[a.rows], a.ids)
    return (a.sums(np.abs(a.probs - q)) + np.maximum(0.0, b.sums(b.probs)[rows] - a.sums(q))) / 2


@dataclass(frozen=True, eq=False)
class Compared:
    """C positions of S sequences that both recordings have, one after the other."""

    # Whole sequences, and int64 [S]: their numbers, which ascend, and how many of their positions are compared.
    pair: Pair
    numbers: np.ndarray
    counts: np.ndarray
    # The compared positions of both recordings.
    a: Recording
    b: Recording
    # With A as the behaviour policy.
    decisions: Decisions

    @staticmethod
    def of(pair: Pair, counts: np.ndarray, top_k: int) -> Compared:
        """counts: int64 [S], of each sequence."""
        every = np.arange(len(counts))
        a, b = pair.a.take(every, counts), pair.b.take(every, counts)
        return Compared(pair, every, counts, a, b, decide(a, b, top_k))

    def only(self, sequences: np.ndarray) -> Compared:
        """Returns what is compared of some sequences, of the numbers given."""
        kept = np.flatnonzero(np.isin(self.numbers, sequences))
        counts, (a, b) = self.counts[kept], (self.pair.a, self.pair.b)
        return Compared(
            Pair(a.take(kept, a.lengths[kept]), b.take(kept, b.lengths[kept]), self.pair.by_id),
            self.numbers[kept],
            counts,
            self.a.take(kept, counts),
            self.b.take(kept, counts),
            self.decisions.take(_ragged.places(self.a.starts[kept], counts)),
        )

    def __len__(self) -> int:
        return len(self.a.sampled)

    @functools.cached_property
    def sequences(self) -> np.ndarray:
        """int64 [C]. The number of each position's sequence."""
        return np.repeat(self.numbers, self.counts)

    @functools.cached_property
    def positions(self) -> np.ndarray:
        """int64 [C]. Numbers of the positions in their sequences."""
        return _ragged.places(np.zeros(len(self.counts), np.int64), self.counts)

    @functools.cached_property
    def has_lists(self) -> np.ndarray:
        return (self.a.lists.counts > 0) & (self.b.lists.counts > 0)

    @functools.cached_property
    def deviations(self) -> np.ndarray:
        """abs(log w), nats, as in the service's sums; NaN without a ratio."""
        return np.minimum(LARGEST, np.abs(self.decisions.log_ratios.astype(np.float64)))

    @functools.cached_property
    def total_variations(self) -> np.ndarray:
        return total_variations(self.a.lists, self.b.lists, np.arange(len(self)))

    @functools.cached_property
    def b_of_a(self) -> np.ndarray:
        """B's log-probs of the tokens that A lists, nats; NaN if B does not list them."""
        return self.b.lists.log_probs_of(self.a.lists.rows, self.a.lists.ids)

    @functools.cached_property
    def only_b(self) -> np.ndarray:
        """Whether each token that B lists is not in A's list."""
        return np.isnan(self.a.lists.log_probs_of(self.b.lists.rows, self.b.lists.ids))

    @property
    def is_gathered(self) -> bool:
        """True if B lists only tokens that A lists, like a trainer that looks up recorded tokens. Tokens that B omits
        are then unknown, not improbable."""
        return len(self.only_b) > 0 and not self.only_b.any()

    def seen(self, rows: np.ndarray, ids: np.ndarray) -> np.ndarray:
        """Returns whether the text before the positions `rows` has the tokens `ids`."""
        # First position of each sampled token in each sequence.
        keys, first = np.unique((self.sequences << 25) + self.a.sampled + 1, return_index=True)
        wanted = (self.sequences[rows] << 25) + ids + 1
        place = np.minimum(np.searchsorted(keys, wanted), max(0, len(keys) - 1))
        return (keys[place] == wanted) & (first[place] < rows)

    @functools.cached_property
    def common(self) -> Tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """The tokens that both files list, in the order of their positions: compared position, id, and A's and B's
        log-probs, float64, nats."""
        lists, listed = self.a.lists, ~np.isnan(self.b_of_a)
        log_probs = lists.log_probs[listed].astype(np.float64)
        return lists.rows[listed], lists.ids[listed], log_probs, self.b_of_a[listed]

    @functools.cached_property
    def in_common(self) -> np.ndarray:
        """int64 [C]. How many tokens both files list."""
        return np.bincount(self.common[0], minlength=len(self))

    @functools.cached_property
    def centred(self) -> Tuple[np.ndarray, np.ndarray]:
        """Log-probs of `common`, A's and B's, each less its mean over the position: what is left does not depend on how
        either was normalised."""
        rows, _, a, b = self.common
        a_means, b_means = (np.bincount(rows, x, minlength=len(self)) / np.maximum(1, self.in_common) for x in (a, b))
        return a - a_means[rows], b - b_means[rows]

    @functools.cached_property
    def noise(self) -> np.ndarray:
        """Root of the mean squared difference of listed log-probs, less their mean; NaN if fewer than three are in
        common. It does not depend on how certain the policy is there, as log w does."""
        a, b = self.centred
        squares = np.bincount(self.common[0], (b - a) ** 2, minlength=len(self))
        return np.where(self.in_common >= 3, np.sqrt(squares / np.maximum(1, self.in_common)), np.nan)

    def shifted(self, by: int) -> Tuple[np.ndarray, np.ndarray]:
        """Returns the positions, and those `by` further on in the same sequence, where there are such."""
        here = np.arange(max(0, -by), max(0, min(len(self), len(self) - by)))
        here = here[self.sequences[here] == self.sequences[here + by]]
        return here, here + by
