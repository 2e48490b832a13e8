"""How a command fails. Exit codes: 0 done, 1 failed, refused or no answer, 2 wrong usage, 3 a fault found."""

from __future__ import annotations

import importlib.util
from typing import NoReturn

import typer

FAILED = 1
FAULT_FOUND = 3


def fail(message: str) -> NoReturn:
    """Ends the command with one line on standard error."""
    typer.echo(f"sisctl: {message}", err=True)
    raise typer.Exit(FAILED)


def need(module: str, extra: str = "cli") -> None:
    """Fails if a package of an extra is not installed."""
    if importlib.util.find_spec(module) is None:
        fail(f"this needs {module}: pip install 'sis-ratio[{extra}]'")
