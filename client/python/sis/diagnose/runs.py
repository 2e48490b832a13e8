"""Diagnosis of a run: its server's verdict, and why the two policies differ on its tokens."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any, Dict, List, Optional, Sequence, Tuple

import grpc
import numpy as np

from sis._ages import AgeAdvice, age_advice
from sis._client import Client
from sis._errors import NotFound
from sis._evaluation import Decision
from sis._inspection import InspectedSequence, SequenceInspection
from sis._plain_json import plain
from sis._records import MissingReason, SequenceRef
from sis._run import RunStatus
from sis.diagnose.compared import Compared
from sis.diagnose.decisions import Decisions
from sis.diagnose.diagnosis import Diagnosis, diagnose_tokens
from sis.diagnose.difference import LeftOut
from sis.diagnose.lists import Lists
from sis.diagnose.recordings import Pair, Recording

_ENOUGH_POSITIONS = 4000
# The draws that ages are judged by.
_STEPS = 64
# With those before the first one kept, which take space as well: some 20 MB.
_MAX_POSITIONS = 1 << 17

_SCORED = (Decision.ACCEPTED, Decision.REJECTED, Decision.OUTSIDE_TOP_K)


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
        """Returns run, run_verdict, findings, ages and sequences, and what Diagnosis.as_json has of the tokens, except
        that `fault` and `undecided` are of both. Numbers that are not there are None."""
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
    last = status.last_draw or 0
    steps = client.list_steps(status.run, after=last - _STEPS if last >= _STEPS else None)
    kept, not_asked = _inspect(client, status)
    scored = (inspection.staleness[np.isin(inspection.decisions, _SCORED)] for _, inspection in kept)
    youngest = [int(staleness.min()) for staleness in scored if len(staleness)]
    ages = age_advice([step.ages for step in steps.values()][-_STEPS:], youngest)
    if kept:
        compared, left_out = compare_inspected([inspection for _, inspection in kept])
        if not_asked:
            left_out.append(LeftOut("not_asked", not_asked, "of sequences beyond what is asked at once"))
        filters = {} if status.sampling is None else status.sampling.filters
        filtered = ", ".join(f"{name} {value:g}" for name, value in filters.items())
        tokens = diagnose_tokens(compared, left_out, filtered)
    else:
        nothing = f"of run {run_id} " + (
            "only positions too far into their sequences are kept"
            if not_asked
            else "nothing has been evaluated, or nothing is kept (--inspected_bytes)"
        )
        if not status.findings:
            raise NotFound(grpc.StatusCode.NOT_FOUND, nothing)
        tokens = Diagnosis.of_nothing(f"Its tokens tell nothing: {nothing}.")
    return RunDiagnosis(status, tuple(sequence.name for sequence, _ in kept), tokens, ages)


def _inspect(client: Client, status: RunStatus) -> Tuple[List[Tuple[SequenceRef, SequenceInspection]], int]:
    """Returns sequences, and the positions of those that there is no space for."""

    # The last draw need not have the highest number: a training goes on from an earlier step.
    def is_last(sequence: InspectedSequence) -> bool:
        return sequence.draw == (status.last_draw or 0)

    positions = held = not_asked = 0
    kept = []
    sequences = client.inspect_run(status.run).sequences
    for sequence in sorted(sequences, key=lambda one: (is_last(one), one.draw), reverse=True):
        if positions >= _ENOUGH_POSITIONS and not is_last(sequence):
            break
        try:
            inspection = client.inspect_sequence(status.run, sequence.sequence)
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


# Arrays of an inspection, with the value at positions without a ratio.
_ARRAYS: Dict[str, Any] = {
    "decisions": np.uint8(Decision.MISSING),
    "sampled_ids": np.int64(-1),
    "sampled_log_probs": np.float32(-np.inf),
    "log_ratios": np.float32(np.nan),
    "acceptance_probabilities": np.float32(np.nan),
    "log_envelopes": np.float32(np.nan),
    "residual_masses": np.float32(np.nan),
    "staleness": np.int64(0),
}


def compare_inspected(inspections: Sequence[SequenceInspection]) -> Tuple[Compared, List[LeftOut]]:
    """Returns tokens that a server has inspected as a pair of recordings: A is the behaviour policy, as the run
    recorded it, B the current one, as it was evaluated. Then positions without a ratio, by the server's decision."""
    every = [(one, np.isin(one.decisions, _SCORED)) for one in inspections]
    # Positions keep their numbers: before the first one kept there is nothing.
    arrays = {
        name: np.concatenate([
            part for one, scored in every
            for part in (np.full(one.first_position, nothing), np.where(scored, getattr(one, name), nothing))
        ])
        for name, nothing in _ARRAYS.items()
    }  # fmt: skip
    sampled, log_q = arrays.pop("sampled_ids"), arrays.pop("sampled_log_probs")
    log_p = np.where(np.isfinite(log_q), log_q + arrays["log_ratios"], log_q)
    ids, listed_q, listed_p = (
        np.concatenate([getattr(one, name)[scored].ravel() for one, scored in every])
        for name in ("top_k_ids", "top_k_log_probs", "current_log_probs")
    )
    widths = [one.top_k_ids.shape[1] for one in inspections]
    slots = np.repeat(widths, [scored.sum() for _, scored in every])
    rows = np.repeat(np.flatnonzero(arrays["decisions"] != Decision.MISSING), slots)
    sizes = np.asarray([one.first_position + len(one.decisions) for one in inspections], np.int64)

    def recording(given: np.ndarray, listed: np.ndarray) -> Recording:
        kept = (ids >= 0) & np.isfinite(listed)
        lists = Lists.ranked(len(sampled), rows[kept], ids[kept].astype(np.int64), listed[kept])
        # Beside what was sent of the sampled token.
        of_sampled = lists.log_probs_of(np.arange(len(sampled)), sampled).astype(np.float32)
        own = np.where(np.isnan(of_sampled), given, of_sampled)
        return Recording(sizes, sampled, own, given, lists, max(widths), {})

    a, b = recording(log_q, listed_q), recording(log_p, listed_p)
    compared = Compared(Pair(a, b, by_id=True), np.arange(len(sizes)), sizes, a, b, Decisions(max(widths), **arrays))
    reasons = {
        **{f"missing_{reason.name.lower()}": f"without a record ({reason.name})" for reason in MissingReason},
        "masked": "that are masked",
        "not_evaluated": "that were not evaluated in this draw",
        "not_kept": "for which there was no room in --inspected_bytes",
    }
    counts: Counter[str] = Counter()
    for one, scored in every:
        counts.update(_count_left_out(one, scored))
    return compared, [LeftOut(name, counts[name], reason) for name, reason in reasons.items() if counts[name]]


def _count_left_out(inspection: SequenceInspection, scored: np.ndarray) -> Dict[str, int]:
    """Returns the positions without a ratio of one sequence, each once."""
    before, end = inspection.first_position, inspection.first_position + len(scored)
    cut_begin, cut_end = inspection.cut_begin, inspection.cut_end
    missing, masked = (inspection.decisions == decision for decision in (Decision.MISSING, Decision.MASKED))
    # Positions without space lie in the cut range, but so may others, which are kept.
    absent = np.append(np.arange(before), before + np.flatnonzero(~(scored | missing | masked)))
    cut = int(((absent >= cut_begin) & (absent < cut_end)).sum())
    reasons = Counter(MissingReason(reason).name.lower() for reason in inspection.missing_reasons[missing].tolist())
    return {
        **{f"missing_{reason}": count for reason, count in reasons.items()},
        "masked": int(masked.sum()),
        "not_kept": cut + cut_end - min(cut_end, max(end, cut_begin)),
        "not_evaluated": len(absent) - cut,
    }
