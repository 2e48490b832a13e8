"""Diagnosis of a run: its server's verdict, and why the two policies differ on its tokens."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

import grpc
import numpy as np

from sis._ages import AgeAdvice, AgeTotals, age_advice
from sis._client import Client
from sis.diagnose.compared import Compared
from sis.diagnose.decisions import Decisions
from sis.diagnose.diagnosis import Diagnosis, diagnose_tokens
from sis.diagnose.difference import LeftOut
from sis.diagnose.lists import Lists, ranked
from sis.diagnose.recordings import Pair, Recording
from sis._errors import Error, NotFound
from sis._evaluation import Decision
from sis._inspection import InspectedSequence, RunInspection, SequenceInspection
from sis._plain_json import plain
from sis._records import MissingReason, SequenceRef
from sis._run import RunStatus, Sampling

_ENOUGH_POSITIONS = 4000
# The draws that ages are judged by.
_STEPS = 64
# With those before the first one kept, which take space as well: some 20 MB.
_MAX_POSITIONS = 1 << 17


@dataclass(frozen=True)
class RunDiagnosis:
    # With verdict and findings.
    status: RunStatus
    # Names of the sequences whose numbers `tokens` has.
    sequences: Tuple[str, ...]
    # Diagnosis of the last evaluated values; undecided if none are kept.
    tokens: Diagnosis
    # By the last 64 draws.
    ages: AgeAdvice

    @property
    def fault(self) -> bool:
        return bool(self.status.findings) or self.tokens.fault

    def as_json(self) -> Dict[str, Any]:
        """Returns run, run_verdict, findings, ages and sequences, and what Diagnosis.as_json has of the tokens, except that
        `fault` and `undecided` are of both. Numbers that are not there are None."""
        made = {
            "run": self.status.run.id,
            "run_verdict": self.status.verdict.name,
            "findings": [{**vars(finding), "verdict": finding.verdict.name} for finding in self.status.findings],
            "ages": self.ages,
            "sequences": self.sequences,
            **self.tokens.as_json(),
            "fault": self.fault,
            "undecided": self.tokens.undecided and not self.fault,
        }
        return plain(made)


def diagnose_run(client: Client, run_id: str) -> RunDiagnosis:
    """Asks for all kept sequences of the last draw, and for earlier ones while there are fewer than 4000 positions.

    Sequences that are forgotten meanwhile are left out, and those that would bring more than 131072 positions, with
    what lies before the first one kept.

    Raises:
        sis.NotFound: The run is unknown, or it is healthy and nothing that was evaluated is kept.
        sis.Error: A call failed.
    """
    status = client.get_run(run_id)
    run, last = status.run, status.last_draw or 0
    steps = client.list_steps(run, after=last - _STEPS if last >= _STEPS else None)
    return diagnose_inspected(
        status,
        client.inspect_run(run),
        lambda sequence: client.inspect_sequence(run, sequence),
        [step.ages for step in steps.values()][-_STEPS:],
    )


def diagnose_inspected(
    status: RunStatus,
    overview: RunInspection,
    inspect: Callable[[SequenceRef], SequenceInspection],
    ages: Sequence[Sequence[AgeTotals]] = (),
) -> RunDiagnosis:
    """Does the same with what the server keeps of a run. ages: Step.ages of its last draws."""
    kept, not_asked = _inspect(status, overview, inspect)
    names = tuple(sequence.name for sequence, _ in kept)
    youngest = [
        int(inspection.staleness[scored].min())
        for _, inspection in kept
        if (scored := np.isin(inspection.decisions, _SCORED)).any()
    ]
    advice = age_advice(ages, youngest)
    if not kept:
        nothing = f"of run {status.run.id} " + (
            "only positions too far into their sequences are kept"
            if not_asked
            else "nothing has been evaluated, or nothing is kept (--inspected_bytes)"
        )
        if not status.findings:
            raise NotFound(grpc.StatusCode.NOT_FOUND, nothing)
        return RunDiagnosis(status, names, Diagnosis.of_nothing(f"Its tokens tell nothing: {nothing}."), advice)
    compared, left_out = compare_inspected([inspection for _, inspection in kept])
    if not_asked:
        left_out.append(LeftOut("not_asked", not_asked, "of sequences beyond what is asked at once"))
    return RunDiagnosis(status, names, diagnose_tokens(compared, left_out, _filter_of(status.sampling)), advice)


def _inspect(
    status: RunStatus, overview: RunInspection, inspect: Callable[[SequenceRef], SequenceInspection]
) -> Tuple[List[Tuple[SequenceRef, SequenceInspection]], int]:
    """Returns sequences, and the positions of those that there is no space for."""

    # The last draw need not have the highest number: a training goes on from an earlier step.
    def is_last(sequence: InspectedSequence) -> bool:
        return sequence.draw == (status.last_draw or 0)

    positions = held = not_asked = 0
    kept = []
    for sequence in sorted(overview.sequences, key=lambda one: (is_last(one), one.draw), reverse=True):
        if positions >= _ENOUGH_POSITIONS and not is_last(sequence):
            break
        try:
            inspection = inspect(sequence.sequence)
        except NotFound:
            continue
        more = inspection.first_position + len(inspection.decisions)
        if more > _MAX_POSITIONS - held:
            not_asked += sequence.positions
            continue
        held += more
        positions += sequence.positions
        kept.append((sequence.sequence, inspection))
    return kept, not_asked


def _filter_of(sampling: Optional[Sampling]) -> str:
    """Returns filters like "top_p 0.8, min_p 0.1"; empty if none changes anything."""
    if sampling is None:
        return ""
    filters = []
    if sampling.top_p is not None and sampling.top_p < 1:
        filters.append(f"top_p {sampling.top_p:g}")
    if (sampling.top_k or 0) > 0:
        filters.append(f"top_k {sampling.top_k}")
    if (sampling.min_p or 0) > 0:
        filters.append(f"min_p {sampling.min_p:g}")
    return ", ".join(filters)


def compare_inspected(inspections: Sequence[SequenceInspection]) -> Tuple[Compared, List[LeftOut]]:
    """Returns tokens that a server has inspected as a pair of recordings: A is the behaviour policy, as the run
    recorded it, B the current one, as it was evaluated. Then positions without a ratio, by the server's decision."""
    columns: Dict[str, List[np.ndarray]] = {name: [] for name in _COLUMNS}
    # Tokens of both lists: position, id, and log-probs of A and B.
    tokens: List[Tuple[np.ndarray, ...]] = []
    counts: Counter[str] = Counter()
    lengths: List[int] = []
    for inspection in inspections:
        _check_lengths(inspection)
        # Positions keep their numbers: before the first one kept there is nothing.
        before = inspection.first_position
        scored = np.isin(inspection.decisions, _SCORED)
        start = sum(lengths) + before
        for name, (dtype, nothing) in _COLUMNS.items():
            column = np.full(before + len(scored), nothing, dtype)
            column[before:][scored] = getattr(inspection, name)[scored]
            columns[name].append(column)
        rows = np.repeat(start + np.flatnonzero(scored), inspection.top_k_ids.shape[1])
        arrays = inspection.top_k_ids, inspection.top_k_log_probs, inspection.current_log_probs
        tokens.append((rows, *(array[scored].reshape(-1) for array in arrays)))
        lengths.append(before + len(scored))
        _count_left_out(inspection, scored, counts)
    joined = {name: np.concatenate(parts) for name, parts in columns.items()}
    sampled, log_q = joined.pop("sampled_ids"), joined.pop("sampled_log_probs")
    listed_rows, listed_ids, listed_q, listed_p = map(np.concatenate, zip(*tokens))
    top_k = max(inspection.top_k_ids.shape[1] for inspection in inspections)
    sizes = np.asarray(lengths, np.int64)
    log_p = np.where(np.isfinite(log_q), log_q + joined["log_ratios"], log_q)
    a, b = (
        _recording(sizes, sampled, given, listed_rows, listed_ids.astype(np.int64), listed, top_k)
        for given, listed in ((log_q, listed_q), (log_p, listed_p))
    )
    compared = Compared(Pair(a, b, by_id=True), sizes)
    compared.decisions = Decisions(top_k, **joined)
    reasons = {
        **{f"missing_{reason.name.lower()}": f"without a record ({reason.name})" for reason in MissingReason},
        "masked": "that are masked",
        "not_evaluated": "that were not evaluated in this draw",
        "not_kept": "for which there was no room in --inspected_bytes",
    }
    return compared, [LeftOut(name, counts[name], reason) for name, reason in reasons.items() if counts[name]]


_SCORED = (Decision.ACCEPTED, Decision.REJECTED, Decision.OUTSIDE_TOP_K)

# Arrays of an inspection: their type here, and the value at positions without a ratio.
_COLUMNS = {
    "decisions": (np.uint8, Decision.MISSING),
    "sampled_ids": (np.int64, -1),
    "sampled_log_probs": (np.float32, -np.inf),
    "log_ratios": (np.float32, np.nan),
    "acceptance_probabilities": (np.float32, np.nan),
    "log_envelopes": (np.float32, np.nan),
    "residual_masses": (np.float32, np.nan),
    "staleness": (np.int64, 0),
}


def _recording(
    lengths: np.ndarray,
    sampled: np.ndarray,
    given: np.ndarray,
    rows: np.ndarray,
    ids: np.ndarray,
    log_probs: np.ndarray,
    top_k: int,
) -> Recording:
    kept = (ids >= 0) & np.isfinite(log_probs)
    rows, ids, log_probs = rows[kept], ids[kept], log_probs[kept].astype(np.float32)
    order = ranked(rows, ids, log_probs)
    lists = Lists(np.bincount(rows, minlength=len(sampled)), ids[order], log_probs[order])
    # Beside what was sent of the sampled token.
    found = lists.find(np.arange(len(sampled)), sampled)
    listed = lists.log_probs_at(found).astype(np.float32)
    return Recording(lengths, sampled, np.where(found >= 0, listed, given), given, lists, top_k, {})


def _check_lengths(inspection: SequenceInspection) -> None:
    positions = len(inspection.decisions)
    for name in (*_COLUMNS, "top_k_ids", "top_k_log_probs", "current_log_probs"):
        there = len(getattr(inspection, name))
        if there != positions:
            message = f"{name}: the server sent {there} positions; must be {positions}"
            raise Error(grpc.StatusCode.INTERNAL, message)


def _count_left_out(inspection: SequenceInspection, scored: np.ndarray, counts: Counter[str]) -> None:
    """Adds the positions without a ratio of one sequence, each once."""
    before, end = inspection.first_position, inspection.first_position + len(scored)
    cut_begin, cut_end = inspection.cut_begin, inspection.cut_end
    missing = inspection.decisions == Decision.MISSING
    masked = inspection.decisions == Decision.MASKED
    for reason, count in zip(*np.unique(inspection.missing_reasons[missing], return_counts=True)):
        counts[f"missing_{MissingReason(int(reason)).name.lower()}"] += int(count)
    counts["masked"] += int(masked.sum())
    # Positions without space lie in the cut range, but so may others, which are kept.
    absent = np.concatenate([np.arange(before), before + np.flatnonzero(~(scored | missing | masked))])
    cut = int(((absent >= cut_begin) & (absent < cut_end)).sum())
    counts["not_kept"] += cut + cut_end - min(cut_end, max(end, cut_begin))
    counts["not_evaluated"] += len(absent) - cut
