"""The options that name servers and credentials, for all commands that ask a server."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import sys
import typing
from typing import TYPE_CHECKING, Any, Callable, Dict, Iterator, List, Optional

import typer

from sis.cli.failure import fail

if TYPE_CHECKING:
    from sis import Client, Credentials


def _option(default: Any, *names: str, help: str, **settings: Any) -> Any:
    settings.setdefault("show_default", bool(default))
    return typer.Option(default, *names, help=help, rich_help_panel="Connection", **settings)


@dataclasses.dataclass(frozen=True)
class Connection:
    """The values of the options. Each field is an option, whose default is a Typer option."""

    server: str = _option(
        "localhost:50051", "--server", envvar="SIS_ADDRESS", metavar="HOST:PORT,...",
        help="The service; its replicas, with commas, as workers and trainers name them.",
    )  # fmt: skip
    tls: bool = _option(False, "--tls", help="Use TLS ($SIS_TLS=1).")
    ca: Optional[str] = _option(
        None, "--ca", metavar="FILE", help="Certificates that may sign the server's ($SIS_CA_FILE)."
    )
    certificate: Optional[str] = _option(
        None, "--certificate", metavar="FILE", help="Own certificate ($SIS_CERTIFICATE_FILE)."
    )
    key: Optional[str] = _option(None, "--key", metavar="FILE", help="Key of the own certificate ($SIS_KEY_FILE).")
    token_file: Optional[str] = _option(
        None, "--token-file", metavar="FILE",
        help="File of the token, -: standard input ($SIS_TOKEN_FILE, or $SIS_TOKEN with the token itself).",
    )  # fmt: skip
    plaintext_token: bool = _option(
        False, "--plaintext-token", help="Send the token to other machines without TLS too ($SIS_PLAINTEXT_TOKEN=1)."
    )

    @property
    def addresses(self) -> List[str]:
        """The addresses of the servers."""
        return [address for address in self.server.split(",") if address]

    def credentials(self) -> Credentials:
        """Returns the environment's credentials, replaced by those of the options."""
        from sis import Credentials

        own = Credentials.from_environment()
        given = {
            name: value
            for name in ("tls", "ca", "certificate", "key", "token_file", "plaintext_token")
            if (value := getattr(self, name))
        }
        if "token_file" in given:
            given["token"] = ""
        if given.get("token_file") == "-":
            words = sys.stdin.read().split()
            if not words:
                fail("credentials: standard input holds no token")
            given.update(token_file="", token=words[0])
        return dataclasses.replace(own, **given)

    def client(self, timeout: float = 20.0) -> Client:
        """Makes a client of one server, or of several as if they were one, that opens no lost run again. Sends nothing
        yet."""
        from sis import Client

        addresses = self.addresses
        try:
            return Client(
                addresses[0] if len(addresses) == 1 else addresses,
                timeout=timeout,
                credentials=self.credentials(),
                reopen_runs=False,
            )
        except (OSError, ValueError) as error:  # of credentials, or an address stands twice
            fail(str(error))

    @contextlib.contextmanager
    def whole(self) -> Iterator[Client]:
        """Makes a client for a command that shows what all servers hold. After the command, fails if a server
        gave no answer, because its share was not shown. Then a NotFound says so too: what was not found
        may be on that server."""
        from sis import Error, NotFound
        from sis.errors import is_unreachable

        with self.client() as client:
            not_found: Optional[NotFound] = None
            try:
                yield client
            except NotFound as error:
                not_found = error
            # A single one has answered.
            states = client.get_servers() if len(self.addresses) > 1 else ()
            silent = [
                f"server {number} of {len(states)} gives no answer, and what it holds is not shown: {state.message}"
                for number, state in enumerate(states, 1)
                if isinstance(state, Error) and is_unreachable(state)
            ]
            if silent:
                fail("; ".join(silent if not_found is None else [not_found.message, *silent]))
            if not_found is not None:
                raise not_found


def complete_run(ctx: typer.Context, incomplete: str) -> List[str]:
    """Returns the run ids that begin with `incomplete`, from the servers that the command line names."""
    from sis import Error

    given: Dict[str, Any] = {field.name: ctx.params.get(field.name) for field in dataclasses.fields(Connection)}
    connection = Connection(**given)
    try:
        with connection.client(timeout=2.0) as client:
            return [status.run.id for status in client.list_runs() if status.run.id.startswith(incomplete)]
    except (Error, typer.Exit):
        return []


RUN = typer.Argument(..., metavar="RUN", help="Id of the run.", autocompletion=complete_run)


def connected(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the connection options to a command, which gets them as its first argument, a Connection."""
    hints = typing.get_type_hints(command)
    own = [
        parameter.replace(annotation=hints[name])
        for name, parameter in list(inspect.signature(command).parameters.items())[1:]
    ]
    types = typing.get_type_hints(Connection)
    options = [
        inspect.Parameter(
            field.name, inspect.Parameter.KEYWORD_ONLY, default=field.default, annotation=types[field.name]
        )
        for field in dataclasses.fields(Connection)
    ]

    @functools.wraps(command)
    def run(**arguments: Any) -> Any:
        connection = Connection(**{option.name: arguments.pop(option.name) for option in options})
        return command(connection, **arguments)

    parameters = [*(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in own), *options]
    # Typer reads both.
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run
