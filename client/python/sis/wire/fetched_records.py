"""The answers of FetchTopK as records: blocks, from the bytes that arrived to arrays."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Dict, Iterable, List, NamedTuple, Sequence

import grpc
import numpy as np

from sis import blocks, errors
from sis.records import MissingRange, Slice, TopKRecords
from sis.v1 import ratio_service_pb2 as pb
from sis.wire.messages import read


class FetchedSlice(NamedTuple):
    """What the servers hold of one slice."""

    # With length and record digest.
    slice: Slice
    missing: Sequence[MissingRange]
    # Whole, or without their log-probs, by position. They may reach beyond the slice, share positions,
    # and hold some that are missing.
    blocks: Sequence[bytes]


class _Part(NamedTuple):
    """Rows of a block."""

    block: blocks.Block
    rows: slice
    # Where the rows stand among those of all slices.
    begin: int


def _wrong(what: str) -> errors.Error:
    """The server sent what its API does not allow."""
    return errors.from_status(grpc.StatusCode.DATA_LOSS, f"FetchTopK {what}")


def gathered(request: pb.FetchTopKRequest, responses: Iterable[pb.FetchTopKResponse]) -> List[FetchedSlice]:
    """The slices of the request. sis.Error (DATA_LOSS) if one is not in the stream."""
    found: Dict[int, List[pb.FetchedSlice]] = {}
    for response in responses:
        for entry in response.slices:
            found.setdefault(entry.slice, []).append(entry)
    if sorted(found) != list(range(len(request.slices))):
        raise _wrong(f"sent the slices {sorted(found)} of {len(request.slices)}")
    fetched = []
    for number, asked in enumerate(request.slices):
        *_, last = entries = found[number]
        digest = last.record_digest if last.HasField("record_digest") else None
        part = replace(Slice.from_proto(asked), length=last.length, record_digest=digest)
        missing = [read(MissingRange, one, slice=number) for entry in entries for one in entry.missing]
        fetched.append(FetchedSlice(part, missing, [data for entry in entries for data in entry.blocks]))
    return fetched


def _parts(number: int, fetched: FetchedSlice, start: int) -> List[_Part]:
    """Each recorded position of the slice once. start: Of the slice's rows."""
    first, end = fetched.slice.first_position, fetched.slice.first_position + fetched.slice.length
    gaps = [(gap.first_position, gap.first_position + gap.length) for gap in fetched.missing]
    made, cursor = [], first
    for data in fetched.blocks:
        try:
            block = blocks.Block(data)
        except ValueError as error:
            raise _wrong(f"sent slice {number} with a bad block: {error}") from error
        own = block.header.first_position
        begin, stop = max(cursor, own), min(end, own + block.header.positions)
        cursor = max(cursor, stop)
        for gap_begin, gap_end in [*gaps, (stop, stop)]:
            until = min(gap_begin, stop)
            if begin < until:
                rows = slice(begin - own, until - own)
                made.append(_Part(block, rows, start + begin - first))
            begin = max(begin, gap_end)
    recorded = sum(part.rows.stop - part.rows.start for part in made)
    if recorded + sum(gap_end - gap_begin for gap_begin, gap_end in gaps) != end - first:
        raise _wrong(f"sent slice {number} with {recorded} records and the gaps {gaps} of [{first}, {end})")
    return made


def assemble(fetched: Sequence[FetchedSlice], top_k: int, log_probs: bool) -> TopKRecords:
    """The records of all slices. sis.Error (DATA_LOSS) if they are not what the slices say.

    Args:
        top_k: K.
        log_probs: Whether they were fetched.
    """
    starts = [0, *itertools.accumulate(one.slice.length for one in fetched)]
    parts = [part for number, one in enumerate(fetched) for part in _parts(number, one, starts[number])]
    counts = np.zeros(starts[-1], np.uint8)
    sampled_ids = np.full(starts[-1], -1, np.int32)
    sampled_log_probs = np.full(starts[-1], np.nan, np.float32)
    used_ids, used_log_probs = [np.empty(0, np.int32)], [np.empty(0, np.float32)]
    for part in parts:
        rows = slice(part.begin, part.begin + part.rows.stop - part.rows.start)
        counts[rows] = part.block.counts[part.rows]
        sampled_log_probs[rows] = part.block.sampled_log_probs[part.rows]
        sampled_ids[rows] = part.block.sampled_ids(part.rows)
        slots = part.block.slots_of(part.rows)
        used_ids.append(part.block.ids(slots))
        if log_probs:
            used_log_probs.append(part.block.log_probs(slots))
    return TopKRecords(
        slices=tuple(one.slice for one in fetched),
        counts=counts,
        used_ids=np.concatenate(used_ids),
        sampled_ids=sampled_ids,
        sampled_log_probs=sampled_log_probs,
        fetched_log_probs=np.concatenate(used_log_probs) if log_probs else None,
        missing=tuple(missing._replace(slice=number) for number, one in enumerate(fetched) for missing in one.missing),
        top_k=top_k,
    )
