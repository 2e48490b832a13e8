"""A server that this process starts, for a laptop or a single machine."""

from __future__ import annotations

import atexit
import importlib.util
import os
import shutil
import subprocess
from typing import Dict, List

from sis._owner import Owner

# Timeout for the end of the server, in seconds.
_END_TIMEOUT = 30.0


class LocalServer:
    """An sis_server that runs until `close`, or until this process ends, whatever ends it. It logs to this
    process's standard error. A context manager."""

    def __init__(self, flags: List[str]) -> None:
        """Starts a server and waits until it is ready.

        Args:
            flags: Flags of sis_server.
        """
        binary = _binary()
        self._owner = Owner()
        self._process = subprocess.Popen(
            [binary, f"--parent={os.getpid()}", "--listen=127.0.0.1:0", "--admin=127.0.0.1:0", *flags],
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,  # Ctrl-C is for this process; the server ends with it.
        )
        atexit.register(self.close)
        # Properties that the server prints before it is ready: addresses, backend, store.
        self._said: Dict[str, str] = {}
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line == "ready\n":
                return
            name, _, value = line.strip().partition(": ")
            self._said[name] = value
        self.close()
        raise RuntimeError(f"sis_server ended with status {self._process.returncode} before it was ready: see its log")

    @property
    def address(self) -> str:
        """Address for sis.Client."""
        return self._said["grpc"]

    @property
    def admin_address(self) -> str:
        """Address of /metrics, /livez and /readyz."""
        return self._said["admin"]

    def close(self) -> None:
        """Ends the server after the calls in progress. Idempotent. Does nothing in a process that was forked from the
        one that started the server."""
        if not self._owner.here:
            return
        atexit.unregister(self.close)
        self._process.terminate()
        try:
            self._process.wait(_END_TIMEOUT)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def __enter__(self) -> LocalServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def local_server(*flags: str, cache_bytes: int = 1 << 30) -> LocalServer:
    """Starts sis_server on this machine, and returns when it is ready.

    It listens on a free port of the loopback interface. To look at its runs in a browser: `sisctl web --open
    --server=ADDRESS`, with its `address`.

    Args:
        flags: Further flags of sis_server, such as "--store=rocksdb:DIR".
        cache_bytes: Most bytes that it holds.

    Returns:
        The server, a context manager.

    Raises:
        FileNotFoundError: There is no sis_server. The wheel sis-ratio-server has one (`tools/wheels` of the repository
            makes it).
        RuntimeError: It ended before it was ready.
    """
    return LocalServer([f"--cache_bytes={cache_bytes}", *flags])


def _binary() -> str:
    if importlib.util.find_spec("sis_ratio_server"):
        import sis_ratio_server

        return str(sis_ratio_server.BINARY)
    found = shutil.which("sis_server")
    if found is None:
        raise FileNotFoundError(
            "there is no sis_server: install the wheel sis-ratio-server, which tools/wheels of the repository makes, or "
            "put one on PATH"
        )
    return found
