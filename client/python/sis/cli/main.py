"""The commands of sisctl. Modules of commands import grpc, numpy and the client only inside the commands, so
that --help is quick."""

from __future__ import annotations

import typer

from sis import __version__
from sis.cli import compare, diagnose, exports, runs, sequences, server, steps, top, web
from sis.cli.output import FAILED

app = typer.Typer(
    name="sisctl",
    help="Shows, compares and exports the records and statistics of a SIS ratio service.",
    epilog="Exit codes: 0 done; 1 failed, or a server gave no answer; 2 wrong usage; 3 a fault found.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


for _noun, _help, _verbs in (
    ("run", "Runs of the service.",
     {"list": runs.list_runs, "show": runs.show, "inspect": sequences.inspect_run, "delete": runs.delete}),
    ("step", "Optimiser steps: all evaluations of one draw.", {"list": steps.list_steps, "show": steps.show}),
    ("sequence", "Sequences and their tokens.", {"list": sequences.list_sequences, "show": sequences.show}),
    ("server", "State of the servers.", {"show": server.show}),
):  # fmt: skip
    _commands = typer.Typer(no_args_is_help=True)
    app.add_typer(_commands, name=_noun, help=_help)
    for _verb, _command in _verbs.items():
        _commands.command(_verb)(_command)
for _command in (top.top, diagnose.diagnose, compare.compare, exports.export, web.web):
    app.command()(_command)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"sisctl {__version__}")
        raise typer.Exit()


@app.callback()
def _options(
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Show the version."),
) -> None: ...


def run() -> None:
    try:
        app(prog_name="sisctl")
    except Exception as error:
        from sis import Error

        if not isinstance(error, Error):
            raise
        typer.echo(f"sisctl: {error.message} ({error.code.name})", err=True)
        if error.code.name == "UNAVAILABLE":
            typer.echo("Does sis_server run there? --server or $SIS_ADDRESS names another address.", err=True)
        raise SystemExit(FAILED) from None
