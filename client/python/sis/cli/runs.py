"""sisctl run list, show, delete."""

from __future__ import annotations

from typing import List, Tuple

import typer

from sis.cli.connection import RUN, SERVER, connect, connected
from sis.cli.output import OUTPUT, Cell, Output, Rows, bytes_text, console, count_text, print_json, properties
from sis.cli.verdicts import finding_texts, verdict_text


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
        if output is Output.json:
            print_json({"runs": list(runs), "unanswered": runs.unanswered})
            return
        rows = Rows(
            "RUN", "VERDICT", "VERSION", "LAST DRAW", "SEQUENCES", "POSITIONS", "MEMORY", "OWNER", "TASK",
            left=("RUN", "VERDICT", "OWNER", "TASK"), first_to_go=("OWNER", "TASK", "POSITIONS", "VERSION"),
        )  # fmt: skip
        for status in sorted(runs, key=lambda status: -status.verdict):
            rows.add(
                status.run.id,
                verdict_text(status.verdict),
                status.policy_version,
                "-" if status.last_draw is None else status.last_draw,
                status.sequences,
                count_text(status.positions),
                bytes_text(status.bytes),
                status.owner or "-",
                status.run.config.task or "-",
            )
        console.print(rows)


def show(run: str = RUN, output: Output = OUTPUT, server: str = SERVER) -> None:
    """Shows the settings, contents and problems of a run.

    \b
    Examples:
      sisctl run show math-7b
      sisctl run show math-7b -o json | jq .findings
    """
    with connected(server) as client:
        status = client.get_run(run)
        if output is Output.json:
            print_json(status)
            return
        config = status.run.config
        sequences = f"{status.sequences}, {status.sealed_sequences} sealed, {status.unread_sequences} unread"
        if status.kept_sequences:
            sequences += f", {status.kept_sequences} kept for a trainer"
        rows: List[Tuple[str, Cell]] = [
            ("run", status.run.id),
            ("incarnation", status.run.incarnation),
            ("seed", config.seed),
            ("vocabulary size", config.vocabulary_size),
            ("top-K", config.top_k),
            ("mass", f"{config.mass:g}" if config.mass else "whole sets"),
            ("time to live", f"{config.time_to_live:g} s" if config.time_to_live else "no limit"),
            ("maximum staleness", "no limit" if config.max_staleness is None else config.max_staleness),
            ("byte quota", bytes_text(config.byte_quota) if config.byte_quota else "the server's budget"),
            ("evicts unread", "yes" if config.evict_unread else "no"),
            ("log-prob encoding", config.log_prob_encoding),
            ("task", config.task or "-"),
            ("algorithm", config.algorithm or "-"),
            ("model", config.model or "-"),
            ("owner", status.owner or "-"),
            ("policy version", status.policy_version),
            ("sequences", sequences),
            ("positions", status.positions),
            ("memory", bytes_text(status.bytes)),
            ("last draw", "-" if status.last_draw is None else status.last_draw),
            ("verdict", verdict_text(status.verdict)),
        ]
        console.print(properties(rows))
        for line in finding_texts(status):
            console.print(line)


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
    if output is Output.json:
        print_json({"deleted": deleted})
    else:
        console.print(f"run {run}: " + ("deleted" if deleted else "was not there"))
