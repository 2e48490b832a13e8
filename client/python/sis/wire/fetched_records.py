"""The stream of a FetchTopK, from the bytes that arrived to arrays, with one copy on the way."""

from __future__ import annotations

from typing import Any, Dict, Iterable, Iterator, List, NamedTuple, Optional, Sequence, Tuple, Union

import grpc
import numpy as np

from sis import errors
from sis.evaluate.request import in_place
from sis.records import MissingRange, Slice, TopKRecords
from sis.segment import Room
from sis.v1 import ratio_service_pb2 as pb
from sis.wire.columns import FetchedColumns

_Bytes = Union[bytes, memoryview]

_VARINT = 0
_DELIMITED = 2
_FIELDS = pb.FetchTopKChunk.DESCRIPTOR.fields_by_number
_REPEATED = ("columns", "column_presence")
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
    columns: Sequence[_Bytes] = ()
    column_presence: Sequence[_Bytes] = ()


Message = Union[pb.FetchTopKHeader, Chunk]


class _Array(NamedTuple):
    """One of TopKRecords: what asks for it, the field of a chunk that it comes in, and what it
    holds."""

    wanted: int
    field: str
    dtype: Any
    # [N, K], or ragged; else [N].
    wide: bool

    def shape(self, positions: int, top_k: int) -> Tuple[int, ...]:
        return (positions, top_k) if self.wide else (positions,)

    def row_bytes(self, top_k: int) -> int:
        return np.dtype(self.dtype).itemsize * (top_k if self.wide else 1)


# By name, in the order of the fields.
_ARRAYS = {
    "sampled_ids": _Array(pb.SAMPLED_IDS, "sampled_ids", np.int32, False),
    "sampled_log_probs": _Array(pb.SAMPLED_LOG_PROBS, "sampled_log_probs", np.float32, False),
    "ids": _Array(pb.TOP_K_IDS, "top_k_ids", np.int32, True),
    "log_probs": _Array(pb.TOP_K_LOG_PROBS, "top_k_log_probs", np.float32, True),
}
_COUNTS = _Array(pb.RECORD_ARRAY_UNSPECIFIED, "top_k_counts", np.uint16, False)


def wanted(names: Sequence[str]) -> List[int]:
    """What a request says for arrays of TopKRecords. ValueError if one is unknown, or none is
    named."""
    unknown = [name for name in names if name not in _ARRAYS]
    if unknown:
        raise ValueError(f"array {unknown[0]!r} is none of {', '.join(_ARRAYS)}")
    if not names:
        raise ValueError(f"arrays names none of {', '.join(_ARRAYS)}")
    return [array.wanted for name, array in _ARRAYS.items() if name in names]


def _fetched(request: pb.FetchTopKRequest) -> Dict[str, _Array]:
    fetched = {name: array for name, array in _ARRAYS.items() if not request.arrays or array.wanted in request.arrays}
    ragged = request.ragged and any(array.wide for array in fetched.values())
    return {**fetched, "counts": _COUNTS} if ragged else fetched


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
            part = data[offset : offset + value]
            if field.name in _REPEATED:
                fields.setdefault(field.name, []).append(part)
            else:
                fields[field.name] = part
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


def _header(stream: Iterator[Message]) -> pb.FetchTopKHeader:
    header = next(stream, None)
    if not isinstance(header, pb.FetchTopKHeader):
        raise _wrong("did not start with a header")
    return header


def _records(
    header: pb.FetchTopKHeader,
    slices: Tuple[Slice, ...],
    arrays: Dict[str, np.ndarray],
    columns: Optional[FetchedColumns] = None,
    values: Sequence[np.ndarray] = (),
    present: Sequence[np.ndarray] = (),
) -> TopKRecords:
    return TopKRecords(
        slices=slices,
        arrays=arrays,
        missing=tuple(MissingRange.from_proto(missing) for missing in header.missing),
        lease_id=header.lease_id,
        columns={} if columns is None else columns.shaped(values),
        column_presence={} if columns is None else columns.present(present),
        top_k=header.top_k,
    )


def assemble(
    request: pb.FetchTopKRequest, messages: Iterable[Message], columns: Optional[FetchedColumns] = None
) -> TopKRecords:
    """The records of one FetchTopK stream, with `columns` if the request asks for some. sis.Error
    (DATA_LOSS) if the chunks do not cover the slices in order."""
    stream = iter(messages)
    header = _header(stream)
    slices = tuple(Slice.from_proto(part) for part in header.slices)
    total = sum(part.length for part in slices)
    arrays = {}
    places = []
    fetched = _fetched(request)
    ragged = "counts" in fetched
    # Of how many slots they are is known at the end.
    parts: Dict[str, List[np.ndarray]] = {name: [] for name, array in fetched.items() if ragged and array.wide}
    for name, array in fetched.items():
        if name not in parts:
            arrays[name] = np.empty(array.shape(total, header.top_k), array.dtype)
            places.append((array.field, array.row_bytes(header.top_k), in_place(arrays[name])))
    widths = [] if columns is None else columns.widths
    values_of = [np.zeros(total * width, np.uint8) for width in widths]
    present_of = [np.zeros(total, np.uint8) for _ in widths]
    starts = np.cumsum([0] + [part.length for part in slices]).tolist()
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
        for field, row_bytes, place in places:
            values = getattr(chunk, field)
            if len(values) != row_bytes * chunk.length:
                raise _wrong(f"sent a {field} that holds {len(values)} bytes for {chunk.length} positions")
            place[row_bytes * filled : row_bytes * (filled + chunk.length)] = values
        for name, own in parts.items():
            field, slots = fetched[name].field, int(arrays["counts"][filled : filled + chunk.length].sum())
            values = getattr(chunk, field)
            if len(values) != 4 * slots:
                raise _wrong(f"sent a {field} that holds {len(values)} bytes for {slots} slots")
            own.append(np.frombuffer(values, fetched[name].dtype))
        for field, places_of, row_bytes_of in (
            ("columns", values_of, widths), ("column_presence", present_of, [1] * len(widths))
        ):  # fmt: skip
            received = getattr(chunk, field)
            if len(received) != len(widths):
                raise _wrong(f"sent {len(received)} {field}, not {len(widths)}")
            for values, array, row_bytes in zip(received, places_of, row_bytes_of):
                if len(values) == row_bytes * chunk.length:
                    in_place(array)[row_bytes * filled : row_bytes * (filled + chunk.length)] = values
                # Of a server that gave no answer there are none.
                elif len(values) or field != "columns":
                    raise _wrong(f"sent {field} that hold {len(values)} bytes for {chunk.length} positions")
        filled += chunk.length
    if filled != total:
        raise _wrong(f"ended after {filled} of {total} positions")
    for name, own in parts.items():
        arrays[name] = np.concatenate(own or [np.empty(0, fetched[name].dtype)])
    return _records(header, slices, arrays, columns, values_of, present_of)


def assemble_in(
    room: Room,
    request: pb.FetchTopKRequest,
    messages: Iterable[Message],
    columns: Optional[FetchedColumns] = None,
) -> TopKRecords:
    """The same of a stream whose rows were put into a segment, where they stay."""
    stream = iter(messages)
    header = _header(stream)
    chunks = list(stream)
    slices = tuple(Slice.from_proto(part) for part in header.slices)
    total = sum(part.length for part in slices)
    if len(chunks) != 1 or isinstance(chunks[0], pb.FetchTopKHeader) or chunks[0].length != total:
        raise _wrong(f"did not send one chunk of {total} positions")
    fetched = _fetched(request)
    more = [*chunks[0].columns, *chunks[0].column_presence]
    wanted_columns = 0 if columns is None else len(columns.widths)
    if len(more) != 2 * wanted_columns:
        raise _wrong(f"sent {len(more)} arrays of columns, not {2 * wanted_columns}")
    kept = room.keep(
        [(getattr(chunks[0], array.field), array.dtype) for array in fetched.values()]
        + [(part, np.uint8) for part in more]
    )
    ragged = "counts" in fetched
    arrays = {
        name: values if ragged and array.wide else values.reshape(array.shape(total, header.top_k))
        for (name, array), values in zip(fetched.items(), kept)
    }
    values_of, present_of = kept[len(fetched) :][:wanted_columns], kept[len(fetched) + wanted_columns :]
    return _records(header, slices, arrays, columns, values_of, present_of)
