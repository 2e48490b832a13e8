"""The stream of a FetchTopK, from the bytes that arrived to arrays, with one copy on the way."""

from __future__ import annotations

from typing import Dict, Iterable, Iterator, NamedTuple, Optional, Tuple, Union

import grpc
import numpy as np

from sis import errors
from sis.records import MissingRange, Slice, TopKRecords
from sis.segment import Room
from sis.v1 import ratio_service_pb2 as pb

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


Message = Union[pb.FetchTopKHeader, Chunk]


def parse(data: bytes) -> Message:
    """What a FetchTopKResponse holds. Protobuf would copy the arrays twice; it parses all but the usual chunk."""
    chunk = _parse_in_place(memoryview(data))
    if chunk is not None:
        return chunk
    message = pb.FetchTopKResponse.FromString(data)
    if message.WhichOneof("message") == "header":
        return message.header
    return Chunk(*(getattr(message.chunk, name) for name in Chunk._fields))


def _parse_in_place(data: memoryview) -> Optional[Chunk]:
    """None if the message is no chunk, or has anything in it that is not of a chunk."""
    fields: Dict[str, Union[int, memoryview]] = {}
    try:
        end, offset = _read_varint(data, 1)
        if data[0] != _CHUNK_TAG or offset + end != len(data):
            return None
        while offset < len(data):
            tag = data[offset]
            field = _FIELDS.get(tag >> 3)
            if field is None or tag & 7 != (_DELIMITED if field.type == field.TYPE_BYTES else _VARINT):
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


def _header(stream: Iterator[Message]) -> pb.FetchTopKHeader:
    header = next(stream, None)
    if not isinstance(header, pb.FetchTopKHeader):
        raise errors.from_status(grpc.StatusCode.DATA_LOSS, "FetchTopK did not start with a header")
    return header


def _flat(array: np.ndarray) -> memoryview:
    """The bytes of an array, to be written."""
    return memoryview(array.reshape(-1).view(np.uint8))


def assemble(messages: Iterable[Message]) -> TopKRecords:
    """The records of one FetchTopK stream. sis.Error (DATA_LOSS) if the chunks do not cover the slices in order."""
    stream = iter(messages)
    header = _header(stream)
    slices = tuple(Slice.from_proto(part) for part in header.slices)
    total, top_k = sum(part.length for part in slices), header.top_k
    records = TopKRecords(
        slices=slices,
        ids=np.empty((total, top_k), np.int32),
        log_probs=np.empty((total, top_k), np.float32),
        sampled_ids=np.empty(total, np.int32),
        sampled_log_probs=np.empty(total, np.float32),
        missing=tuple(MissingRange.from_proto(missing) for missing in header.missing),
        lease_id=header.lease_id,
    )
    arrays = (
        ("sampled_ids", 4, _flat(records.sampled_ids)),
        ("sampled_log_probs", 4, _flat(records.sampled_log_probs)),
        ("top_k_ids", 4 * top_k, _flat(records.ids)),
        ("top_k_log_probs", 4 * top_k, _flat(records.log_probs)),
    )
    starts = np.cumsum([0] + [part.length for part in slices]).tolist()
    filled = 0
    for chunk in stream:
        if isinstance(chunk, pb.FetchTopKHeader):
            raise errors.from_status(grpc.StatusCode.DATA_LOSS, "FetchTopK sent a second header")
        offset = (
            starts[chunk.slice] + chunk.first_position - slices[chunk.slice].first_position
            if chunk.slice < len(slices)
            else -1
        )
        if offset != filled or filled + chunk.length > starts[chunk.slice + 1]:
            raise errors.from_status(
                grpc.StatusCode.DATA_LOSS,
                f"FetchTopK sent slice {chunk.slice} from position {chunk.first_position} on out of order",
            )
        for name, row_bytes, array in arrays:
            values = getattr(chunk, name)
            if len(values) != row_bytes * chunk.length:
                raise errors.from_status(
                    grpc.StatusCode.DATA_LOSS,
                    f"FetchTopK's {name} holds {len(values)} bytes for {chunk.length} positions",
                )
            array[row_bytes * filled : row_bytes * (filled + chunk.length)] = values
        filled += chunk.length
    if filled != total:
        raise errors.from_status(
            grpc.StatusCode.DATA_LOSS, f"FetchTopK ended after {filled} of {total} positions"
        )
    return records


def assemble_in(room: Room, messages: Iterable[Message]) -> TopKRecords:
    """The same of a stream whose rows were put into a segment, where they stay."""
    stream = iter(messages)
    header = _header(stream)
    chunks = list(stream)
    slices = tuple(Slice.from_proto(part) for part in header.slices)
    total = sum(part.length for part in slices)
    if len(chunks) != 1 or isinstance(chunks[0], pb.FetchTopKHeader) or chunks[0].length != total:
        raise errors.from_status(grpc.StatusCode.DATA_LOSS, f"FetchTopK did not send one chunk of {total} positions")
    chunk = chunks[0]
    sampled_ids, sampled_log_probs, ids, log_probs = room.keep(
        [
            (chunk.sampled_ids, np.int32),
            (chunk.sampled_log_probs, np.float32),
            (chunk.top_k_ids, np.int32),
            (chunk.top_k_log_probs, np.float32),
        ]
    )
    return TopKRecords(
        slices=slices,
        ids=ids.reshape(total, header.top_k),
        log_probs=log_probs.reshape(total, header.top_k),
        sampled_ids=sampled_ids,
        sampled_log_probs=sampled_log_probs,
        missing=tuple(MissingRange.from_proto(missing) for missing in header.missing),
        lease_id=header.lease_id,
    )
