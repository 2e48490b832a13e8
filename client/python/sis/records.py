"""Ranges of positions, and what the service has recorded of them."""

from __future__ import annotations

import collections
import enum
import functools
from dataclasses import dataclass, replace
from typing import Iterable, List, Mapping, NamedTuple, Optional, Sequence, Tuple, TypeVar, Union

import numpy as np

from sis import ragged
from sis.v1 import ratio_service_pb2 as pb

_Element = TypeVar("_Element")


class SequenceRef(NamedTuple):
    """One attempt at one response. Wherever one is taken, a plain string stands for attempt 0."""

    id: str
    attempt: int = 0

    @staticmethod
    def of(sequence: SequenceLike) -> SequenceRef:
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
    length that the sequence is sealed at, or else the committed length."""

    sequence: str
    first_position: int = 0
    length: int = 0
    attempt: int = 0
    # Set by fetch_top_k, checked by evaluate: a change of the records in between is then an error.
    record_digest: Optional[int] = None

    def to_proto(self) -> pb.Slice:
        made = pb.Slice(
            first_position=self.first_position, length=self.length, record_digest=self.record_digest
        )
        # In half the time of a message that is made of another.
        made.sequence.id = self.sequence
        made.sequence.attempt = self.attempt
        return made

    @staticmethod
    def from_proto(part: pb.Slice) -> Slice:
        digest = part.record_digest if part.HasField("record_digest") else None
        return Slice(part.sequence.id, part.first_position, part.length, part.sequence.attempt, digest)


class MissingReason(enum.IntEnum):
    """Why a position has no record."""

    UNSPECIFIED = pb.MISSING_REASON_UNSPECIFIED
    NEVER_ARRIVED = pb.NEVER_ARRIVED
    EVICTED = pb.EVICTED
    EXPIRED = pb.EXPIRED
    STALE = pb.STALE
    RELEASED = pb.RELEASED
    STORE_DOWN = pb.STORE_DOWN
    CORRUPT = pb.CORRUPT
    INVALID_LOG_PROB = pb.INVALID_LOG_PROB


class MissingRange(NamedTuple):
    """The positions [first_position, first_position + length) of slice number `slice`, which have
    no record.

    Length 0, from fetch_top_k of a whole sequence: nothing of it is there, for this reason.
    """

    slice: int
    first_position: int
    length: int
    reason: MissingReason


@dataclass(frozen=True, eq=False)
class TopKRecords:
    """The behaviour policy's recorded top-K sets over the N positions of `slices`, slice by slice.

    A position without a record holds ids -1, log_probs -inf, sampled_ids -1 and sampled_log_probs
    NaN. An array that fetch_top_k was not asked for is an AttributeError that says so.

    Of a run with a mass target they are ragged: what was fetched are `used_ids` and `used_log_probs`,
    the S slots that are used, one position's after the other's, as `counts` says. `ids` and
    `log_probs` are made of them when they are first looked at.
    """

    # With lengths and record digests filled in.
    slices: Tuple[Slice, ...]
    # Those that were fetched. With "counts", uint16 [N], "ids" and "log_probs" are [S].
    arrays: Mapping[str, np.ndarray]
    missing: Tuple[MissingRange, ...]
    # Seconds for which the server keeps them after fetch_top_k and after each evaluate, at least.
    keep_seconds: float = 0.0
    # K; needed if they are ragged.
    top_k: int = 0
    # RunConfig.mass: between 0 and 1, a set that reaches it doesn't tell what else there was.
    mass: float = 0.0

    @functools.cached_property
    def ids(self) -> np.ndarray:
        """int32 [N, K]: V_K, most probable first. Unused slots are last, and hold -1."""
        return self._padded("ids", -1)

    @functools.cached_property
    def log_probs(self) -> np.ndarray:
        """float32 [N, K], nats. Unused slots hold -inf."""
        return self._padded("log_probs", -np.inf)

    @property
    def ragged(self) -> bool:
        """Whether what was fetched are the used slots alone."""
        return "counts" in self.arrays

    @functools.cached_property
    def counts(self) -> np.ndarray:
        """uint16 [N]: how many slots each position uses; 0 where there is no record."""
        if self.ragged:
            return self.arrays["counts"]
        used = self.ids >= 0 if "ids" in self.arrays else ~np.isneginf(self.log_probs)
        return used.sum(axis=1).astype(np.uint16)

    @functools.cached_property
    def offsets(self) -> np.ndarray:
        """int64 [N + 1]: position i has the used slots [offsets[i], offsets[i + 1])."""
        return np.concatenate([[0], np.cumsum(self.counts, dtype=np.int64)])

    @functools.cached_property
    def used_ids(self) -> np.ndarray:
        """int32 [S]: ids of the used slots, one position's after the other's."""
        return self._used("ids")

    @functools.cached_property
    def used_log_probs(self) -> np.ndarray:
        """float32 [S], nats, of the same."""
        return self._used("log_probs")

    def _padded(self, name: str, unused: float) -> np.ndarray:
        values = self._fetched(name)
        return ragged.widened(values, self.counts, self.top_k, unused) if self.ragged else values

    def _used(self, name: str) -> np.ndarray:
        values = self._fetched(name)
        return values if self.ragged else values[np.arange(values.shape[1]) < self.counts[:, None]]

    @property
    def sampled_ids(self) -> np.ndarray:
        """int32 [N]: the sampled tokens."""
        return self._fetched("sampled_ids")

    @property
    def sampled_log_probs(self) -> np.ndarray:
        """float32 [N], nats: the sampled tokens' behaviour log-probs, as recorded."""
        return self._fetched("sampled_log_probs")

    def _fetched(self, name: str) -> np.ndarray:
        if name not in self.arrays:
            raise AttributeError(f"{name} was not fetched: fetch_top_k was asked for {', '.join(self.arrays)}")
        return self.arrays[name]

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
        """Where slice number `index` stands in the arrays: `records.ids[records.rows(2)]` is [its
        length, K]."""
        return slice(int(self._starts[index]), int(self._starts[index]) + self.slices[index].length)

    @functools.cached_property
    def _starts(self) -> np.ndarray:
        return np.cumsum([0] + [part.length for part in self.slices])

    def select(self, indices: Sequence[int]) -> TopKRecords:
        """The records of these slices alone, in this order: a mini-batch, or one rank's share."""
        return self.cut([(index, 0, self.slices[index].length) for index in indices])

    def cut(self, parts: Sequence[Tuple[int, int, int]]) -> TopKRecords:
        """The records of parts of slices, in this order: of slice number `index` the `length` rows from
        row `first` of it on, each (index, first, length): what a rank of sequence parallelism holds.
        Part of a slice has no record digest, so that Evaluate doesn't check what was recorded of it.
        Parts that follow each other are views of the same arrays; others are copies.

        ValueError for a part that is empty or not within its slice.
        """
        missing_of = collections.defaultdict(list)
        for missing in self.missing:
            missing_of[missing.slice].append(missing)
        rows, slices, lacking = [], [], []
        for new, (index, first, length) in enumerate(parts):
            whole = self.slices[index]
            if (first, length) == (0, whole.length):
                rows.append(self.rows(index))
                slices.append(whole)
                lacking += [missing._replace(slice=new) for missing in missing_of[index]]
                continue
            if first < 0 or length < 1 or first + length > whole.length:
                raise ValueError(
                    f"part {new} has rows [{first}, {first + length}), must be within the {whole.length} of slice {index}"
                )
            start_of = int(self._starts[index]) + first
            rows.append(slice(start_of, start_of + length))
            begin = whole.first_position + first
            slices.append(replace(whole, first_position=begin, length=length, record_digest=None))
            for missing in missing_of[index]:
                start = max(missing.first_position, begin)
                stop = min(missing.first_position + missing.length, begin + length)
                if start < stop:
                    lacking.append(missing._replace(slice=new, first_position=start, length=stop - start))
        chosen = ragged.joined(rows)
        slots = ragged.slots_of(chosen, self.offsets) if self.ragged else chosen
        return TopKRecords(
            slices=tuple(slices),
            arrays={
                name: array[slots if name in ("ids", "log_probs") else chosen] for name, array in self.arrays.items()
            },
            missing=tuple(lacking),
            keep_seconds=self.keep_seconds,
            top_k=self.top_k,
            mass=self.mass,
        )
