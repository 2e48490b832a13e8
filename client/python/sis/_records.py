"""Ranges of positions, and what the service has recorded of them."""

from __future__ import annotations

import collections
import enum
import functools
from dataclasses import dataclass, replace
from typing import Iterable, List, NamedTuple, Optional, Sequence, Tuple, TypeVar, Union

import numpy as np

from sis import _ragged
from sis.v1 import ratio_service_pb2 as pb

_Element = TypeVar("_Element")


class SequenceRef(NamedTuple):
    """One attempt at one response. Wherever one is taken, a plain string stands for attempt 0.

    Attributes:
        id: Id of the sequence.
        attempt: Number of the attempt.
    """

    id: str
    attempt: int = 0

    @property
    def name(self) -> str:
        """The id for people, with the attempt if it is not the first."""
        return self.id if self.attempt == 0 else f"{self.id} attempt {self.attempt}"

    @staticmethod
    def of(sequence: SequenceLike) -> SequenceRef:
        """Returns the reference of a name, or of a name and an attempt.

        Args:
            sequence: The name, the reference, or the pair.

        Returns:
            The reference.
        """
        return SequenceRef(sequence) if isinstance(sequence, str) else SequenceRef(*sequence)

    def to_proto(self) -> pb.SequenceRef:
        return pb.SequenceRef(id=self.id, attempt=self.attempt)


SequenceLike = Union[str, SequenceRef, Tuple[str, int]]


def listed(name: str, values: Iterable[_Element]) -> List[_Element]:
    """`values` as a list. ValueError for one string or reference, which would be taken to
    pieces."""
    if isinstance(values, (str, bytes, SequenceRef)):
        raise ValueError(f"{name} is {values!r}, must be a list: [{values!r}]")
    return list(values)


@dataclass(frozen=True)
class Slice:
    """The positions [first_position, first_position + length) of one sequence. Length 0: up to the
    length that the sequence is sealed at, or else the committed length.

    Attributes:
        sequence: Id of the sequence.
        first_position: The first position.
        length: Number of positions; 0: all.
        attempt: Number of the attempt.
        record_digest: Set by fetch_top_k, checked by evaluate: a change of the records in between is then an error.
    """

    sequence: str
    first_position: int = 0
    length: int = 0
    attempt: int = 0
    record_digest: Optional[int] = None

    def to_proto(self) -> pb.Slice:
        made = pb.Slice(first_position=self.first_position, length=self.length, record_digest=self.record_digest)
        # In half the time of a message that is made of another.
        made.sequence.id = self.sequence
        made.sequence.attempt = self.attempt
        return made

    @staticmethod
    def from_proto(part: pb.Slice) -> Slice:
        digest = part.record_digest if part.HasField("record_digest") else None
        return Slice(part.sequence.id, part.first_position, part.length, part.sequence.attempt, digest)


class MissingReason(enum.IntEnum):
    """Why a position has no record.

    Attributes:
        UNSPECIFIED: Not given.
        NEVER_ARRIVED: No worker has sent it.
        EVICTED: The server needed its space.
        EXPIRED: The run's time to live has passed.
        STALE: It is older than the run's max_staleness.
        RELEASED: A trainer released it.
        STORE_DOWN: Its replica or store is unreachable.
        CORRUPT: Its bytes in the store are damaged.
        INVALID_LOG_PROB: The engine's log-probs are no valid record.
        NO_LOG_PROB: The engine returned no log-prob.
        INFINITE_LOG_PROB: The engine returned an infinite log-prob.
        UNKNOWN_VERSION: The version of its weights is unknown.
    """

    UNSPECIFIED = pb.MISSING_REASON_UNSPECIFIED
    NEVER_ARRIVED = pb.MISSING_REASON_NEVER_ARRIVED
    EVICTED = pb.MISSING_REASON_EVICTED
    EXPIRED = pb.MISSING_REASON_EXPIRED
    STALE = pb.MISSING_REASON_STALE
    RELEASED = pb.MISSING_REASON_RELEASED
    STORE_DOWN = pb.MISSING_REASON_STORE_DOWN
    CORRUPT = pb.MISSING_REASON_CORRUPT
    INVALID_LOG_PROB = pb.MISSING_REASON_INVALID_LOG_PROB
    NO_LOG_PROB = pb.MISSING_REASON_NO_LOG_PROB
    INFINITE_LOG_PROB = pb.MISSING_REASON_INFINITE_LOG_PROB
    UNKNOWN_VERSION = pb.MISSING_REASON_UNKNOWN_VERSION


class MissingRange(NamedTuple):
    """The positions [first_position, first_position + length) of slice number `slice`, which have
    no record.

    Length 0, from fetch_top_k of a whole sequence: nothing of it is there, for this reason.

    Attributes:
        slice: Number of the slice.
        first_position: The first position.
        length: Number of positions.
        reason: Why they have no record.
    """

    slice: int
    first_position: int
    length: int
    reason: MissingReason


@dataclass(frozen=True, eq=False)
class TopKRecords:
    """The behaviour policy's recorded top-K sets over the N positions of `slices`, slice by slice.

    Arrays with S elements hold the used slots, position after position; `counts` is their number per position. `ids` and
    `log_probs` are made when they are first read. A position without a record has no slots, the sampled id -1 and the
    sampled log-prob NaN.

    Attributes:
        slices: With lengths and record digests filled in.
        counts: uint8 [N]: how many slots each position uses; 0 where there is no record.
        used_ids: int32 [S]: their ids.
        sampled_ids: int32 [N]: the sampled tokens.
        sampled_log_probs: float32 [N], nats: the sampled tokens' behaviour log-probs, as recorded.
        fetched_log_probs: float32 [S], nats: the behaviour log-probs of the used slots; None if they were not fetched.
        missing: Ranges without a record.
        top_k: K.
        keep_seconds: Seconds for which the server keeps them after fetch_top_k and after each evaluate, at least.
        mass: RunConfig.mass: between 0 and 1, a set that reaches it doesn't tell what else there was.
    """

    slices: Tuple[Slice, ...]
    counts: np.ndarray
    used_ids: np.ndarray
    sampled_ids: np.ndarray
    sampled_log_probs: np.ndarray
    fetched_log_probs: Optional[np.ndarray] = None
    missing: Tuple[MissingRange, ...] = ()
    top_k: int = 0
    keep_seconds: float = 0.0
    mass: float = 0.0

    @staticmethod
    def of_rows(
        slices: Sequence[Slice],
        ids: np.ndarray,
        sampled_ids: np.ndarray,
        log_probs: Optional[np.ndarray] = None,
        sampled_log_probs: Optional[np.ndarray] = None,
    ) -> TopKRecords:
        """Makes records of sets [N, K].

        Args:
            slices: The slices.
            ids: int32 [N, K]; unused slots are last, and hold -1.
            sampled_ids: int32 [N].
            log_probs: float32 [N, K], nats; None: not known.
            sampled_log_probs: float32 [N], nats; None: not known.

        Returns:
            The records.
        """
        used = ids >= 0
        if sampled_log_probs is None:
            sampled_log_probs = np.full(len(ids), np.nan, np.float32)
        return TopKRecords(
            slices=tuple(slices),
            counts=used.sum(axis=1).astype(np.uint8),
            used_ids=ids[used],
            sampled_ids=sampled_ids,
            sampled_log_probs=sampled_log_probs,
            fetched_log_probs=None if log_probs is None else log_probs[used],
            top_k=ids.shape[1],
        )

    @functools.cached_property
    def ids(self) -> np.ndarray:
        """int32 [N, K]: V_K, most probable first. Unused slots are last, and hold -1."""
        return _ragged.widened(self.used_ids, self.counts, self.top_k, -1)

    @functools.cached_property
    def log_probs(self) -> np.ndarray:
        """float32 [N, K], nats. Unused slots hold -inf."""
        return _ragged.widened(self.used_log_probs, self.counts, self.top_k, -np.inf)

    @property
    def used_log_probs(self) -> np.ndarray:
        """float32 [S], nats: the behaviour log-probs that decisions are made with. AttributeError if
        they were not fetched."""
        if self.fetched_log_probs is None:
            raise AttributeError("log_probs were not fetched: fetch_top_k was called with log_probs=False")
        return self.fetched_log_probs

    @functools.cached_property
    def offsets(self) -> np.ndarray:
        """int64 [N + 1]: position i has the used slots [offsets[i], offsets[i + 1])."""
        return _ragged.offsets(self.counts)

    def __len__(self) -> int:
        """N, the number of positions."""
        return int(self._starts[-1])

    @property
    def present(self) -> np.ndarray:
        """bool [N]: which positions have a record."""
        present = np.ones(len(self), bool)
        for missing in self.missing:
            first = self._starts[missing.slice] + missing.first_position - self.slices[missing.slice].first_position
            present[first : first + missing.length] = False
        return present

    def rows(self, index: int) -> slice:
        """Returns where a slice stands in the arrays: `records.ids[records.rows(2)]` is [its length, K].

        Args:
            index: Number of the slice.

        Returns:
            The rows.
        """
        return slice(int(self._starts[index]), int(self._starts[index]) + self.slices[index].length)

    @functools.cached_property
    def _starts(self) -> np.ndarray:
        return np.cumsum([0] + [part.length for part in self.slices])

    def select(self, indices: Sequence[int]) -> TopKRecords:
        """Returns the records of some slices: a mini-batch, or one rank's share.

        Args:
            indices: Numbers of the slices, in the new order.

        Returns:
            The records.
        """
        return self.cut([(index, 0, self.slices[index].length) for index in indices])

    def cut(self, parts: Sequence[Tuple[int, int, int]]) -> TopKRecords:
        """Returns the records of parts of slices, as a rank of sequence parallelism holds them.

        Part of a slice has no record digest, so that Evaluate doesn't check what was recorded of it. Parts that follow
        each other are views of the same arrays; others are copies.

        Args:
            parts: The parts in the new order: number of the slice, first row in it, and number of rows.

        Returns:
            The records.

        Raises:
            ValueError: A part is empty, or not within its slice.
        """
        missing_of = collections.defaultdict(list)
        for missing in self.missing:
            missing_of[missing.slice].append(missing)
        rows, slices, lacking = [], [], []
        for new, (index, first, length) in enumerate(parts):
            whole = self.slices[index]
            is_whole = (first, length) == (0, whole.length)
            if not is_whole and (first < 0 or length < 1 or first + length > whole.length):
                raise ValueError(
                    f"part {new} has rows [{first}, {first + length}), must be within the {whole.length} of slice {index}"
                )
            start_of = int(self._starts[index]) + first
            rows.append(slice(start_of, start_of + length))
            begin = whole.first_position + first
            digest = whole.record_digest if is_whole else None
            slices.append(replace(whole, first_position=begin, length=length, record_digest=digest))
            for missing in missing_of[index]:
                start = max(missing.first_position, begin)
                stop = min(missing.first_position + missing.length, begin + length)
                if is_whole or start < stop:
                    lacking.append(missing._replace(slice=new, first_position=start, length=stop - start))
        chosen = _ragged.joined(rows)
        slots = _ragged.slots_of(chosen, self.offsets)
        return replace(
            self,
            slices=tuple(slices),
            counts=self.counts[chosen],
            used_ids=self.used_ids[slots],
            sampled_ids=self.sampled_ids[chosen],
            sampled_log_probs=self.sampled_log_probs[chosen],
            fetched_log_probs=None if self.fetched_log_probs is None else self.fetched_log_probs[slots],
            missing=tuple(lacking),
        )
