"""Serves the web application to this machine."""

from __future__ import annotations

import contextlib
import socket

import uvicorn
from starlette.applications import Starlette


def listen(port: int) -> socket.socket:
    """Returns a socket at `port` of the loopback interface; 0 is a free port. Raises OSError if the port is taken."""
    return socket.create_server(("127.0.0.1", port))


def url(listener: socket.socket) -> str:
    host, port = listener.getsockname()
    return f"http://{host}:{port}/"


def make(app: Starlette) -> uvicorn.Server:
    config = uvicorn.Config(
        app,
        access_log=False,
        http="h11",
        lifespan="off",
        log_level="warning",
        proxy_headers=False,
        server_header=False,
        ws="none",
    )
    return uvicorn.Server(config)


def serve(app: Starlette, listener: socket.socket) -> None:
    """Answers requests until the process is interrupted or terminated."""
    # Newer versions of uvicorn raise it again at the end.
    with contextlib.suppress(KeyboardInterrupt):
        make(app).run(sockets=[listener])
