"""Checks entries, and encodes them as messages."""

from __future__ import annotations

import functools
import operator
from typing import Dict, Iterable, Iterator, List, Optional, Sequence

import grpc

from sis import _arrays, _blocks, _errors
from sis._entries import AppendEntry, Block, Gap, Seal
from sis._records import SequenceRef
from sis._run import RunConfig
from sis.v1 import ratio_service_pb2 as pb
from sis._wire import fields


# Slots of the blocks that are packed together, about 1 MB of packed bytes.
_GROUP_SLOTS = 1 << 18
# A set that is cut counts as so many slots.
_CUT_SLOTS = 10


class Entry:
    """A checked entry, until it is acked or refused."""

    __slots__ = ("sequence", "first", "end", "kind", "parts", "size", "retry_until", "refusals", "answered")

    def __init__(self, sequence: SequenceRef, first: int, end: int, kind: str, content: _blocks.Bytes) -> None:
        """content: The block or gap of [first, end), or the seal at `end`: the field `kind` of the message."""
        self.sequence = sequence
        self.first = first
        self.end = end
        self.kind = kind
        # The message's bytes. A block is part of a message that is sent, without a copy in between.
        self.parts = (_reference(sequence) + fields.prefix(pb.AppendEntry.DESCRIPTOR, kind, len(content)), content)
        self.size = sum(map(len, self.parts))
        # Set by the first refusal for lack of room, on time.monotonic().
        self.retry_until: Optional[float] = None
        # Number of refusals for lack of room.
        self.refusals = 0
        # True once the entry is acked, or refused for another reason.
        self.answered = False

    def refusal(self, code: grpc.StatusCode, message: str) -> _errors.Refusal:
        text = f"seal at {self.end}" if self.kind == "seal" else f"{self.kind} [{self.first}, {self.end})"
        return _errors.Refusal(self.sequence.id, self.sequence.attempt, text, code, message)


@functools.lru_cache(maxsize=1024)
def _reference(sequence: SequenceRef) -> bytes:
    """Returns the field `sequence` of an AppendEntry."""
    return pb.AppendEntry(sequence=sequence.to_proto()).SerializeToString()


def append_request(batch: Sequence[Entry]) -> bytes:
    """Returns the AppendRequest with these entries, in its bytes."""
    parts: List[_blocks.Bytes] = []
    for entry in batch:
        parts += (fields.prefix(pb.AppendBatch.DESCRIPTOR, "entries", entry.size), *entry.parts)
    return b"".join([fields.prefix(pb.AppendRequest.DESCRIPTOR, "batch", sum(map(len, parts))), *parts])


def checked(entries: Iterable[AppendEntry], config: RunConfig) -> List[Entry]:
    """Returns the entries in order, several for a block that is too long for one.

    Args:
        config: The run's.

    Raises:
        ValueError, TypeError: Shapes, types or values of an entry are wrong; the text names the first such
            entry.
    """
    return [entry for group in in_groups(entries, config) for entry in group]


def in_groups(entries: Iterable[AppendEntry], config: RunConfig) -> Iterator[List[Entry]]:
    """Yields the entries of `checked` in lists. Packs a list only when it is asked for, while the server works on the
    list before. An error leaves earlier lists valid."""
    listed = list(entries)
    made: List[List[Entry]] = []
    records: List[_blocks.Records] = []
    # By record: the index of its entry in `made`. And the entries' names by this index.
    numbers: List[int] = []
    names: Dict[int, SequenceRef] = {}
    slots = 0
    slots_of_set = min(config.top_k, _CUT_SLOTS) if 0 < config.mass < 1 else config.top_k
    begin = number = 0
    for number, entry in enumerate(listed):
        try:
            made.append([])
            if type(entry) is Block:
                names[number - begin] = _named(entry)
                own = _records(entry, config)
                records += own
                numbers += [number - begin] * len(own)
                slots += sum(len(each.ids) for each in own) * slots_of_set
            elif type(entry) is Gap:
                made[-1].append(_checked_gap(entry))
            elif type(entry) is Seal:
                made[-1].append(_checked_seal(entry))
            else:
                raise TypeError(f"{entry!r} is no sis.Block, sis.Gap or sis.Seal")
            if slots < _GROUP_SLOTS and number + 1 < len(listed):
                continue
            packed = _blocks.pack(records, config)
        except (TypeError, ValueError) as error:
            if isinstance(error, _blocks.Invalid):
                number = begin + numbers[error.number]
            where = f"entries[{number}], " if len(listed) > 1 else ""
            name = getattr(listed[number], "sequence", None)
            kind = ValueError if isinstance(error, ValueError) else TypeError
            raise kind(f"{where}sequence {name!r}: {error}") from error
        for index, part, data in zip(numbers, records, packed):
            first = part.first_position
            made[index].append(Entry(names[index], first, first + len(part.sampled_ids), "block", data))
        yield [entry for own in made for entry in own]
        made, records, numbers, names, slots, begin = [], [], [], {}, 0, number + 1


def _records(block: Block, config: RunConfig) -> List[_blocks.Records]:
    """Returns parts of the block, each of at most as many positions as fit a record block."""
    sampled_ids = _arrays.int32("sampled_ids", block.sampled_ids, (None,))
    rows = len(sampled_ids)
    records = _blocks.Records(
        _in_range("first_position", block.first_position, 32),
        _in_range("policy_version", block.policy_version, 64),
        sampled_ids,
        _arrays.float32("sampled_log_probs", block.sampled_log_probs, (rows,)),
        _arrays.int32("top_k_ids", block.top_k_ids, (rows, config.top_k)),
        _arrays.float32("top_k_log_probs", block.top_k_log_probs, (rows, config.top_k)),
    )
    return _blocks.split(records, config)


def _checked_gap(entry: Gap) -> Entry:
    first = _in_range("first_position", entry.first_position, 32)
    length = _in_range("length", entry.length, 32)
    gap = pb.Gap(first_position=first, length=length, reason=_in_range("reason", entry.reason, 31))
    return Entry(_named(entry), first, first + length, "gap", gap.SerializeToString())


def _checked_seal(entry: Seal) -> Entry:
    length = _in_range("length", entry.length, 32)
    annotation = None if entry.annotation is None else pb.Annotation(**entry.annotation._asdict())
    seal = pb.Seal(length=length, annotation=annotation)
    return Entry(_named(entry), 0, length, "seal", seal.SerializeToString())


def _named(entry: AppendEntry) -> SequenceRef:
    str.encode(entry.sequence)
    return SequenceRef(entry.sequence, _in_range("attempt", entry.attempt, 32))


def _in_range(field: str, value: int, bits: int) -> int:
    number = operator.index(value)
    if not 0 <= number < 1 << bits:
        raise ValueError(f"{field} is {number}, must be in [0, 2^{bits})")
    return number
