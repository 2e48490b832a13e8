"""sisctl export."""

from __future__ import annotations

import enum
import sys
from typing import Optional

import typer

from sis.cli.connection import RUN, SERVER, connected
from sis.cli.output import fail, need


class Format(str, enum.Enum):
    parquet = "parquet"
    csv = "csv"
    json = "json"


_BY_ENDING = {"parquet": Format.parquet, "csv": Format.csv, "json": Format.json, "jsonl": Format.json}


def export(
    run: str = RUN,
    file: str = typer.Argument("-", metavar="[FILE]", show_default=False, help="File to write; -: standard output."),
    format: Optional[Format] = typer.Option(
        None, "--format", "-f", show_default=False, help="Format; default: by the ending of FILE, JSON lines for -."
    ),
    server: str = SERVER,
) -> None:
    """Exports the positions that a run has in memory: Parquet, CSV or JSON lines.

    \b
    Columns: sequence, attempt, position, newest_policy_version (of the
    sequence), missing (the reason why there is no record), sampled_id,
    sampled_log_prob, ids and log_probs (the recorded set, most probable
    first, in nats). Columns of the last evaluation, if its values are kept:
    draw, decision, log_ratio, acceptance_probability, log_envelope,
    residual_mass, staleness, current_log_probs. Exported sequences count as
    read. Parquet needs pyarrow.

    \b
    Examples:
      sisctl export math-7b math-7b.parquet
      sisctl export math-7b | jq -c 'select(.decision == "rejected")'
    """
    ending = file.rpartition(".")[2].lower()
    if format is None:
        format = Format.json if file == "-" else _BY_ENDING.get(ending)
    if format is None:
        raise typer.BadParameter(f"{file!r} ends in none of {', '.join(_BY_ENDING)}", param_hint="--format")
    if format is Format.parquet:
        need("pyarrow", "export")
    with connected(server) as client:
        from sis.export import export, export_to

        found = client.get_run(run).run
        if file == "-":
            export_to(client, found, sys.stdout.buffer, format.value)
            sys.stdout.flush()
            return
        try:
            written = export(client, found, file, format.value)
        except OSError as error:
            fail(f"{file}: {error.strerror or error}")
        typer.echo(f"wrote {written.positions} positions of {written.sequences} sequences to {file}")
