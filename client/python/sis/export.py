"""What a run has in memory, as a Parquet file: a row per position. Needs pyarrow (the extra
`export`).

    client.export(run, "run.parquet")
    pandas.read_parquet("run.parquet").groupby("sequence").log_ratio.mean()
    duckdb.sql("select decision, count(*) from 'run.parquet' group by decision")
"""

from __future__ import annotations

import functools
import os
from typing import TYPE_CHECKING, Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Sequence

import grpc
import numpy as np

from sis.errors import NotFound, Unavailable
from sis.evaluation import Decision
from sis.inspection import SequenceInspection
from sis.records import MissingReason, SequenceRef, Slice, TopKRecords
from sis.run import Run
from sis.v1 import ratio_service_pb2 as pb

if TYPE_CHECKING:
    import pyarrow as pa

    from sis.client import Client

# Read from the service, and written, at once.
POSITIONS_AT_ONCE = 1 << 14

# None of a sequence of which no evaluated values are kept.
_Inspect = Callable[[SequenceRef], Optional[SequenceInspection]]


class Exported(NamedTuple):
    """What Client.export wrote."""

    sequences: int
    positions: int


class _Part(NamedTuple):
    """Positions of a sequence, and what is known of it."""

    slice: Slice
    listed: pb.ListSequencesResponse.Sequence


def schema() -> pa.Schema:
    """The columns of the file. Those from `draw` on are of the last evaluation, and null where a
    position's values are not kept."""
    import pyarrow as pa

    return pa.schema(
        [
            ("sequence", pa.string()),
            ("attempt", pa.uint32()),
            ("position", pa.uint32()),
            # The newest of the sequence's positions.
            ("newest_policy_version", pa.uint64()),
            # Why the position has no record (MissingReason); the next four are null then.
            ("missing", pa.string()),
            ("sampled_id", pa.int32()),
            # Nats, as are all log-probs.
            ("sampled_log_prob", pa.float32()),
            # V_K, most probable first.
            ("ids", pa.list_(pa.int32())),
            ("log_probs", pa.list_(pa.float32())),
            ("draw", pa.uint64()),
            # A Decision.
            ("decision", pa.string()),
            # log w: what a rejected token keeps is exp of it.
            ("log_ratio", pa.float32()),
            ("acceptance_probability", pa.float32()),
            ("log_envelope", pa.float32()),
            ("residual_mass", pa.float32()),
            # Policy versions behind the one that was current.
            ("staleness", pa.int64()),
            # The current policy's, at the tokens of `ids`; NaN where it isn't known.
            ("current_log_probs", pa.list_(pa.float32())),
        ]
    )


def write(client: Client, run: Run, path: str) -> Exported:
    """Client.export; what is in memory at once is POSITIONS_AT_ONCE, a page of the list of
    sequences, and the inspection of one sequence."""
    try:
        import pyarrow as pa
        import pyarrow.parquet
    except ImportError as error:
        raise ImportError('export needs pyarrow: pip install "sis-ratio[export]"') from error
    inspected = client.inspect_run(run)
    _check_answered(inspected.unanswered)
    kept = {found.sequence for found in inspected.sequences}

    @functools.lru_cache(maxsize=1)  # a long sequence comes in several parts
    def inspect(sequence: SequenceRef) -> Optional[SequenceInspection]:
        try:
            return client.inspect_sequence(run, sequence) if sequence in kept else None
        except NotFound:  # forgotten meanwhile
            return None

    sequences = set()
    positions = 0
    unfinished = f"{path}.unfinished"
    columns = schema()
    try:
        with pa.parquet.ParquetWriter(unfinished, columns, compression="zstd") as file:
            for parts in _batches(client, run):
                # What is gone since it was listed has its rows: they are missing.
                records = client.fetch_top_k(run, [part.slice for part in parts])
                if any(gap.reason is MissingReason.STORE_DOWN for gap in records.missing):
                    raise Unavailable(grpc.StatusCode.UNAVAILABLE, "a server or a store is down")
                file.write_table(pa.table(_rows(parts, records, inspect), schema=columns))
                sequences.update((part.slice.sequence, part.slice.attempt) for part in parts)
                positions += len(records)
        os.replace(unfinished, path)
    finally:
        if os.path.exists(unfinished):
            os.remove(unfinished)
    return Exported(len(sequences), positions)


def _check_answered(unanswered: Sequence[int]) -> None:
    if unanswered:
        raise Unavailable(grpc.StatusCode.UNAVAILABLE, f"servers {list(unanswered)} give no answer")


def _listed(client: Client, run: Run) -> Iterator[pb.ListSequencesResponse.Sequence]:
    request = pb.ListSequencesRequest(run=run.to_proto())
    while True:
        page = client._service.ListSequences(request)
        _check_answered(page.unanswered)
        yield from page.sequences
        if not page.more:
            return
        request.after.CopyFrom(page.sequences[-1].sequence)


def _batches(client: Client, run: Run) -> Iterator[List[_Part]]:
    """All positions, in the order of the list, cut into batches that are small enough."""
    batch: List[_Part] = []
    room = POSITIONS_AT_ONCE
    for listed in _listed(client, run):
        first = 0
        while first < listed.committed_length:
            length = min(room, listed.committed_length - first)
            part = Slice(listed.sequence.id, first, length, listed.sequence.attempt)
            batch.append(_Part(part, listed))
            first += length
            room -= length
            if room == 0:
                yield batch
                batch, room = [], POSITIONS_AT_ONCE
    if batch:
        yield batch


def _rows(parts: List[_Part], records: TopKRecords, inspect: _Inspect) -> Dict[str, Any]:
    import pyarrow as pa

    slices = [part.slice for part in parts]
    lengths = [part.length for part in slices]
    missing = np.full(len(records), None, object)
    for gap in records.missing:
        begin = records.rows(gap.slice).start + gap.first_position - slices[gap.slice].first_position
        missing[begin : begin + gap.length] = gap.reason.name.lower()
    unknown = missing.astype(bool)
    positions = np.concatenate([np.arange(part.first_position, part.first_position + part.length) for part in slices])
    used = records.ids >= 0
    columns = {
        "sequence": pa.array(np.repeat([part.sequence for part in slices], lengths), pa.string()),
        "attempt": np.repeat([part.attempt for part in slices], lengths).astype(np.uint32),
        "position": positions.astype(np.uint32),
        "newest_policy_version": np.repeat(
            np.array([part.listed.policy_version for part in parts], np.uint64), lengths
        ),
        "missing": pa.array(missing, pa.string()),
        "sampled_id": pa.array(records.sampled_ids, mask=unknown),
        "sampled_log_prob": pa.array(records.sampled_log_probs, mask=unknown),
        "ids": _lists(records.ids, used, unknown),
        "log_probs": _lists(records.log_probs, used, unknown),
    }
    return {**columns, **_evaluated(slices, positions, records, inspect)}


# The columns of scored positions, by the array of SequenceInspection that each has values of.
_SCORED = {
    "log_ratios": ("log_ratio", np.float32),
    "acceptance_probabilities": ("acceptance_probability", np.float32),
    "log_envelopes": ("log_envelope", np.float32),
    "residual_masses": ("residual_mass", np.float32),
    "staleness": ("staleness", np.int64),
}


def _evaluated(
    slices: Sequence[Slice], positions: np.ndarray, records: TopKRecords, inspect: _Inspect
) -> Dict[str, Any]:
    import pyarrow as pa

    count = len(records)
    # 0: not known.
    decisions = np.zeros(count, np.uint8)
    draws = np.zeros(count, np.uint64)
    values = {name: np.zeros(count, dtype) for name, (_, dtype) in _SCORED.items()}
    current = np.full(records.ids.shape, np.nan, np.float32)
    for index, part in enumerate(slices):
        inspection = inspect(SequenceRef(part.sequence, part.attempt))
        if inspection is None:
            continue
        rows = records.rows(index)
        place = positions[rows] - inspection.first_position
        inside = (place >= 0) & (place < len(inspection.decisions))
        here, there = rows.start + np.flatnonzero(inside), place[inside]
        decisions[here] = inspection.decisions[there]
        draws[here] = inspection.draw
        for name, array in values.items():
            array[here] = getattr(inspection, name)[there]
        current[here] = inspection.current_log_probs[there]
    known = decisions != 0
    scored = np.isin(decisions, [Decision.ACCEPTED, Decision.REJECTED, Decision.OUTSIDE_TOP_K])
    names = np.full(max(Decision) + 1, None, object)
    for decision in Decision:
        names[decision] = decision.name.lower()
    return {
        "draw": pa.array(draws, mask=~known),
        "decision": pa.array(names[decisions], pa.string()),
        **{column: pa.array(values[name], mask=~scored) for name, (column, _) in _SCORED.items()},
        "current_log_probs": _lists(current, records.ids >= 0, ~scored),
    }


def _lists(values: np.ndarray, used: np.ndarray, null: np.ndarray) -> pa.Array:
    """[N, K] as a list of each row's used values; null rows have none."""
    import pyarrow as pa

    used = used & ~null[:, None]
    offsets = np.concatenate([[0], np.cumsum(used.sum(axis=1))]).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(values[used]), mask=pa.array(null))
