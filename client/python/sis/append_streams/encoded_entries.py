"""Entries, checked and as bytes."""

from __future__ import annotations

import functools
import operator
from typing import Dict, Iterable, List, Optional, Sequence, Tuple

import grpc
import numpy as np

from sis import arrays, blocks, errors
from sis.arrays import ArrayLike
from sis.entries import AppendEntry, Block, Gap, Seal
from sis.records import SequenceRef
from sis.run import RunConfig
from sis.v1 import ratio_service_pb2 as pb
from sis.wire.fields import key

_KINDS: Dict[type, str] = {Block: "block", Gap: "gap", Seal: "seal"}


class Entry:
    """A checked one, until it is acked for good."""

    __slots__ = ("sequence", "kind", "first", "end", "parts", "size", "retry_until", "refusals", "answered")

    def __init__(self, sequence: SequenceRef, kind: str, first: int, end: int, data: bytes) -> None:
        """data: A record block, or a serialised gap or seal."""
        self.sequence = sequence
        # "block" or "gap" of [first, end), or "seal" at `end`.
        self.kind = kind
        self.first = first
        self.end = end
        # Its bytes in a batch; their sum.
        self.parts = (*_before(sequence, _NUMBERS[kind], len(data)), data)
        self.size = sum(map(len, self.parts))
        # Set by the first refusal for lack of room, on time.monotonic().
        self.retry_until: Optional[float] = None
        # For lack of room.
        self.refusals = 0
        # Acked, or refused for good.
        self.answered = False

    def refusal(self, code: grpc.StatusCode, message: str) -> errors.Refusal:
        if self.kind in ("block", "gap"):
            text = f"{self.kind} [{self.first}, {self.end})"
        else:
            text = f"{self.kind} at {self.end}"
        return errors.Refusal(self.sequence.id, self.sequence.attempt, text, code, message)


def checked(entry: AppendEntry, config: RunConfig) -> List[Entry]:
    """Returns one entry, or several for a block that is too long for one.

    Args:
        config: The run's.

    Raises:
        ValueError, TypeError: Shapes, types or values are wrong.
    """
    kind = _KINDS.get(type(entry))
    if kind is None:
        raise TypeError(f"{entry!r} is no sis.Block, sis.Gap or sis.Seal")
    if kind == "block":
        records = _records(entry, config)
        return [_packed(entry, *packed) for packed in zip(records, blocks.pack(records, config))]
    return [_checked_gap(entry) if kind == "gap" else _checked_seal(entry)]


def all_checked(entries: Iterable[AppendEntry], config: RunConfig) -> List[Entry]:
    """Says of the first that is wrong which it is. All blocks are packed at once."""
    listed = list(entries)
    made: List[List[Entry]] = []
    records: List[blocks.Records] = []
    # Of each of the records, the number of their entry.
    numbers: List[int] = []
    number = 0
    try:
        for number, entry in enumerate(listed):
            if type(entry) is Block:
                _named(entry.sequence, entry.attempt)
                own = _records(entry, config)
                records += own
                numbers += [number] * len(own)
                made.append([])
            else:
                made.append(checked(entry, config))
        packed = blocks.pack(records, config)
    except (TypeError, ValueError) as error:
        if isinstance(error, blocks.InvalidRecord):
            number = numbers[error.number]
        name = getattr(listed[number], "sequence", None)
        kind = ValueError if isinstance(error, ValueError) else TypeError
        raise kind(f"entries[{number}], sequence {name!r}: {error}") from error
    for number, part, data in zip(numbers, records, packed):
        made[number].append(_packed(listed[number], part, data))
    return [entry for own in made for entry in own]


_ENTRIES = pb.AppendBatch.ENTRIES_FIELD_NUMBER
_BATCH = pb.AppendRequest.BATCH_FIELD_NUMBER
_NUMBERS = {kind: pb.AppendEntry.DESCRIPTOR.fields_by_name[kind].number for kind in _KINDS.values()}
_INT32, _FLOAT32 = np.dtype("<i4"), np.dtype("<f4")


def _are_ready(
    ids: ArrayLike, log_probs: ArrayLike, top_k_ids: ArrayLike, top_k_log_probs: ArrayLike, top_k: int
) -> bool:
    """Whether `_converted` would return the same arrays; of short ones it takes half of all time to
    find that out array by array."""
    if not (type(ids) is type(log_probs) is type(top_k_ids) is type(top_k_log_probs) is np.ndarray):
        return False
    narrow, wide = ids.shape, (len(ids), top_k)
    return (
        len(narrow) == 1
        and log_probs.shape == narrow
        and top_k_ids.shape == top_k_log_probs.shape == wide
        and ids.dtype is top_k_ids.dtype is _INT32
        and log_probs.dtype is top_k_log_probs.dtype is _FLOAT32
        and ids.flags.c_contiguous
        and log_probs.flags.c_contiguous
        and top_k_ids.flags.c_contiguous
        and top_k_log_probs.flags.c_contiguous
    )


def _converted(
    ids: ArrayLike, log_probs: ArrayLike, top_k_ids: ArrayLike, top_k_log_probs: ArrayLike, top_k: int
) -> List[np.ndarray]:
    """Contiguous. ValueError if shapes or types are wrong."""
    sampled_ids = arrays.int32("sampled_ids", ids, [None])
    rows = len(sampled_ids)
    return [
        sampled_ids,
        arrays.float32("sampled_log_probs", log_probs, [rows]),
        arrays.int32("top_k_ids", top_k_ids, [rows, top_k]),
        arrays.float32("top_k_log_probs", top_k_log_probs, [rows, top_k]),
    ]


def _records(block: Block, config: RunConfig) -> List[blocks.Records]:
    """Each of as many as fit a block."""
    given = block[3:7]
    columns = given if _are_ready(*given, config.top_k) else _converted(*given, config.top_k)
    first = _in_range("first_position", block.first_position, 32)
    version = _in_range("policy_version", block.policy_version, 64)
    return blocks.split(blocks.Records(first, version, *columns), config)


def _packed(block: Block, records: blocks.Records, data: bytes) -> Entry:
    first = records.first_position
    return Entry(_named(block.sequence, block.attempt), "block", first, first + len(records.sampled_ids), data)


def _checked_gap(entry: Gap) -> Entry:
    name, first, length, reason, attempt = entry
    gap = pb.Gap(
        first_position=_in_range("first_position", first, 32),
        length=_in_range("length", length, 32),
        reason=_in_range("reason", reason, 31),
    )
    return Entry(_named(name, attempt), "gap", first, first + length, gap.SerializeToString())


def _checked_seal(entry: Seal) -> Entry:
    name, length, attempt, annotation = entry
    seal = pb.Seal(length=_in_range("length", length, 32))
    if annotation is not None:
        seal.annotation.CopyFrom(pb.Annotation(**annotation._asdict()))
    return Entry(_named(name, attempt), "seal", 0, length, seal.SerializeToString())


def _named(name: str, attempt: int) -> SequenceRef:
    str.encode(name)
    return SequenceRef(name, _in_range("attempt", attempt, 32))


@functools.lru_cache(1 << 12)
def _before(sequence: SequenceRef, number: int, size: int) -> Tuple[bytes, bytes]:
    """What comes before so many bytes in field `number` of an entry: the entry's own length, and the sequence."""
    named = pb.AppendEntry(sequence=pb.SequenceRef(id=sequence.id, attempt=sequence.attempt)).SerializeToString()
    named += key(number, size)
    return key(_ENTRIES, len(named) + size), named


def _in_range(field: str, value: int, bits: int) -> int:
    number = operator.index(value)
    if not 0 <= number < 1 << bits:
        raise ValueError(f"{field} is {number}, must be in [0, 2^{bits})")
    return number


def request(entries: Sequence[Entry]) -> bytes:
    """An AppendRequest of these."""
    size = sum(entry.size for entry in entries)
    return b"".join([key(_BATCH, size), *(part for entry in entries for part in entry.parts)])
