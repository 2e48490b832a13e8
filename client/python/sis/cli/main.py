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


def _noun(name: str, help: str) -> typer.Typer:
    noun = typer.Typer(no_args_is_help=True)
    app.add_typer(noun, name=name, help=help)
    return noun


run_commands = _noun("run", "Runs of the service.")
run_commands.command("list")(runs.list_runs)
run_commands.command("show")(runs.show)
run_commands.command("inspect")(sequences.inspect_run)
run_commands.command("delete")(runs.delete)
step_commands = _noun("step", "Optimiser steps: all evaluations of one draw.")
step_commands.command("list")(steps.list_steps)
step_commands.command("show")(steps.show)
sequence_commands = _noun("sequence", "Sequences and their tokens.")
sequence_commands.command("list")(sequences.list_sequences)
sequence_commands.command("show")(sequences.show)
server_commands = _noun("server", "State of the servers.")
server_commands.command("show")(server.show)
app.command("top")(top.top)
app.command("diagnose")(diagnose.diagnose)
app.command("compare")(compare.compare)
app.command("export")(exports.export)
app.command("web")(web.web)


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
