"""Verdicts and findings of runs as text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Iterator

from rich.text import Text

if TYPE_CHECKING:
    from sis import MissingReason, RunStatus, Verdict

_SHOWN = {
    "HEALTHY": ("healthy", "green"),
    "WORTH_A_LOOK": ("! look", "yellow"),
    "BROKEN": ("!! BROKEN", "bold red"),
}


def verdict_text(verdict: Verdict) -> Text:
    """Returns a sign and a word."""
    return Text(*_SHOWN.get(verdict.name, ("-", "")))


def finding_texts(status: RunStatus) -> Iterator[Text]:
    """Yields what is wrong with the run and what to do, the worst first; nothing if it is healthy."""
    for finding in status.findings:
        line = verdict_text(finding.verdict)
        line.append(f"  {finding.reason} ({finding.rule})\n    {finding.action}", style="none")
        yield line


def reason_text(reason: MissingReason) -> str:
    """Returns why positions are missing: "never arrived"."""
    return reason.name.lower().replace("_", " ")
