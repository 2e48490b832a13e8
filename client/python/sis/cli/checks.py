"""Diagnoses and comparisons as tables for people."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Iterator, Sequence, Union

from rich.console import RenderableType
from rich.text import Text

from sis.cli.output import Rows, properties

if TYPE_CHECKING:
    from sis.diagnose import Check, Comparison, Diagnosis

_OUTCOMES = {"clear": Text("ok", "green"), "fault": Text("FAULT", "bold red"), "untested": Text("-")}
_MOST_SEQUENCES = 8
# Names of the values in Decisions.summary, in its order.
_TITLES = (
    "K, tokens per record", "positions", "unscored", "accepted", "rejected", "outside top-K", "accept rate",
    "mean acceptance probability", "D per token (nats)", "D_SIS per token (nats)", "k3 per token (nats)",
    "mean log-envelope (nats)", "mean residual mass",
)  # fmt: skip


def diagnosis_parts(diagnosis: Diagnosis) -> Iterator[RenderableType]:
    """Yields verdict, checks and profile."""
    for sentence in diagnosis.verdict:
        yield Text(sentence)
    yield ""
    questions = Rows("", "QUESTION", "MEASURED", "A FAULT IF", left=("", "QUESTION", "A FAULT IF"))
    for check in diagnosis.checks:
        questions.add(_OUTCOMES[check.outcome], check.question, *_measured(check))
    yield questions
    yield ""
    yield _profile(diagnosis)
    yield ""


def _measured(check: Check) -> Sequence[str]:
    if check.outcome == "untested":
        return "", check.finding
    side = "at least" if check.fault_if == "at_least" else "at most"
    return "-" if math.isnan(check.value) else f"{check.value:.3g}", f"{side} {check.limit:g}"


def _number(value: float, digits: int = 4) -> str:
    return f"{value:.{digits}f}" if math.isfinite(value) else "-"


def _profile(diagnosis: Diagnosis) -> Rows:
    """Makes rows for ranges of positions, and for the sequences with the largest D."""
    rows = Rows("WHERE", "POSITIONS", "D", "LISTS", left=("WHERE",))
    sequences = [row for row in diagnosis.profile.sequences if not math.isnan(row.d)]
    sequences.sort(key=lambda row: -row.d)
    named = [(f"positions {row.first}-{row.last}", row) for row in diagnosis.profile.positions]
    named += [(f"sequence {row.first}", row) for row in sequences[:_MOST_SEQUENCES]]
    for name, row in named:
        rows.add(name, row.positions, _number(row.d), _number(row.total_variation))
    return rows


def comparison_parts(comparison: Comparison, positions: int) -> Iterator[RenderableType]:
    """Yields the diagnosis, the decisions, and the `positions` positions with the largest abs(log w)."""
    compared = comparison.compared
    yield Text(f"A: {comparison.a_name}\nB: {comparison.b_name}")
    yield Text(f"{len(compared.counts)} sequences, {len(compared)} positions in the same context\n")
    yield from diagnosis_parts(comparison.diagnosis)
    yield properties((title, _cell(value)) for title, value in zip(_TITLES, comparison.decisions.summary().values()))
    if note := comparison.note():
        yield Text(note)
    yield from _positions(comparison, positions)


def _cell(value: Union[int, float, None]) -> str:
    return "-" if value is None else str(value) if isinstance(value, int) else _number(value, 6)


def _positions(comparison: Comparison, count: int) -> Iterator[RenderableType]:
    compared, decided = comparison.compared, comparison.decisions
    deviations = [-1.0 if math.isnan(value) else abs(value) for value in decided.log_ratios.tolist()]
    shown = sorted(sorted(range(len(compared)), key=lambda at: -deviations[at])[:count])
    if not shown:
        return
    yield Text(
        "\nAll positions, in nats:"
        if len(shown) == len(compared)
        else f"\nThe {len(shown)} positions with the largest |log w|, in nats:"
    )
    rows = Rows(
        "SEQUENCE", "POSITION", "LOG P A", "LOG P B", "LOG W", "LISTS", "A", "DECISION", "TOKEN",
        left=("DECISION", "TOKEN"), first_to_go=("LISTS", "A", "LOG P A", "LOG P B"),
    )  # fmt: skip
    for at in shown:
        log_prob, log_ratio = compared.pair.a.sampled_log_probs[compared.at_a[at]], decided.log_ratios[at]
        rows.add(
            int(compared.sequences[at]),
            int(compared.positions[at]),
            _number(float(log_prob)),
            _number(float(log_prob + log_ratio)),
            _number(float(log_ratio)),
            _number(float(compared.total_variations[at])),
            _number(float(decided.acceptance_probabilities[at])),
            decided.name(at),
            # In quotation marks: the text of a token may hold anything.
            json.dumps(comparison.text_of(int(compared.a_sampled[at])), ensure_ascii=False),
        )
    yield rows
