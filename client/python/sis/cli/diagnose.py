"""sisctl diagnose."""

from __future__ import annotations

from typing import TYPE_CHECKING, Iterator

import typer
from rich.console import RenderableType
from rich.text import Text

from sis.cli.connection import RUN, SERVER, connected
from sis.cli.output import (
    FAULT_FOUND, OUTPUT, Output, Rows, finding_texts, number_text, of, print_output, share_text, verdict_text,
)  # fmt: skip

if TYPE_CHECKING:
    from sis.diagnose import RunDiagnosis

# Columns of StalenessLimit.
_LIMITS = {
    "MAX_STALENESS": of("max_staleness", lambda limit: "none" if limit is None else str(limit)),
    "TOKENS OUT": of("tokens_left_out", share_text),
    "SEQUENCES OUT": of("sequences_left_out", share_text),
    "ACCEPT": of("accept_rate", share_text),
    "D/TOKEN": of("d", number_text),
    "ESS": of("effective_sample_size", share_text),
}


def diagnose(run: str = RUN, output: Output = OUTPUT, server: str = SERVER) -> None:
    """Says what is wrong with a run, and what to look at.

    \b
    First comes the server's verdict, as in sisctl run show. A table says for
    limits of the age (max_staleness) which tokens of the last 64 draws they
    would leave out, and how the other tokens do. SEQUENCES OUT are those of
    the sample that would lose all tokens. Then the last evaluated values of a
    sample of sequences, which the server keeps (--inspected_bytes), go through
    the questions of sisctl compare. A is the behaviour policy, as recorded. B
    is the current policy, as evaluated. The sample has the sequences of the
    last draw, and of earlier draws while it has fewer than 4000 positions.
    Evaluations in the form REDUCED have no values of single recorded tokens,
    and leave most questions open.

    \b
    Exit codes: 0 no fault found and a healthy verdict; 1 failed; 2 wrong
    usage; 3 otherwise.

    \b
    Examples:
      sisctl diagnose math-7b
      sisctl diagnose math-7b -o json |
        jq '.checks[] | select(.outcome == "fault")'
    """
    from sis.diagnose import diagnose_run

    with connected(server) as client:
        diagnosis = diagnose_run(client, run)
        print_output(output, diagnosis.as_json(), _parts(diagnosis))
    if diagnosis.fault:
        raise typer.Exit(FAULT_FOUND)


def _parts(diagnosis: RunDiagnosis) -> Iterator[RenderableType]:
    from sis.cli.checks import diagnosis_parts

    yield Text("by the rules of the alerts: ").append_text(verdict_text(diagnosis.status.verdict))
    yield from finding_texts(diagnosis.status)
    yield ""
    if diagnosis.ages.text:
        yield Text(f"{diagnosis.ages.text}\n")
    if diagnosis.ages.limits:
        yield from (Rows(_LIMITS, diagnosis.ages.limits), "")
    if not diagnosis.sequences:
        yield from map(Text, diagnosis.tokens.verdict)
        return
    yield Text(
        f"A: the behaviour policy of run {diagnosis.status.run.id}, as recorded\n"
        f"B: the current policy, as last evaluated\nsequences: {len(diagnosis.sequences)}\n"
    )
    yield from diagnosis_parts(diagnosis.tokens)
    yield Text(f"sequences in the order of their numbers: {', '.join(diagnosis.sequences)}")
