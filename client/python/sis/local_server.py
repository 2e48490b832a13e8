"""A server of this process, for a laptop or a single machine."""

from __future__ import annotations

import atexit
import importlib.util
import os
import shutil
import subprocess
import tempfile
from typing import Dict, List, Optional

from sis.owner import Owner

# Seconds that a server may take to end what it is doing.
_END_TIMEOUT = 30.0


class LocalServer:
    """An sis_server that runs until `close`, or until this process ends, whatever ends it. A context
    manager."""

    def __init__(self, flags: List[str], shared_memory_bytes: int) -> None:
        binary = _binary()
        self._owner = Owner()
        # For its socket. A TemporaryDirectory would go with any copy of this object in a child, too.
        self._folder: Optional[str] = None
        listen = "127.0.0.1:0"
        if shared_memory_bytes:
            self._folder = tempfile.mkdtemp(prefix="sis-")
            listen = f"unix:{self._folder}/socket"
            flags = [f"--shared_memory_bytes={shared_memory_bytes}", *flags]
        self._process = subprocess.Popen(
            [binary, f"--parent={os.getpid()}", f"--listen={listen}", "--admin=127.0.0.1:0", *flags],
            stdout=subprocess.PIPE,
            text=True,
        )
        atexit.register(self.close)
        # What it says before it is ready: its addresses, its backend, its store.
        self._said: Dict[str, str] = {}
        assert self._process.stdout is not None
        for line in iter(self._process.stdout.readline, "ready\n"):
            if not line:
                code = self._process.wait()
                self.close()
                raise RuntimeError(f"sis_server ended with status {code} before it was ready")
            name, _, value = line.strip().partition(": ")
            self._said[name] = value

    @property
    def address(self) -> str:
        """What sis.Client takes."""
        return self._said["grpc"]

    @property
    def admin_address(self) -> str:
        return self._said["admin"]

    def close(self) -> None:
        """Ends it; what is under way gets its time. Idempotent. Does nothing in a process that was
        forked from the one that started it."""
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
        if self._process.stdout is not None:
            self._process.stdout.close()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    def __enter__(self) -> LocalServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def local_server(*flags: str, cache_bytes: int = 1 << 30, shared_memory_bytes: int = 0) -> LocalServer:
    """Starts sis_server on this machine, and returns when it is ready.

    It listens on a free port of the loopback interface, or with shared memory on a Unix socket.
    flags: further ones of sis_server, "--store=rocksdb:DIR" for one. FileNotFoundError if there is
    no sis_server: the wheel sis-ratio-server has one (`tools/wheels` of the repository makes it).
    """
    return LocalServer([f"--cache_bytes={cache_bytes}", *flags], shared_memory_bytes)


def _binary() -> str:
    if importlib.util.find_spec("sis_ratio_server"):
        import sis_ratio_server

        return str(sis_ratio_server.binary("sis_server"))
    found = shutil.which("sis_server")
    if found is None:
        raise FileNotFoundError(
            "there is no sis_server: install the wheel sis-ratio-server, which tools/wheels of the repository makes, or "
            "put one on PATH"
        )
    return found
