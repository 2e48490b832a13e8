"""The positions of two recordings that were sampled in the same context."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Callable, Dict, List, NamedTuple, Sequence, Tuple

import numpy as np

from sis import _ragged
from sis.diagnose.decisions import Decisions
from sis.diagnose.lists import Lists
from sis.diagnose.recordings import Pair, Recording

# Nats. abs(log w) is limited as in the service's sums.
_LARGEST_DEVIATION = 64.0


def equal_tokens(a: Recording, b: Recording, shift: int = 0) -> np.ndarray:
    """Returns, int64 [S], how many tokens of A, from the first on, B has `shift` positions later."""
    skip_a, skip_b = max(0, -shift), max(0, shift)
    counts = np.maximum(0, np.minimum(a.lengths - skip_a, b.lengths - skip_b))
    differ = a.sampled[_ragged.places(a.starts + skip_a, counts)] != b.sampled[_ragged.places(b.starts + skip_b, counts)]
    starts = np.cumsum(counts) - counts
    places = np.append(np.flatnonzero(differ), len(differ))
    return np.minimum(places[np.searchsorted(places, starts)] - starts, counts)


def common_positions(pair: Pair) -> np.ndarray:
    """Returns, int64 [S], the positions up to and including the first where the sampled tokens differ."""
    shorter = np.minimum(pair.a.lengths, pair.b.lengths)
    return np.minimum(equal_tokens(pair.a, pair.b) + 1, shorter)


class Tokens(NamedTuple):
    """Listed tokens, in the order of their positions."""

    # The compared position of each, its id, and whether the text has the token already.
    rows: np.ndarray
    ids: np.ndarray
    seen: np.ndarray
    # float64, nats. NaN where a file does not list it.
    a: np.ndarray
    b: np.ndarray


class Compared:
    """C positions of S sequences that both recordings have, one after the other.

    Attributes:
        sequences, positions: int64 [C].
        a_sampled: int64 [C].
        a_lists, b_lists: Of these positions.
        decisions: With A as the behaviour policy. Whoever makes this sets them.
    """

    decisions: Decisions

    def __init__(self, pair: Pair, counts: np.ndarray) -> None:
        """counts: int64 [S], of each sequence."""
        self.pair = pair
        self.counts = counts
        self.starts = np.cumsum(counts) - counts
        self.sequences = np.repeat(np.arange(len(counts)), counts)
        self.positions = _ragged.places(np.zeros(len(counts), np.int64), counts)
        self.at_a, self.at_b = _ragged.places(pair.a.starts, counts), _ragged.places(pair.b.starts, counts)
        self.a_sampled = pair.a.sampled[self.at_a]
        self.a_lists, self.b_lists = pair.a.lists.take(self.at_a), pair.b.lists.take(self.at_b)

    def __len__(self) -> int:
        return len(self.sequences)

    def side(self, file: str) -> Tuple[Recording, np.ndarray, Lists]:
        """Returns the recording of "a" or "b", where the compared positions are in it, and their lists."""
        return (self.pair.a, self.at_a, self.a_lists) if file == "a" else (self.pair.b, self.at_b, self.b_lists)

    @functools.cached_property
    def has_lists(self) -> np.ndarray:
        return (self.a_lists.counts > 0) & (self.b_lists.counts > 0)

    @functools.cached_property
    def has_ratio(self) -> np.ndarray:
        return self.decisions.scored

    @functools.cached_property
    def deviations(self) -> np.ndarray:
        """abs(log w), nats; NaN without a ratio. Where the current policy finds the token impossible, it is 64."""
        return np.minimum(_LARGEST_DEVIATION, np.abs(self.decisions.log_ratios.astype(np.float64)))

    @functools.cached_property
    def a_in_b(self) -> np.ndarray:
        """Returns the indices of B's tokens for the tokens that A lists; -1 if B does not list them."""
        return self.b_lists.find(self.a_lists.rows, self.a_lists.ids)

    @functools.cached_property
    def b_in_a(self) -> np.ndarray:
        """Indices of A's tokens for the tokens that B lists, -1 if A does not list them."""
        found = np.full(len(self.b_lists.ids), -1)
        listed = np.flatnonzero(self.a_in_b >= 0)
        found[self.a_in_b[listed]] = listed
        return found

    @functools.cached_property
    def total_variations(self) -> np.ndarray:
        """Half the sum of abs(p - q) over the tokens that either lists; one that a list leaves out counts as
        impossible there. In [0, 1], except for rounding."""
        other = self.b_lists.probs_at(self.a_in_b)
        unlisted = np.where(self.b_in_a < 0, self.b_lists.probs, 0.0)
        return (self.a_lists.sums(np.abs(self.a_lists.probs - other)) + self.b_lists.sums(unlisted)) / 2

    @functools.cached_property
    def within_a(self) -> np.ndarray:
        """Returns True if B lists only tokens that A lists."""
        return self.b_lists.sums(self.b_in_a < 0) == 0

    @functools.cached_property
    def common(self) -> Tokens:
        """The tokens that both files list."""
        kept = self.a_in_b >= 0
        return self._tokens(self.a_lists, kept, self.a_lists.log_probs[kept], self.b_lists.log_probs[self.a_in_b[kept]])

    @functools.cached_property
    def only_a(self) -> Tokens:
        kept = self.a_in_b < 0
        return self._tokens(self.a_lists, kept, self.a_lists.log_probs[kept], np.full(int(kept.sum()), np.nan))

    @functools.cached_property
    def only_b(self) -> Tokens:
        kept = self.b_in_a < 0
        return self._tokens(self.b_lists, kept, np.full(int(kept.sum()), np.nan), self.b_lists.log_probs[kept])

    def _tokens(self, lists: Lists, kept: np.ndarray, a: np.ndarray, b: np.ndarray) -> Tokens:
        rows, ids = lists.rows[kept], lists.ids[kept]
        # First position of each sampled token in each sequence.
        keys, first = np.unique((self.sequences << 25) + self.a_sampled + 1, return_index=True)
        wanted = (self.sequences[rows] << 25) + ids + 1
        if len(keys):
            place = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
            seen = (keys[place] == wanted) & (first[place] < rows)
        else:
            seen = np.zeros(0, bool)
        return Tokens(rows, ids, seen, a.astype(np.float64), b.astype(np.float64))

    @functools.cached_property
    def centred(self) -> Tuple[np.ndarray, np.ndarray]:
        """Log-probs of `common`, A's and B's, each less its mean over the position: what is left does not depend on how
        either was normalised."""
        rows, counts = self.common.rows, np.maximum(1, self.in_common)

        def less_mean(column: np.ndarray) -> np.ndarray:
            return column - (np.bincount(rows, column, minlength=len(self)) / counts)[rows]

        return less_mean(self.common.a), less_mean(self.common.b)

    @functools.cached_property
    def in_common(self) -> np.ndarray:
        """int64 [C]. How many tokens both files list."""
        return np.bincount(self.common.rows, minlength=len(self))

    @functools.cached_property
    def noise(self) -> np.ndarray:
        """Root of the mean squared difference of listed log-probs, less their mean; NaN if fewer than three are in
        common. It does not depend on how certain the policy is there, as log w does."""
        a, b = self.centred
        squares = np.bincount(self.common.rows, (b - a) ** 2, minlength=len(self))
        return np.where(self.in_common >= 3, np.sqrt(squares / np.maximum(1, self.in_common)), np.nan)

    def shifted(self, by: int) -> Tuple[np.ndarray, np.ndarray]:
        """Returns the positions, and those `by` further on in the same sequence, where there are such."""
        here = np.arange(max(0, -by), max(0, min(len(self), len(self) - by)))
        here = here[self.sequences[here] == self.sequences[here + by]]
        return here, here + by

    @functools.cached_property
    def _cache(self) -> Dict[str, object]:
        return {}

    def cached(self, key: str, make: Callable[[], np.ndarray]) -> np.ndarray:
        """Returns an array of all positions that is made once."""
        if key not in self._cache:
            self._cache[key] = make()
        return self._cache[key]  # type: ignore[return-value]


@dataclass(frozen=True, eq=False)
class Part:
    """Some of the sequences of two recordings, which checks are asked about."""

    compared: Compared
    # int64, ascending.
    sequences: np.ndarray

    @staticmethod
    def whole(compared: Compared) -> Part:
        return Part(compared, np.arange(len(compared.counts)))

    def only(self, sequences: Sequence[int]) -> Part:
        """The sequences given, which ascend, alone."""
        return Part(self.compared, np.asarray(sequences, np.int64))

    def without(self, sequences: Sequence[int]) -> Part:
        return Part(self.compared, np.setdiff1d(self.sequences, np.asarray(sequences, np.int64)))

    @functools.cached_property
    def positions(self) -> np.ndarray:
        """int64. The indices of the compared positions."""
        return _ragged.places(self.compared.starts[self.sequences], self.compared.counts[self.sequences])

    @functools.cached_property
    def by_sequence(self) -> List[Tuple[int, slice]]:
        """Each sequence, and where its compared positions are among all."""
        starts = self.compared.starts[self.sequences].tolist()
        counts = self.compared.counts[self.sequences].tolist()
        return [
            (sequence, slice(start, start + count))
            for sequence, start, count in zip(self.sequences.tolist(), starts, counts)
        ]

    def tokens(self, rows: np.ndarray) -> np.ndarray:
        """Returns the indices of the tokens whose positions, ascending `rows`, are in this part."""
        starts = self.compared.starts[self.sequences]
        first = np.searchsorted(rows, starts)
        return _ragged.places(first, np.searchsorted(rows, starts + self.compared.counts[self.sequences]) - first)

    @functools.cached_property
    def is_gathered(self) -> bool:
        """Returns True if B lists only tokens that A lists, like a trainer that looks up recorded tokens. Tokens that B
        omits are then unknown, not improbable."""
        compared, at = self.compared, self.positions
        return bool((compared.b_lists.counts[at] > 0).any() and compared.within_a[at].all())
