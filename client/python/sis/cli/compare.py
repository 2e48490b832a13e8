"""sisctl compare."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import typer

from sis.cli.failure import FAULT_FOUND, fail
from sis.cli.output import OUTPUT, Output, console, print_json

if TYPE_CHECKING:
    from sis.diagnose import RecordedFile


def compare(
    a: str = typer.Argument(..., metavar="A", help="A recording, as of the rollout engine; -: standard input."),
    b: str = typer.Argument(..., metavar="B", help="Another one, as of the trainer."),
    positions: int = typer.Option(10, min=0, help="List the positions with the largest |log w|, so many."),
    k: int = typer.Option(
        0, min=0, show_default=False, help="Decide with the k most probable tokens, at most 254; 0: all listed ones."
    ),
    seed: int = typer.Option(0, min=0, max=(1 << 64) - 1, help="Keys the accept/reject draws.", show_default=False),
    output: Output = OUTPUT,
) -> None:
    """Compares two recordings of log-probs, and says why they differ.

    \b
    Both files hold log-probs of the same prompts, in the same order: responses of vLLM, SGLang,
    llama.cpp or an OpenAI API, as JSON or JSON lines. Compared are the positions up to and including
    the first where the sampled tokens differ. No service is asked; decisions are those of one.
    Each question is answered with what was measured and the limit for it. Then follow the decisions,
    with A as the behaviour policy and B as the current one. Unscored are
    positions where a file gives no log-prob of the sampled token, or one that its list contradicts. k3
    (w - 1 - log w) estimates KL(behaviour || current). A token of V_K that the other file does not list
    is bounded by the smallest log-prob that it does list there, and adds nothing to the covered mass.

    \b
    Exit codes: 0 no fault found; 1 failed; 2 wrong usage; 3 a fault found. See docs/compare.md.

    \b
    Examples:
      sisctl compare rollout.jsonl trainer.jsonl
      sisctl compare rollout.jsonl trainer.jsonl -o json | jq -r '.verdict[]'
    """
    if a == b == "-":
        raise typer.BadParameter("only one of them can be standard input", param_hint="A, B")
    from sis.diagnose import compare as compare_files

    try:
        comparison = compare_files(_read(a), _read(b), top_k=k, seed=seed)
    except ValueError as error:
        fail(str(error))
    if output is Output.json:
        print_json(comparison.as_json())
    else:
        from sis.cli.checks import comparison_parts

        for part in comparison_parts(comparison, positions):
            console.print(part)
    if comparison.diagnosis.fault:
        raise typer.Exit(FAULT_FOUND)


def _read(name: str) -> RecordedFile:
    from sis.diagnose import read_file

    try:
        return read_file(name, sys.stdin.read() if name == "-" else None)
    except OSError as error:
        fail(f"{name}: {error.strerror or error}")
