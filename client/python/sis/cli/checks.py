"""Diagnoses and comparisons as tables for people."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any, Callable, Dict, Iterator

from rich.console import RenderableType
from rich.text import Text

from sis.cli.output import Rows, number_text, of, properties

if TYPE_CHECKING:
    from sis.diagnose import Check, Comparison, Diagnosis

_OUTCOMES = {"clear": Text("ok", "green"), "fault": Text("FAULT", "bold red"), "untested": Text("-")}
# Names of the values in Decisions.summary, in its order.
_TITLES = (
    "K, tokens per record", "positions", "unscored", "accepted", "rejected", "outside top-K", "accept rate",
    "mean acceptance probability", "D per token (nats)", "D_SIS per token (nats)", "k3 per token (nats)",
    "mean log-envelope (nats)", "mean residual mass",
)  # fmt: skip


def _number(value: float, digits: int = 4) -> str:
    return f"{value:.{digits}f}" if math.isfinite(value) else "-"


def _bound(check: Check) -> str:
    """Returns where the fault is, or why nothing was measured."""
    side = "at least" if check.fault_if == "at_least" else "at most"
    return check.finding if check.outcome == "untested" else f"{side} {check.limit:g}"


_CHECKS = {
    "": of("outcome", _OUTCOMES.__getitem__),
    "QUESTION": of("question"),
    "MEASURED": lambda check: "" if check.outcome == "untested" else number_text(check.value),
    "A FAULT IF": _bound,
}
_PROFILE = {
    "WHERE": of("where"),
    "POSITIONS": of("positions"),
    "D": of("d", _number),
    "LISTS": of("total_variation", _number),
}


def diagnosis_parts(diagnosis: Diagnosis) -> Iterator[RenderableType]:
    """Yields verdict, checks and profile."""
    yield from map(Text, diagnosis.verdict)
    yield from ("", Rows(_CHECKS, diagnosis.checks, left=("", "QUESTION", "A FAULT IF")))
    yield from ("", Rows(_PROFILE, diagnosis.profile, left=("WHERE",)), "")


def _numbers(name: str) -> Callable[[Dict[str, Any]], str]:
    return lambda position: _number(position[name])


_POSITIONS = {
    "SEQUENCE": lambda position: str(position["sequence"]),
    "POSITION": lambda position: str(position["position"]),
    "LOG P A": _numbers("a_sampled_log_prob"),
    "LOG P B": lambda position: _number(position["a_sampled_log_prob"] + position["log_ratio"]),
    "LOG W": _numbers("log_ratio"),
    "LISTS": _numbers("total_variation"),
    "A": _numbers("acceptance_probability"),
    "DECISION": lambda position: position["decision"],
    # In quotation marks: the text of a token may hold anything.
    "TOKEN": lambda position: json.dumps(position["token"], ensure_ascii=False),
}


def comparison_parts(comparison: Comparison, count: int) -> Iterator[RenderableType]:
    """Yields the diagnosis, the decisions, and the `count` positions with the largest abs(log w)."""
    compared = comparison.compared
    yield Text(f"A: {comparison.a_name}\nB: {comparison.b_name}")
    yield Text(f"{len(compared.counts)} sequences, {len(compared)} positions in the same context\n")
    yield from diagnosis_parts(comparison.diagnosis)
    summary = compared.decisions.summary().values()
    cells = ("-" if value is None else str(value) if isinstance(value, int) else _number(value, 6) for value in summary)
    yield properties(dict(zip(_TITLES, cells)))
    positions = comparison.positions()
    ratios = [position["log_ratio"] for position in positions]
    # Positions without a ratio are the last.
    order = sorted(range(len(ratios)), key=lambda at: math.inf if math.isnan(ratios[at]) else -abs(ratios[at]))
    largest = sorted(order[:count])
    if largest:
        yield Text(f"\nThe {len(largest)} of {len(positions)} positions with the largest |log w|, in nats:")
        rows = [positions[at] for at in largest]
        yield Rows(_POSITIONS, rows, left=("DECISION", "TOKEN"), first_to_go=("LISTS", "A", "LOG P A", "LOG P B"))
