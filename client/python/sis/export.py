"""Export of the positions that a run has in memory to Parquet, CSV or JSON lines, a row per position.

    sis.export.export(client, run, "run.parquet")
    pandas.read_parquet("run.parquet").groupby("sequence").log_ratio.mean()
    duckdb.sql("select decision, count(*) from 'run.parquet' group by decision")

Parquet needs pyarrow (the extra `export`). In CSV a list is written as JSON has it, and null is empty.
"""

from __future__ import annotations

import csv
import functools
import io
import itertools
import json
import os
from typing import TYPE_CHECKING, Any, BinaryIO, Callable, Dict, Iterable, Iterator, List, NamedTuple
from typing import Optional, Sequence, Set, Tuple

import grpc
import numpy as np

from sis._errors import NotFound, Unavailable
from sis._evaluation import Decision
from sis._inspection import ListedSequence, SequenceInspection
from sis._records import MissingReason, SequenceRef, Slice, TopKRecords
from sis._run import Run

if TYPE_CHECKING:
    import pyarrow as pa

    from sis._client import Client

# Read from the service, and written, at once.
POSITIONS_AT_ONCE = 1 << 14

# The columns and their types. Columns from `draw` on hold the last evaluation; they are null if the values of a
# position are not kept.
COLUMNS = {
    "sequence": "string",
    "attempt": "uint32",
    "position": "uint32",
    # The newest of the sequence's positions.
    "newest_policy_version": "uint64",
    # Why the position has no record (MissingReason); the next four are null then.
    "missing": "string",
    "sampled_id": "int32",
    # Nats, as are all log-probs.
    "sampled_log_prob": "float32",
    # V_K, most probable first.
    "ids": "list of int32",
    "log_probs": "list of float32",
    "draw": "uint64",
    # A Decision.
    "decision": "string",
    # log w: a rejected token keeps the ratio exp(log w).
    "log_ratio": "float32",
    "acceptance_probability": "float32",
    "log_envelope": "float32",
    "residual_mass": "float32",
    # Policy versions behind the version that was current.
    "staleness": "int64",
    # The current policy's, at the tokens of `ids`; NaN (in CSV and JSON: null) where it isn't known.
    "current_log_probs": "list of float32",
}

# None for a sequence of which no evaluated values are kept.
_Inspect = Callable[[SequenceRef], Optional[SequenceInspection]]


class Exported(NamedTuple):
    """Numbers of what `export` wrote.

    Attributes:
        sequences: Sequences that were written.
        positions: Positions that were written.
    """

    sequences: int
    positions: int


class _Part(NamedTuple):
    """Positions of a sequence, and what is known of it."""

    slice: Slice
    listed: ListedSequence


class _Column(NamedTuple):
    """N values of a column, or with `used` N lists of values."""

    # [N], or [N, K].
    values: np.ndarray
    # bool [N].
    null: np.ndarray
    # bool [N, K]: the elements of each list.
    used: Optional[np.ndarray] = None

    def to_python(self) -> List[Any]:
        """Returns Python values: None for null and what is not finite, and for float32 the shortest number that
        is read as the same."""
        if self.used is None:
            return [None if null else value for null, value in zip(self.null, _plain(self.values))]
        elements = iter(_plain(self.values[self.used]))
        lists = [list(itertools.islice(elements, count)) for count in self.used.sum(axis=1)]
        return [None if null else value for null, value in zip(self.null, lists)]

    def to_arrow(self, type: pa.DataType) -> pa.Array:
        import pyarrow as pa

        if self.used is None:
            return pa.array(self.values, type, mask=self.null)
        used = self.used & ~self.null[:, None]
        offsets = np.concatenate([[0], np.cumsum(used.sum(axis=1))]).astype(np.int32)
        return pa.ListArray.from_arrays(pa.array(offsets), pa.array(self.values[used]), mask=pa.array(self.null))


def _plain(values: np.ndarray) -> List[Any]:
    if values.dtype != np.float32:
        return values.tolist()
    finite = np.isfinite(values)
    shortest = np.where(finite, values, 0).astype("U32").astype(float).astype(object)
    shortest[~finite] = None
    return shortest.tolist()


_Batch = Dict[str, _Column]


def schema() -> pa.Schema:
    """Returns the columns of a Parquet file.

    Returns:
        The schema.
    """
    import pyarrow as pa

    def arrow(name: str) -> pa.DataType:
        element = pa.type_for_alias(name.rpartition(" ")[2])
        return pa.list_(element) if name.startswith("list") else element

    return pa.schema([(name, arrow(type)) for name, type in COLUMNS.items()])


def export(client: Client, run: Run, path: str, format: str = "parquet") -> Exported:
    """Writes the positions of the run that the servers have in memory to a file, a row per position.

    COLUMNS lists the columns. Positions that only a store has are left out. Decisions and ratios are those of
    Client.inspect_sequence, of a sample of sequences. Exported sequences count as read. Holds POSITIONS_AT_ONCE, a page
    of the list of sequences, and the inspection of one sequence in memory at once.

    Args:
        client: The client.
        run: The run.
        path: The file. It is written under another name first.
        format: "parquet", "csv" or "json" (JSON lines). Parquet needs pyarrow.

    Returns:
        The numbers of written sequences and positions.

    Raises:
        ImportError: pyarrow is missing.
        ValueError: The format is unknown.
        sis.Unavailable: A replica or a store is unreachable; `path` is unchanged.
        sis.Error: As in Client.fetch_top_k.
    """
    unfinished = f"{path}.unfinished"
    try:
        with open(unfinished, "wb") as file:
            exported = export_to(client, run, file, format)
        os.replace(unfinished, path)
    finally:
        if os.path.exists(unfinished):
            os.remove(unfinished)
    return exported


def export_to(client: Client, run: Run, file: BinaryIO, format: str = "parquet") -> Exported:
    """Does the same as `export` to an open file, which stays open.

    Args:
        client: The client.
        run: The run.
        file: The file, opened for bytes.
        format: As in `export`.

    Returns:
        The numbers of written sequences and positions.

    Raises:
        ValueError: The format is unknown.
        sis.Error: As in `export`.
    """
    if format not in FORMATS:
        raise ValueError(f"format is {format!r}, must be one of {', '.join(FORMATS)}")
    sequences: Set[SequenceRef] = set()
    positions = 0

    def counted() -> Iterator[_Batch]:
        nonlocal positions
        for parts, rows in _read(client, run):
            yield rows
            sequences.update(part.listed.sequence for part in parts)
            positions += len(rows["position"].values)

    FORMATS[format](file, counted())
    return Exported(len(sequences), positions)


def _write_parquet(file: BinaryIO, batches: Iterable[_Batch]) -> None:
    try:
        import pyarrow as pa
        import pyarrow.parquet
    except ImportError as error:
        raise ImportError("export to Parquet needs pyarrow: pip install 'sis-ratio[export]'") from error
    columns = schema()
    with pa.parquet.ParquetWriter(file, columns, compression="zstd") as writer:
        for rows in batches:
            arrays = [rows[field.name].to_arrow(field.type) for field in columns]
            writer.write_table(pa.table(arrays, schema=columns))


def _write_csv(file: BinaryIO, batches: Iterable[_Batch]) -> None:
    text = io.TextIOWrapper(file, encoding="utf-8", newline="", write_through=True)
    writer = csv.writer(text)
    writer.writerow(COLUMNS)
    for rows in batches:
        for row in zip(*(rows[name].to_python() for name in COLUMNS)):
            writer.writerow([json.dumps(value) if isinstance(value, list) else value for value in row])
    text.detach()


def _write_json(file: BinaryIO, batches: Iterable[_Batch]) -> None:
    for rows in batches:
        for row in zip(*(rows[name].to_python() for name in COLUMNS)):
            file.write(json.dumps(dict(zip(COLUMNS, row)), ensure_ascii=False).encode() + b"\n")


FORMATS = {"parquet": _write_parquet, "csv": _write_csv, "json": _write_json}


def _read(client: Client, run: Run) -> Iterator[Tuple[List[_Part], _Batch]]:
    inspected = client.inspect_run(run)
    _check_answered(inspected.unanswered)
    kept = {found.sequence for found in inspected.sequences}

    @functools.lru_cache(maxsize=1)  # a long sequence comes in several parts
    def inspect(sequence: SequenceRef) -> Optional[SequenceInspection]:
        try:
            return client.inspect_sequence(run, sequence) if sequence in kept else None
        except NotFound:  # forgotten meanwhile
            return None

    for parts in _batches(client, run):
        # Positions that are gone since they were listed keep their rows: they are missing.
        records = client.fetch_top_k(run, [part.slice for part in parts])
        if any(gap.reason is MissingReason.STORE_DOWN for gap in records.missing):
            raise Unavailable(grpc.StatusCode.UNAVAILABLE, "a server or a store is down")
        yield parts, _rows(parts, records, inspect)


def _check_answered(unanswered: Sequence[int]) -> None:
    if unanswered:
        raise Unavailable(grpc.StatusCode.UNAVAILABLE, f"servers {list(unanswered)} give no answer")


def _listed(client: Client, run: Run) -> Iterator[ListedSequence]:
    after = None
    while True:
        page = client.list_sequences(run, after=after)
        _check_answered(page.unanswered)
        yield from page
        if not page.more:
            return
        after = page[-1].sequence


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


def _rows(parts: List[_Part], records: TopKRecords, inspect: _Inspect) -> _Batch:
    slices = [part.slice for part in parts]
    lengths = [part.length for part in slices]
    missing = np.full(len(records), None, object)
    for gap in records.missing:
        begin = records.rows(gap.slice).start + gap.first_position - slices[gap.slice].first_position
        missing[begin : begin + gap.length] = gap.reason.name.lower()
    unknown = missing.astype(bool)
    positions = np.concatenate([np.arange(part.first_position, part.first_position + part.length) for part in slices])
    used = records.ids >= 0

    def of_parts(values: Iterable[Any], dtype: Any) -> _Column:
        return _Column(np.repeat(np.array(list(values), dtype), lengths), np.zeros(len(records), bool))

    return {
        "sequence": of_parts((part.sequence for part in slices), object),
        "attempt": of_parts((part.attempt for part in slices), np.uint32),
        "position": _Column(positions.astype(np.uint32), np.zeros(len(records), bool)),
        "newest_policy_version": of_parts((part.listed.policy_version for part in parts), np.uint64),
        "missing": _Column(missing, ~unknown),
        "sampled_id": _Column(records.sampled_ids, unknown),
        "sampled_log_prob": _Column(records.sampled_log_probs, unknown),
        "ids": _Column(records.ids, unknown, used),
        "log_probs": _Column(records.log_probs, unknown, used),
        **_evaluated(slices, positions, records, inspect),
    }


# The columns of scored positions, by the array of SequenceInspection that each has values of.
_SCORED = {
    "log_ratios": ("log_ratio", np.float32),
    "acceptance_probabilities": ("acceptance_probability", np.float32),
    "log_envelopes": ("log_envelope", np.float32),
    "residual_masses": ("residual_mass", np.float32),
    "staleness": ("staleness", np.int64),
}


def _evaluated(slices: Sequence[Slice], positions: np.ndarray, records: TopKRecords, inspect: _Inspect) -> _Batch:
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
        "draw": _Column(draws, ~known),
        "decision": _Column(names[decisions], ~known),
        **{column: _Column(values[name], ~scored) for name, (column, _) in _SCORED.items()},
        "current_log_probs": _Column(current, ~scored, records.ids >= 0),
    }
