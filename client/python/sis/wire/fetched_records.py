"""The stream of a FetchTopK, from the bytes that arrived to arrays, with one copy on the way."""

from __future__ import annotations

import itertools
import math
import operator
from typing import Any, Callable, Dict, Iterable, Iterator, List, NamedTuple, Optional, Sequence, Tuple, Union

import grpc
import numpy as np

from sis import errors
from sis.evaluate.request import in_place
from sis.records import MissingRange, Slice, TopKRecords
from sis.v1 import ratio_service_pb2 as pb
from sis.wire.messages import read

_Bytes = Union[bytes, memoryview]

_VARINT = 0
_DELIMITED = 2
_FIELDS = pb.FetchTopKChunk.DESCRIPTOR.fields_by_number
_CHUNK_TAG = pb.FetchTopKResponse.CHUNK_FIELD_NUMBER << 3 | _DELIMITED


class Chunk(NamedTuple):
    """A FetchTopKChunk whose arrays lie in the message as gRPC received it."""

    slice: int = 0
    first_position: int = 0
    length: int = 0
    sampled_ids: _Bytes = b""
    sampled_log_probs: _Bytes = b""
    top_k_ids: _Bytes = b""
    top_k_log_probs: _Bytes = b""
    top_k_counts: _Bytes = b""


Message = Union[pb.FetchTopKHeader, Chunk]


# What asks for an array of TopKRecords, the field of a chunk that it comes in, and its dtype. By name, in
# the order of the fields.
_ARRAYS = {
    "sampled_ids": (pb.SAMPLED_IDS, "sampled_ids", np.int32),
    "sampled_log_probs": (pb.SAMPLED_LOG_PROBS, "sampled_log_probs", np.float32),
    "ids": (pb.TOP_K_IDS, "top_k_ids", np.int32),
    "log_probs": (pb.TOP_K_LOG_PROBS, "top_k_log_probs", np.float32),
}
_OF_SLOTS = ("ids", "log_probs")


def wanted(names: Sequence[str]) -> List[int]:
    """What a request says for arrays of TopKRecords. ValueError if one is unknown, or none is
    named."""
    unknown = [name for name in names if name not in _ARRAYS]
    if unknown:
        raise ValueError(f"array {unknown[0]!r} is none of {', '.join(_ARRAYS)}")
    if not names:
        raise ValueError(f"arrays names none of {', '.join(_ARRAYS)}")
    return [number for name, (number, _, _) in _ARRAYS.items() if name in names]


def parse(data: bytes) -> Message:
    """What a FetchTopKResponse holds. Protobuf would copy the arrays twice; it parses all but the
    usual chunk."""
    chunk = _parse_in_place(memoryview(data))
    if chunk is not None:
        return chunk
    message = pb.FetchTopKResponse.FromString(data)
    if message.WhichOneof("message") == "header":
        return message.header
    return Chunk(*(getattr(message.chunk, name) for name in Chunk._fields))


def _parse_in_place(data: memoryview) -> Optional[Chunk]:
    """None if the message is no chunk, or has anything in it that is not of a chunk."""
    fields: Dict[str, Any] = {}
    try:
        end, offset = _read_varint(data, 1)
        if data[0] != _CHUNK_TAG or offset + end != len(data):
            return None
        while offset < len(data):
            tag = data[offset]
            field = _FIELDS.get(tag >> 3)
            if field is None or field.name not in Chunk._fields:
                return None
            if tag & 7 != (_DELIMITED if field.type == field.TYPE_BYTES else _VARINT):
                return None
            value, offset = _read_varint(data, offset + 1)
            if tag & 7 == _VARINT:
                fields[field.name] = value
                continue
            fields[field.name] = data[offset : offset + value]
            offset += value
    except IndexError:
        return None
    return Chunk(**fields) if offset == len(data) else None


def _read_varint(data: memoryview, offset: int) -> Tuple[int, int]:
    """The value, and where the next field is. IndexError if it ends early, or is above 32 bits."""
    value = 0
    for shift in range(0, 35, 7):
        byte = data[offset]
        offset += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
    if byte >= 0x80 or value >= 1 << 32:
        raise IndexError
    return value, offset


def _wrong(what: str) -> errors.Error:
    """The server sent what its API does not allow."""
    return errors.from_status(grpc.StatusCode.DATA_LOSS, f"FetchTopK {what}")


class _Array(NamedTuple):
    """One that is fetched."""

    # In TopKRecords.arrays.
    name: str
    received: Callable[[Chunk], _Bytes]
    dtype: Any
    # The shape of one position.
    row: Tuple[int, ...] = ()
    # One value per slot that a position uses, instead of rows.
    ragged: bool = False

    @property
    def row_bytes(self) -> int:
        return np.dtype(self.dtype).itemsize * math.prod(self.row)


def _layout(request: pb.FetchTopKRequest, top_k: int) -> List[_Array]:
    """What a request is answered with."""
    asked = {name: array for name, array in _ARRAYS.items() if not request.arrays or array[0] in request.arrays}
    ragged = request.ragged and not asked.keys().isdisjoint(_OF_SLOTS)
    layout = []
    for name, (_, field, dtype) in asked.items():
        of_slots = name in _OF_SLOTS
        row = (top_k,) if of_slots and not ragged else ()
        layout.append(_Array(name, operator.attrgetter(field), dtype, row, of_slots and ragged))
    if ragged:
        layout.append(_Array("counts", operator.attrgetter("top_k_counts"), np.uint16))
    return layout


def _header(stream: Iterator[Message]) -> pb.FetchTopKHeader:
    header = next(stream, None)
    if not isinstance(header, pb.FetchTopKHeader):
        raise _wrong("did not start with a header")
    return header


def _records(header: pb.FetchTopKHeader, made: Iterable[Tuple[_Array, np.ndarray]]) -> TopKRecords:
    return TopKRecords(
        slices=tuple(map(Slice.from_proto, header.slices)),
        arrays={array.name: values for array, values in made},
        missing=tuple(read(MissingRange, missing) for missing in header.missing),
        top_k=header.top_k,
    )


def assemble(request: pb.FetchTopKRequest, messages: Iterable[Message]) -> TopKRecords:
    """The records of one FetchTopK stream. sis.Error (DATA_LOSS) if the chunks do not cover the slices in order."""
    stream = iter(messages)
    header = _header(stream)
    slices = header.slices
    starts = [0, *itertools.accumulate(part.length for part in slices)]
    total = starts[-1]
    made: Dict[_Array, np.ndarray] = {}
    # Of how many slots they are is known at the end.
    parts: Dict[_Array, List[np.ndarray]] = {}
    for array in _layout(request, header.top_k):
        if array.ragged:
            parts[array] = []
        else:
            made[array] = np.empty((total, *array.row), array.dtype)
    places = [(array, array.row_bytes, in_place(values)) for array, values in made.items()]
    counts = next((values for array, values in made.items() if array.name == "counts"), None)
    filled = 0
    for chunk in stream:
        if isinstance(chunk, pb.FetchTopKHeader):
            raise _wrong("sent a second header")
        offset = (
            starts[chunk.slice] + chunk.first_position - slices[chunk.slice].first_position
            if chunk.slice < len(slices)
            else -1
        )
        if offset != filled or filled + chunk.length > total:
            raise _wrong(f"sent slice {chunk.slice} from position {chunk.first_position} on out of order")
        for array, row_bytes, place in places:
            values = array.received(chunk)
            if len(values) != row_bytes * chunk.length:
                raise _wrong(f"sent {array.name} that hold {len(values)} bytes for {chunk.length} positions")
            place[row_bytes * filled : row_bytes * (filled + chunk.length)] = values
        for array, own in parts.items():
            slots = int(counts[filled : filled + chunk.length].sum())
            values = array.received(chunk)
            if len(values) != 4 * slots:
                raise _wrong(f"sent {array.name} that hold {len(values)} bytes for {slots} slots")
            own.append(np.frombuffer(values, array.dtype))
        filled += chunk.length
    if filled != total:
        raise _wrong(f"ended after {filled} of {total} positions")
    for array, own in parts.items():
        made[array] = np.concatenate(own or [np.empty(0, array.dtype)])
    return _records(header, made.items())
