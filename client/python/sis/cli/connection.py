"""The servers that a command asks."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Iterator, List, Optional

import typer

from sis.cli.output import fail

if TYPE_CHECKING:
    from sis import Client

SERVER = typer.Option(
    "localhost:50051", "--server", envvar="SIS_ADDRESS", metavar="HOST:PORT,...",
    help="Addresses of the servers. TLS and credentials come from the environment: SIS_TLS, SIS_CA_FILE, "
    "SIS_CERTIFICATE_FILE, SIS_KEY_FILE, SIS_TOKEN_FILE.",
)  # fmt: skip


def addresses(server: str) -> List[str]:
    """Splits the value of --server."""
    return [address for address in server.split(",") if address]


def connect(server: str, timeout: float = 20.0) -> Client:
    """Makes a client of one server, or of several as if they were one, that opens no lost run again. Sends nothing
    yet."""
    from sis import Client

    named = addresses(server)
    try:
        return Client(named[0] if len(named) == 1 else named, timeout=timeout, reopen_runs=False)
    except (OSError, ValueError) as error:  # of credentials, or an address stands twice
        fail(str(error))


@contextlib.contextmanager
def connected(server: str) -> Iterator[Client]:
    """Makes a client for a command that shows what all servers hold.

    After the command, fails if a server is unreachable: its share was not shown. A NotFound then names the server too,
    because it may hold the missing object.
    """
    from sis import Error, NotFound
    from sis._errors import is_unreachable

    with connect(server) as client:
        not_found: Optional[NotFound] = None
        try:
            yield client
        except NotFound as error:
            not_found = error
        # A single one has answered.
        states = client.get_servers() if len(addresses(server)) > 1 else ()
        silent = [
            f"{address} gives no answer, and what it holds is not shown: {state.message}"
            for address, state in zip(addresses(server), states)
            if isinstance(state, Error) and is_unreachable(state)
        ]
        if silent:
            fail("; ".join(silent if not_found is None else [not_found.message, *silent]))
        if not_found is not None:
            raise not_found


def complete_run(ctx: typer.Context, incomplete: str) -> List[str]:
    """Returns the run ids that begin with `incomplete`, from the servers that the command line names."""
    from sis import Error

    try:
        with connect(ctx.params.get("server") or "", timeout=2.0) as client:
            return [status.run.id for status in client.list_runs() if status.run.id.startswith(incomplete)]
    except (Error, typer.Exit):
        return []


RUN = typer.Argument(..., metavar="RUN", help="Id of the run.", autocompletion=complete_run)
