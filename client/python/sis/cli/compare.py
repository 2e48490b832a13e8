"""sisctl compare."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import typer

from sis.cli.output import FAULT_FOUND, OUTPUT, Output, fail, print_output

if TYPE_CHECKING:
    from sis.diagnose import RecordedFile


def compare(
    a: str = typer.Argument(..., metavar="A", help="Recording of the behaviour policy; -: standard input."),
    b: str = typer.Argument(..., metavar="B", help="Recording of the current policy; -: standard input."),
    positions: int = typer.Option(10, min=0, help="Number of positions to list, those with the largest |log w|."),
    k: int = typer.Option(
        0, min=0, show_default=False, help="Number of most probable tokens to decide with; 0: all, at most 254."
    ),
    output: Output = OUTPUT,
) -> None:
    """Compares two recordings of log-probs, and says why they differ.

    \b
    Both files hold log-probs of the same prompts, in the same order:
    responses of vLLM, SGLang, llama.cpp or an OpenAI API, as JSON or JSON
    lines. Positions are compared up to and including the first one where the
    sampled tokens differ. No server is asked.

    \b
    The answer to each question has the measured value and its limit. Then
    follow the decisions that the service would make, with A as the behaviour
    policy and B as the current policy. A position is unscored if a file gives
    no log-prob of the sampled token, or one that its list contradicts. k3
    estimates KL(behaviour || current). A recorded token that B does not list
    counts with the smallest log-prob that B lists there for the envelope, and
    with 0 for the mass.

    \b
    Exit codes: 0 no fault found; 1 failed; 2 wrong usage; 3 a fault found.

    \b
    Examples:
      sisctl compare rollout.jsonl trainer.jsonl
      sisctl compare rollout.jsonl trainer.jsonl -o json | jq -r '.verdict[]'
    """
    if a == b == "-":
        raise typer.BadParameter("only one of them can be standard input", param_hint="A, B")
    from sis.cli.checks import comparison_parts
    from sis.diagnose import compare as compare_files

    try:
        comparison = compare_files(_read(a), _read(b), top_k=k)
    except ValueError as error:
        fail(str(error))
    print_output(output, comparison.as_json(), comparison_parts(comparison, positions))
    if comparison.diagnosis.fault:
        raise typer.Exit(FAULT_FOUND)


def _read(name: str) -> RecordedFile:
    from sis.diagnose import read_file

    try:
        return read_file(name, sys.stdin.read() if name == "-" else None)
    except OSError as error:
        fail(f"{name}: {error.strerror or error}")
