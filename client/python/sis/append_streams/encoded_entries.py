"""Entries, checked and as bytes."""

from __future__ import annotations

import functools
import operator
import struct
from typing import Any, Dict, Iterable, List, NamedTuple, Optional, Sequence, Tuple, Union

import grpc
import numpy as np

from sis import arrays, errors, ragged
from sis.arrays import ArrayLike
from sis.entries import AppendEntry, Block, Gap, Seal
from sis.records import SequenceRef
from sis.run import RunConfig
from sis.v1 import ratio_service_pb2 as pb
from sis.wire import checksum
from sis.wire.fields import key, varint

_KINDS: Dict[type, str] = {Block: "block", Gap: "gap", Seal: "seal"}

# What bytes are made of; arrays are contiguous.
Part = Union[bytes, np.ndarray]


class Entry:
    """A checked one, until it is acked for good."""

    __slots__ = (
        "sequence", "kind", "first", "end", "parts", "size", "retry_until", "refusals", "answered",
    )  # fmt: skip

    def __init__(
        self,
        sequence: SequenceRef,
        kind: str,
        first: int,
        end: int,
        parts: Sequence[Part],
        size: int,
    ) -> None:
        self.sequence = sequence
        # "block" or "gap" of [first, end), or "seal" at `end`.
        self.kind = kind
        self.first = first
        self.end = end
        # Its bytes in a batch, with the caller's own arrays among them; their sum.
        self.parts = parts
        self.size = size
        # Set by the first refusal for lack of room, on time.monotonic().
        self.retry_until: Optional[float] = None
        # For lack of room.
        self.refusals = 0
        # Acked, or refused for good.
        self.answered = False

    def copy_arrays(self) -> None:
        """From then on the caller may write to them."""
        self.parts = [b"".join(self.parts)]

    def refusal(self, code: grpc.StatusCode, message: str) -> errors.Refusal:
        if self.kind in ("block", "gap"):
            text = f"{self.kind} [{self.first}, {self.end})"
        else:
            text = f"{self.kind} at {self.end}"
        return errors.Refusal(self.sequence.id, self.sequence.attempt, text, code, message)


def checked(entry: AppendEntry, config: RunConfig) -> List[Entry]:
    """Returns one entry, or several for a block of more than MAX_BLOCK_BYTES. Arrays are sent ragged
    where the run's mass makes that shorter.

    Args:
        config: The run's.

    Raises:
        ValueError, TypeError: Shapes or types are wrong.
    """
    kind = _KINDS.get(type(entry))
    if kind is None:
        raise TypeError(f"{entry!r} is no sis.Block, sis.Gap or sis.Seal")
    if kind == "block":
        return _checked_block(entry, config)
    if kind == "gap":
        return [_checked_gap(entry)]
    name, length, attempt, *annotation = entry
    sequence, named = _named(name, attempt)
    data = named + _unsigned(_LENGTH, length)
    if any(annotation):
        said = pb.Annotation(**annotation[0]._asdict()).SerializeToString()
        data += key(_ANNOTATION, len(said)) + said
    data = _before(_NUMBERS[kind], len(data)) + data
    return [Entry(sequence, kind, 0, length, [data], len(data))]


def all_checked(entries: Iterable[AppendEntry], config: RunConfig) -> List[Entry]:
    """Says of the first that is wrong which it is."""
    made: List[Entry] = []
    number = 0
    try:
        for number, entry in enumerate(list(entries)):
            made += checked(entry, config)
    except (TypeError, ValueError) as error:
        name = getattr(entry, "sequence", None)
        kind = ValueError if isinstance(error, ValueError) else TypeError
        raise kind(f"entries[{number}], sequence {name!r}: {error}") from error
    return made


class _Field(NamedTuple):
    """Of a message. The descriptors themselves are slow to ask."""

    number: int
    name: str
    bits: int

    @staticmethod
    def of(message: Any, name: str) -> _Field:
        field = message.DESCRIPTOR.fields_by_name[name]
        return _Field(field.number, name, 32 if field.type == field.TYPE_UINT32 else 64)


_ENTRIES = _Field.of(pb.AppendBatch, "entries").number
_BATCH = _Field.of(pb.AppendRequest, "batch").number
_NUMBERS = {kind: _Field.of(pb.AppendEntry, kind).number for kind in _KINDS.values()}
# Of all kinds, which have the same number for it.
_SEQUENCE = _Field.of(pb.Block, "sequence").number
_ID = _Field.of(pb.SequenceRef, "id").number
_ATTEMPT = _Field.of(pb.SequenceRef, "attempt")
_LENGTH = _Field.of(pb.Seal, "length")
_ANNOTATION = _Field.of(pb.Seal, "annotation").number
_FIRST_POSITION = _Field.of(pb.Block, "first_position")
_GAP_FIRST = _Field.of(pb.Gap, "first_position")
_GAP_LENGTH = _Field.of(pb.Gap, "length")
_GAP_REASON = _Field.of(pb.Gap, "reason")._replace(bits=31)
_POLICY_VERSION = _Field.of(pb.Block, "policy_version")
_ARRAYS = [
    _Field.of(pb.Block, name).number
    for name in ("sampled_ids", "sampled_log_probs", "top_k_ids", "top_k_log_probs")
]
_COUNTS = _Field.of(pb.Block, "top_k_counts").number
_CRC32C = _Field.of(pb.Block, "crc32c").number << 3 | 5
_FIXED32 = struct.Struct("<BI")
_INT32, _FLOAT32 = np.dtype("<i4"), np.dtype("<f4")
# Maximum size of the arrays of a block, in bytes: a longer one is sent as several.
MAX_BLOCK_BYTES = 4 << 20
# Minimum size of a block's sets, in bytes, for which leaving slots out is faster than sending them.
_CUT_BYTES = 32 << 10


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


def _checked_block(block: Block, config: RunConfig) -> List[Entry]:
    top_k, mass = config.top_k, config.mass
    name, first, version, *given, attempt, counts = block
    columns: Sequence[np.ndarray]
    if counts is None:
        columns = given if _are_ready(*given, top_k) else _converted(*given, top_k)
    else:
        columns = ragged.converted(*given, counts, top_k)
        if not 0 < mass < 1:
            columns = ragged.padded(columns, top_k)
    rows = len(columns[0])
    sequence, named = _named(name, attempt)
    policy = _unsigned(_POLICY_VERSION, version)
    if counts is None and ragged.pays(config) and 8 * rows * top_k >= _CUT_BYTES:
        columns = ragged.cut(columns, mass)
    most = MAX_BLOCK_BYTES // (8 + 8 * top_k)
    pieces: Iterable[Sequence[np.ndarray]] = [columns]
    if rows > most:
        pieces = ragged.split(columns, [*range(most, rows, most), rows])
    made = []
    for piece in pieces:
        begin = named + _unsigned(_FIRST_POSITION, first) + policy
        crc = checksum.crc32c(piece)
        end = b"" if crc is None else _FIXED32.pack(_CRC32C, crc)
        parts, size = _block_parts(begin, piece, end)
        made.append(Entry(sequence, "block", first, first + len(piece[0]), parts, size))
        first += len(piece[0])
    return made


def _checked_gap(entry: Gap) -> Entry:
    name, first, length, reason, attempt = entry
    sequence, named = _named(name, attempt)
    data = named + _unsigned(_GAP_FIRST, first) + _unsigned(_GAP_LENGTH, length) + _unsigned(_GAP_REASON, reason)
    data = _before(_NUMBERS["gap"], len(data)) + data
    return Entry(sequence, "gap", first, first + length, [data], len(data))


def _block_parts(begin: bytes, values: Sequence[np.ndarray], end: bytes) -> Tuple[Sequence[Part], int]:
    """An entry's bytes, with its four arrays and perhaps counts; their sum."""
    a, b, c, d, *counts = values
    keys, size = _array_keys(a.nbytes, c.nbytes)
    rest: List[Part] = []
    if counts and counts[0].nbytes:
        # After the checksum, as protobuf writes them.
        rest = [key(_COUNTS, counts[0].nbytes), counts[0]]
        size += len(rest[0]) + counts[0].nbytes
    size += len(begin) + len(end)
    before = _before(_NUMBERS["block"], size)
    return [before + begin + keys[0], a, keys[1], b, keys[2], c, keys[3], d, end, *rest], len(before) + size


@functools.lru_cache(1 << 12, typed=True)
def _named(name: str, attempt: int) -> Tuple[SequenceRef, bytes]:
    """A sequence, and the field that names it."""
    data = str.encode(name)
    data = key(_ID, len(data)) + data if data else b""
    data += _unsigned(_ATTEMPT, attempt)
    return SequenceRef(name, attempt), key(_SEQUENCE, len(data)) + data


@functools.lru_cache(1 << 12)
def _before(number: int, size: int) -> bytes:
    """What comes before the bytes of an entry: the fields that hold them."""
    inner = key(number, size)
    return key(_ENTRIES, len(inner) + size) + inner


@functools.lru_cache(1 << 12)
def _array_keys(narrow: int, wide: int) -> Tuple[Sequence[bytes], int]:
    """What comes before each of the four arrays, of so many bytes; what they take, with these."""
    sizes = (narrow, narrow, wide, wide)
    keys = [key(number, size) if size else b"" for number, size in zip(_ARRAYS, sizes)]
    return keys, sum(sizes) + sum(map(len, keys))


@functools.lru_cache(1 << 12, typed=True)
def _unsigned(field: _Field, value: int) -> bytes:
    """Nothing for 0."""
    number = operator.index(value)
    if not 0 <= number < 1 << field.bits:
        raise ValueError(f"{field.name} is {number}, must be in [0, 2^{field.bits})")
    return varint(field.number << 3) + varint(number) if number else b""


def request(entries: Sequence[Entry]) -> Tuple[bytes, int]:
    """An AppendRequest of these; where its entries begin."""
    size = 0
    parts: List[Part] = [b""]
    for entry in entries:
        size += entry.size
        parts += entry.parts
    parts[0] = key(_BATCH, size)
    return b"".join(parts), len(parts[0])
