"""Identity of a client, and authentication of servers."""

from __future__ import annotations

import os
import pathlib
import re
import threading
import time
from dataclasses import dataclass
from typing import Any, Callable, Optional, Sequence, Tuple

import grpc

# Seconds after which a token file is checked again.
_TOKEN_AGE = 5.0

# gRPC sends no other characters in metadata, and would raise an error that shows the token.
_TOKEN = re.compile("[!-~]+")

_LOCAL = re.compile(r"(?:(?:dns|ipv4|ipv6):(?:///)?)?(?:localhost|127(?:\.\d+){3}|\[::1\])(?::\d+)?")


@dataclass(frozen=True)
class Credentials:
    """The identity of a client, and the authorities that it trusts (docs/security.md). Files
    are in PEM.

    Attributes:
        tls: Whether to use TLS. Implied by ca, certificate or key.
        ca: File of the authorities of server certificates; empty: those that gRPC trusts.
        certificate: File of the client's certificate, which may identify it.
        key: File of the certificate's key.
        token: The token that identifies the client.
        token_file: File of the token, read again when it changes; not together with `token`.
        plaintext_token: Whether to send the token in plain text to other machines, where others may see and use it.
    """

    tls: bool = False
    ca: str = ""
    certificate: str = ""
    key: str = ""
    token: str = ""
    token_file: str = ""
    plaintext_token: bool = False

    def __post_init__(self) -> None:
        if bool(self.certificate) != bool(self.key):
            raise ValueError("certificate and key go together")
        if self.token and self.token_file:
            raise ValueError("token and token_file: at most one of them")
        if self.token and not _TOKEN.fullmatch(self.token):
            raise ValueError("token: has to be visible ASCII, without spaces")

    @staticmethod
    def from_environment() -> Credentials:
        """Reads SIS_TLS (1), SIS_CA_FILE, SIS_CERTIFICATE_FILE, SIS_KEY_FILE, SIS_TOKEN, SIS_TOKEN_FILE and
        SIS_PLAINTEXT_TOKEN (1). Unset variables leave the defaults.

        Returns:
            The credentials.
        """

        def value(name: str) -> str:
            return os.environ.get(f"SIS_{name}", "")

        return Credentials(
            tls=value("TLS") == "1",
            ca=value("CA_FILE"),
            certificate=value("CERTIFICATE_FILE"),
            key=value("KEY_FILE"),
            token=value("TOKEN"),
            token_file=value("TOKEN_FILE"),
            plaintext_token=value("PLAINTEXT_TOKEN") == "1",
        )

    def channel(self, address: str, options: Sequence[Tuple[str, Any]]) -> grpc.Channel:
        """Opens a channel. For this package.

        Args:
            address: gRPC target.
            options: Channel arguments.

        Returns:
            The channel.

        Raises:
            ValueError: A token would travel to another machine in plain text, or a file is empty.
            OSError: A file can't be read.
        """
        has_token = bool(self.token or self.token_file)
        # Unix sockets stay within the machine's kernel: servers offer no TLS there.
        if not is_unix_socket(address) and (self.tls or self.ca or self.certificate):
            channel = grpc.secure_channel(address, self._tls(), options)
        elif has_token and not (self.plaintext_token or is_local(address)):
            raise ValueError(
                f"{address}: the token would travel in plain text; set tls or ca, or plaintext_token to send it all the same"
            )
        else:
            channel = grpc.insecure_channel(address, options)
        if not has_token:
            return channel
        token = _TokenFile(self.token_file).token if self.token_file else lambda: self.token
        return grpc.intercept_channel(channel, _TokenInterceptor(token))

    def _tls(self) -> grpc.ChannelCredentials:
        def read(path: str) -> Optional[bytes]:
            if not path:
                return None
            text = pathlib.Path(path).read_bytes()
            # For gRPC that would be as if it had not been named.
            if not text:
                raise ValueError(f"{path} is empty")
            return text

        return grpc.ssl_channel_credentials(read(self.ca), read(self.key), read(self.certificate))


def is_unix_socket(address: str) -> bool:
    return address.startswith(("unix:", "unix-abstract:"))


def is_local(address: str) -> bool:
    """Returns True if the server is on this machine: at a Unix socket, or the loopback interface."""
    return is_unix_socket(address) or _LOCAL.fullmatch(address) is not None


def _read_token(path: str) -> str:
    """The first word of the file. ValueError if that is not a token."""
    words = pathlib.Path(path).read_bytes().decode("ascii", errors="replace").split()
    if not words or not _TOKEN.fullmatch(words[0]):
        raise ValueError(f"{path} holds no token, which is visible ASCII")
    return words[0]


class _TokenFile:
    """The token in a file, which may change. Thread-safe."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._lock = threading.Lock()
        # Guarded by _lock.
        self._token = _read_token(path)
        self._read_at = time.monotonic()

    def token(self) -> str:
        with self._lock:
            if time.monotonic() - self._read_at >= _TOKEN_AGE:
                try:
                    self._token = _read_token(self._path)
                except (OSError, ValueError):
                    pass  # One that is just being replaced changes nothing.
                self._read_at = time.monotonic()
            return self._token


class _TokenInterceptor(
    grpc.UnaryUnaryClientInterceptor,
    grpc.UnaryStreamClientInterceptor,
    grpc.StreamUnaryClientInterceptor,
    grpc.StreamStreamClientInterceptor,
):
    """Puts the token into every call."""

    def __init__(self, token: Callable[[], str]) -> None:
        self._token = token

    def _with_token(self, continuation: Callable[..., Any], details: Any, request: Any) -> Any:
        # gRPC's own details are a named tuple.
        metadata = [*(details.metadata or ()), ("authorization", f"Bearer {self._token()}")]
        return continuation(details._replace(metadata=metadata), request)

    intercept_unary_unary = _with_token
    intercept_unary_stream = _with_token
    intercept_stream_unary = _with_token
    intercept_stream_stream = _with_token
