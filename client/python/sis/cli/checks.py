"""Diagnoses and comparisons as tables for people."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any, Callable, Iterator, Union

from rich.console import RenderableType
from rich.text import Text

from sis.cli.output import Rows, number_text, of, properties

if TYPE_CHECKING:
    from sis.diagnose import Check, Comparison, Diagnosis

_OUTCOMES = {"clear": Text("ok", "green"), "fault": Text("FAULT", "bold red"), "untested": Text("-")}
_MAX_SEQUENCES = 8
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
    columns = {
        "": of("outcome", _OUTCOMES.__getitem__),
        "QUESTION": of("question"),
        "MEASURED": lambda check: "" if check.outcome == "untested" else number_text(check.value),
        "A FAULT IF": _bound,
    }
    yield Rows(columns, diagnosis.checks, left=("", "QUESTION", "A FAULT IF"))
    yield ""
    yield _profile(diagnosis)
    yield ""


def _bound(check: Check) -> str:
    """Returns where the fault is, or why nothing was measured."""
    side = "at least" if check.fault_if == "at_least" else "at most"
    return check.finding if check.outcome == "untested" else f"{side} {check.limit:g}"


def _number(value: float, digits: int = 4) -> str:
    return f"{value:.{digits}f}" if math.isfinite(value) else "-"


def _profile(diagnosis: Diagnosis) -> Rows:
    """Makes rows for ranges of positions, and for the sequences with the largest D."""
    sequences = [row for row in diagnosis.profile.sequences if not math.isnan(row.d)]
    sequences.sort(key=lambda row: -row.d)
    named = [(f"positions {row.first}-{row.last}", row) for row in diagnosis.profile.positions]
    named += [(f"sequence {row.first}", row) for row in sequences[:_MAX_SEQUENCES]]
    columns = {
        "WHERE": lambda row: row[0],
        "POSITIONS": lambda row: str(row[1].positions),
        "D": lambda row: _number(row[1].d),
        "LISTS": lambda row: _number(row[1].total_variation),
    }
    return Rows(columns, named, left=("WHERE",))


def comparison_parts(comparison: Comparison, positions: int) -> Iterator[RenderableType]:
    """Yields the diagnosis, the decisions, and the `positions` positions with the largest abs(log w)."""
    compared = comparison.compared
    yield Text(f"A: {comparison.a_name}\nB: {comparison.b_name}")
    yield Text(f"{len(compared.counts)} sequences, {len(compared)} positions in the same context\n")
    yield from diagnosis_parts(comparison.diagnosis)
    yield properties(dict(zip(_TITLES, map(_cell, comparison.decisions.summary().values()))))
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
    log_probs = compared.pair.a.sampled_log_probs[compared.at_a]

    def numbers(values: Any) -> Callable[[int], str]:
        return lambda at: _number(float(values[at]))

    columns = {
        "SEQUENCE": lambda at: str(compared.sequences[at]),
        "POSITION": lambda at: str(compared.positions[at]),
        "LOG P A": numbers(log_probs),
        "LOG P B": numbers(log_probs + decided.log_ratios),
        "LOG W": numbers(decided.log_ratios),
        "LISTS": numbers(compared.total_variations),
        "A": numbers(decided.acceptance_probabilities),
        "DECISION": decided.name,
        # In quotation marks: the text of a token may hold anything.
        "TOKEN": lambda at: json.dumps(comparison.text_of(int(compared.a_sampled[at])), ensure_ascii=False),
    }
    yield Rows(columns, shown, left=("DECISION", "TOKEN"), first_to_go=("LISTS", "A", "LOG P A", "LOG P B"))
