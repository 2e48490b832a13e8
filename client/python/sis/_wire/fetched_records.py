"""Converts the answers of FetchTopK to records: blocks to arrays."""

from __future__ import annotations

import bisect
import itertools
from typing import Dict, Iterable, List, NamedTuple, Sequence

import grpc

from sis import _blocks, _errors
from sis._records import MissingRange, Slice, TopKRecords
from sis.v1 import ratio_service_pb2 as pb
from sis._wire.messages import read


class FetchedSlice(NamedTuple):
    """The recorded blocks of one slice."""

    # With length and record digest.
    slice: Slice
    missing: Sequence[MissingRange]
    # Complete, or without log-probs, in the order of positions. Blocks may extend beyond the slice, overlap,
    # and contain missing positions.
    blocks: Sequence[bytes]


def _wrong(what: str) -> _errors.Error:
    """Returns the error for an answer that violates the API."""
    return _errors.from_status(grpc.StatusCode.DATA_LOSS, f"FetchTopK {what}")


def _bad_block(number: int, error: ValueError) -> _errors.Error:
    return _wrong(f"sent slice {number} with a bad block: {error}")


def gathered(request: pb.FetchTopKRequest, responses: Iterable[pb.FetchTopKResponse]) -> List[FetchedSlice]:
    """Returns the slices of the request. Raises sis.Error (DATA_LOSS) if the stream lacks one."""
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
        part = Slice(asked.sequence.id, asked.first_position, last.length, asked.sequence.attempt, digest)
        missing = [read(MissingRange, one, slice=number) for entry in entries for one in entry.missing]
        fetched.append(FetchedSlice(part, missing, [data for entry in entries for data in entry.blocks]))
    return fetched


def _parts(number: int, fetched: FetchedSlice, start: int) -> List[_blocks.Part]:
    """Returns each recorded position of the slice once. start: The first of the slice's rows."""
    first, end = fetched.slice.first_position, fetched.slice.first_position + fetched.slice.length
    gaps = [(gap.first_position, gap.first_position + gap.length) for gap in fetched.missing]
    made, cursor = [], first
    for data in fetched.blocks:
        try:
            header = _blocks.opened(data)
        except ValueError as error:
            raise _bad_block(number, error) from error
        own = header.first_position
        begin, stop = max(cursor, own), min(end, own + header.positions)
        cursor = max(cursor, stop)
        for gap_begin, gap_end in [*gaps, (stop, stop)]:
            until = min(gap_begin, stop)
            if begin < until:
                made.append(_blocks.Part(data, slice(begin - own, until - own), start + begin - first))
            begin = max(begin, gap_end)
    recorded = sum(part.rows.stop - part.rows.start for part in made)
    if recorded + sum(gap_end - gap_begin for gap_begin, gap_end in gaps) != end - first:
        raise _wrong(f"sent slice {number} with {recorded} records and the gaps {gaps} of [{first}, {end})")
    return made


def assemble(fetched: Sequence[FetchedSlice], top_k: int, log_probs: bool) -> TopKRecords:
    """Returns the records of all slices. Raises sis.Error (DATA_LOSS) if they contradict the slices.

    Args:
        top_k: K.
        log_probs: True if log-probs were fetched.
    """
    starts = [0, *itertools.accumulate(one.slice.length for one in fetched)]
    parts = [part for number, one in enumerate(fetched) for part in _parts(number, one, starts[number])]
    try:
        columns = _blocks.read(parts, starts[-1], log_probs)
    except _blocks.Invalid as error:
        raise _bad_block(bisect.bisect(starts, parts[error.number].begin) - 1, error) from error
    return TopKRecords(
        slices=tuple(one.slice for one in fetched),
        counts=columns.counts,
        used_ids=columns.used_ids,
        sampled_ids=columns.sampled_ids,
        sampled_log_probs=columns.sampled_log_probs,
        fetched_log_probs=columns.used_log_probs,
        missing=tuple(missing._replace(slice=number) for number, one in enumerate(fetched) for missing in one.missing),
        top_k=top_k,
    )
