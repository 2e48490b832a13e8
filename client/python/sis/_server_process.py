"""A server that this process starts, for a laptop or a single machine."""

from __future__ import annotations

import atexit
import collections
import contextlib
import importlib.util
import os
import shutil
import subprocess
import threading
from typing import Deque, Dict, List

from sis._owner import Owner

# Timeouts, in seconds, for the end of the server and for reading its last output.
_END_TIMEOUT = 30.0
_READ_TIMEOUT = 1.0
# Seconds between checks that the server still runs, until it is ready.
_LOOK_EVERY = 0.05
# Number of lines in the error of a server that was never ready.
_LINES_TOLD = 20


class LocalServer:
    """An sis_server that runs until `close`, or until this process ends, whatever ends it. A context
    manager."""

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
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
        )
        atexit.register(self.close)
        # Properties that the server prints before it is ready: addresses, backend, store.
        self._said: Dict[str, str] = {}
        self._printed: Deque[str] = collections.deque(maxlen=_LINES_TOLD)
        self._ready = threading.Event()
        self._readers = [
            threading.Thread(target=read, name="sis-server-output", daemon=True)
            for read in (self._read_said, self._read_log)
        ]
        for reader in self._readers:
            reader.start()
        while not self._ready.wait(_LOOK_EVERY):
            # Its output may never end, because a process that it started may hold the pipes too.
            code = self._process.poll()
            if code is not None:
                self.close()
                printed = "".join(self._printed).strip() or "no word"
                raise RuntimeError(f"sis_server ended with status {code} before it was ready: {printed}")

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
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(_END_TIMEOUT)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        for reader in self._readers:
            reader.join(_READ_TIMEOUT)

    def _read_said(self) -> None:
        """Runs in a thread."""
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                if line == "ready\n":
                    self._ready.set()
                else:
                    self._printed.append(line)
                    name, _, value = line.strip().partition(": ")
                    self._said[name] = value

    def _read_log(self) -> None:
        """Passes the server's standard error on to that of this process. Runs in a thread."""
        assert self._process.stderr is not None
        with self._process.stderr as lines:
            for line in lines:
                self._printed.append(line)
                # It may be closed.
                with contextlib.suppress(OSError):
                    os.write(2, line.encode())

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
