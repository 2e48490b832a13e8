"""sisctl web."""

from __future__ import annotations

import threading
import webbrowser
from typing import Optional

import typer

from sis.cli.connection import SERVER, addresses, connect
from sis.cli.output import fail, need
from sis.cli.sequences import TOKENIZER, read_tokenizer

# Timeout of a call, in seconds; below the timeout of the page (sis/web/page/api.js).
_TIMEOUT = 7.0


def web(
    port: int = typer.Option(9465, min=0, max=65535, help="Port of the page; 0: a free port."),
    open_: bool = typer.Option(False, "--open", help="Open the page in a browser."),
    tokenizer: Optional[str] = TOKENIZER,
    server: str = SERVER,
) -> None:
    """Serves a page with runs, charts, diagnoses and tokens to browsers, until Ctrl-C.

    \b
    The page shows all servers that --server names. It asks them with your
    credentials, so everybody who can log in to this machine sees what you may
    see. Only browsers on this machine can open it. From another machine
    forward the port: ssh -L 9465:localhost:9465 HOST

    \b
    Examples:
      sisctl web --open
      sisctl web --server ratios-0:50051,ratios-1:50051
    """
    need("starlette")
    need("uvicorn")
    from sis.web import app

    texts = read_tokenizer(tokenizer) or None
    try:
        listener = app.listen(port)
    except OSError as error:
        fail(f"--port: cannot listen at {port}: {error.strerror}; 0 takes a free port")
    with connect(server, _TIMEOUT) as client:
        url = app.url(listener)
        typer.echo(f"The page is at {url} until Ctrl+C")
        if open_:
            # A browser in this terminal would hold up its own page.
            threading.Thread(target=webbrowser.open, args=(url,), daemon=True).start()
        app.serve(app.make_app(client, addresses(server), texts), listener)
