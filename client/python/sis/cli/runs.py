"""sisctl run list, show, delete."""

from __future__ import annotations

import typer
from rich.text import Text

from sis.cli.connection import RUN, SERVER, connect, connected
from sis.cli.output import (
    OUTPUT, Output, Rows, bytes_text, count_text, finding_texts, of, or_dash, print_output, properties, verdict_text,
)  # fmt: skip

_COLUMNS = {
    "RUN": of("run.id"),
    "VERDICT": of("verdict", verdict_text),
    "VERSION": of("policy_version"),
    "LAST DRAW": of("last_draw", or_dash),
    "SEQUENCES": of("sequences"),
    "POSITIONS": of("positions", count_text),
    "MEMORY": of("bytes", bytes_text),
    "OWNER": of("owner", or_dash),
    "TASK": of("run.config.task", or_dash),
}


def list_runs(output: Output = OUTPUT, server: str = SERVER) -> None:
    """Lists the runs and what they hold, the worst first.

    \b
    Examples:
      sisctl run list
      sisctl run list --server ratios-0:50051,ratios-1:50051
      sisctl run list -o json | jq '.runs[] | {id: .run.id, verdict}'
    """
    with connected(server) as client:
        runs = client.list_runs()
        worst_first = sorted(runs, key=lambda status: -status.verdict)
        to_go = ("OWNER", "TASK", "POSITIONS", "VERSION")
        table = Rows(_COLUMNS, worst_first, left=("RUN", "VERDICT", "OWNER", "TASK"), first_to_go=to_go)
        print_output(output, {"runs": list(runs), "unanswered": runs.unanswered}, [table])


def show(run: str = RUN, output: Output = OUTPUT, server: str = SERVER) -> None:
    """Shows the settings, contents and problems of a run.

    \b
    Examples:
      sisctl run show math-7b
      sisctl run show math-7b -o json | jq .findings
    """
    with connected(server) as client:
        status = client.get_run(run)
        config = status.run.config
        sequences = f"{status.sequences}, {status.sealed_sequences} sealed, {status.unread_sequences} unread"
        if status.kept_sequences:
            sequences += f", {status.kept_sequences} kept for a trainer"
        rows = {
            "run": status.run.id,
            "incarnation": status.run.incarnation,
            "seed": config.seed,
            "vocabulary size": config.vocabulary_size,
            "top-K": config.top_k,
            "mass": f"{config.mass:g}" if config.mass else "whole sets",
            "time to live": f"{config.time_to_live:g} s" if config.time_to_live else "no limit",
            "maximum staleness": "no limit" if config.max_staleness is None else config.max_staleness,
            "byte quota": bytes_text(config.byte_quota) if config.byte_quota else "the server's budget",
            "evicts unread": "yes" if config.evict_unread else "no",
            "log-prob encoding": config.log_prob_encoding,
            "task": or_dash(config.task),
            "algorithm": or_dash(config.algorithm),
            "model": or_dash(config.model),
            "owner": or_dash(status.owner),
            "policy version": status.policy_version,
            "sequences": sequences,
            "positions": status.positions,
            "memory": bytes_text(status.bytes),
            "last draw": or_dash(status.last_draw),
            "verdict": verdict_text(status.verdict),
        }
        print_output(output, status, [properties(rows), *finding_texts(status)])


def delete(
    run: str = RUN,
    incarnation: int = typer.Option(0, min=0, help="Incarnation to delete; 0: the current one."),
    yes: bool = typer.Option(False, "--yes", "-y", help="Delete without a question."),
    output: Output = OUTPUT,
    server: str = SERVER,
) -> None:
    """Deletes a run with all its records.

    \b
    Fails if a server is unreachable: the run may still be there.
    Then repeat the command.

    \b
    Examples:
      sisctl run delete math-7b
      sisctl run delete math-7b --incarnation 3 --yes
    """
    if not yes:
        typer.confirm(f"Delete run {run} with all its records?", abort=True, err=True)
    with connect(server) as client:
        deleted = client.delete_run(run, incarnation=incarnation)
    print_output(output, {"deleted": deleted}, [Text(f"run {run}: {'deleted' if deleted else 'was not there'}")])
