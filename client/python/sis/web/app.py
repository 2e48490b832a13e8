"""The web application: the page's files, calls as JSON, the diagnosis of a run and its export; and its server."""

from __future__ import annotations

import contextlib
import mimetypes
import os
import re
import socket
import tempfile
import threading
from typing import Any, Mapping, Optional, Sequence

import grpc
import uvicorn
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.datastructures import Headers, MutableHeaders
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from sis._client import Client
from sis.diagnose import diagnose_run
from sis._errors import Error, InvalidArgument, is_away
from sis.export import export as write_export
from sis.web import bridge

_HEADERS = {
    # Everything that the page is made of comes from here, and nobody may put it into a frame.
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}

# Names that lead to this machine only. A page from elsewhere whose own name leads here (DNS rebinding) names itself.
_HOST = re.compile(r"(localhost|127\.0\.0\.1|\[::1\])(:\d+)?", re.IGNORECASE)

_STATUSES = {
    grpc.StatusCode.NOT_FOUND: 404,
    grpc.StatusCode.INVALID_ARGUMENT: 400,
    grpc.StatusCode.FAILED_PRECONDITION: 400,
    grpc.StatusCode.UNAUTHENTICATED: 401,
    grpc.StatusCode.PERMISSION_DENIED: 403,
}

# Ending of the file, and its type, by format of Client.export.
_EXPORTS = {
    "parquet": (".parquet", "application/vnd.apache.parquet"),
    "csv": (".csv", "text/csv; charset=utf-8"),
    "json": (".jsonl", "application/jsonl"),
}

# Bazel makes the files links. StaticFiles refuses those of a folder that is one itself.
_PAGE = os.path.join(os.path.realpath(os.path.dirname(__file__)), "page")

# Browsers refuse modules of another type, which some systems have for this suffix.
mimetypes.add_type("text/javascript", ".js")


def make_app(client: Client, addresses: Sequence[str], token_texts: Optional[Mapping[int, str]] = None) -> Starlette:
    """Returns the application, which calls the service through `client`.

    Args:
        client: Must not open lost runs again. Everybody who can connect to the application reads what it may read.
        addresses: The addresses of the client's servers, in its order.
        token_texts: Texts of tokens by id. None: the page shows ids.
    """
    # A diagnosis or an export takes memory and a core.
    one_at_a_time = threading.Lock()

    # Starlette runs functions that are not coroutines in threads.
    def call(request: Request) -> Response:
        query = request.query_params.multi_items()
        return JSONResponse(bridge.call_for_json(client, addresses, request.path_params["method"], query))

    def diagnose(request: Request) -> Response:
        run_id = _run_id(request)
        with one_at_a_time:
            return JSONResponse(diagnose_run(client, run_id).as_json())

    def export(request: Request) -> Response:
        format = request.query_params.get("format", "parquet")
        if format not in _EXPORTS:
            raise _invalid(f"format: '{format}'; must be one of {', '.join(_EXPORTS)}")
        ending, media_type = _EXPORTS[format]
        run = client.get_run(_run_id(request)).run
        with contextlib.ExitStack() as stack:
            path = os.path.join(stack.enter_context(tempfile.TemporaryDirectory()), "rows")
            with one_at_a_time:
                write_export(client, run, path, format)
            task = BackgroundTask(stack.pop_all().close)
        return FileResponse(path, media_type=media_type, filename=run.id + ending, background=task)

    def texts(request: Request) -> Response:
        # Not 404 without texts: every page asks, and a browser's console would complain.
        return JSONResponse(token_texts)

    return Starlette(
        routes=[
            Route("/api/Diagnose", diagnose),
            Route("/api/Export", export),
            Route("/api/{method}", call),
            Route("/token_texts.json", texts),
            Mount("/", StaticFiles(directory=_PAGE, html=True, follow_symlink=True)),
        ],
        middleware=[Middleware(_OfThisMachine)],
        exception_handlers={Error: _answer_error, ImportError: _answer_missing_package},
    )


class _OfThisMachine:
    """Refuses what pages from elsewhere make a browser ask, and adds the headers that all responses have."""

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        async def send_with_headers(message: Any) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(_HEADERS)
            await send(message)

        headers = Headers(scope=scope)
        app = self._app
        if not _HOST.fullmatch(headers.get("host", "")):
            app = PlainTextResponse("This page has another name: http://127.0.0.1 or http://localhost\n", 421)
        elif scope["path"].startswith("/api/") and headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
            app = PlainTextResponse("This page answers no other pages\n", 403)
        await app(scope, receive, send_with_headers)


def _run_id(request: Request) -> str:
    run_id = request.query_params.get("run_id", "")
    if not run_id:
        raise _invalid("run_id: missing")
    return run_id


def _invalid(message: str) -> Error:
    return InvalidArgument(grpc.StatusCode.INVALID_ARGUMENT, message)


def _answer_error(request: Request, error: Any) -> Response:
    body = {"code": error.code.name, "message": error.message}
    return JSONResponse(body, 503 if is_away(error) else _STATUSES.get(error.code, 500))


def _answer_missing_package(request: Request, error: Any) -> Response:
    return JSONResponse({"code": "UNIMPLEMENTED", "message": str(error)}, 501)


def listen(port: int) -> socket.socket:
    """Returns a socket at `port` of the loopback interface; 0 is a free port. Raises OSError if the port is taken."""
    return socket.create_server(("127.0.0.1", port))


def url(listener: socket.socket) -> str:
    host, port = listener.getsockname()
    return f"http://{host}:{port}/"


def make_server(app: Starlette) -> uvicorn.Server:
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
        make_server(app).run(sockets=[listener])
