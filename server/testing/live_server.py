"""A real sis_server on free loopback ports, for tests and benchmarks."""

import pathlib
import subprocess
import tempfile
import urllib.request

BINARY = pathlib.Path(__file__).absolute().parents[1] / "main/sis_server"


class LiveServer:
    """A process, which serves from when it is made until close() or kill(), either of which may
    come again."""

    def __init__(self, *flags, listen=None, cache_bytes=64 << 20, prefix=(), stderr=None):
        """`listen` is left out: a free port, or for "unix" a Unix socket of the server's own.
        `prefix`: a command that runs it. `stderr`: a file that takes what it says there."""
        self._folder = tempfile.TemporaryDirectory()
        if listen == "unix":
            listen = f"unix:{self._folder.name}/socket"
        self.process = subprocess.Popen(
            [
                *prefix,
                BINARY,
                f"--listen={listen or '127.0.0.1:0'}",
                "--admin=127.0.0.1:0",
                f"--cache_bytes={cache_bytes}",
                *flags,
            ],
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
        )
        # What it says before it is ready: its addresses (grpc, admin), its backend, its store.
        self.said = {}
        for line in iter(self.process.stdout.readline, ""):
            if line == "ready\n":
                return
            name, _, value = line.strip().partition(": ")
            self.said[name] = value
        self._wait()
        raise RuntimeError(f"the server ended with {self.process.returncode} before it was ready")

    @property
    def address(self):
        return self.said["grpc"]

    @property
    def admin_address(self):
        return self.said["admin"]

    def metrics(self):
        """What Prometheus would read: numbers by series, as they are written."""
        with urllib.request.urlopen(f"http://{self.admin_address}/metrics", timeout=30) as page:
            lines = page.read().decode().splitlines()
        return {series: float(value) for series, _, value in (line.rpartition(" ") for line in lines if line[0] != "#")}

    def close(self):
        """As an operator ends it."""
        self.process.terminate()
        self._wait()

    def kill(self):
        self.process.kill()
        self._wait()

    def _wait(self):
        self.process.wait(timeout=30)
        self.process.stdout.close()
        self._folder.cleanup()


def two_replicas(add_cleanup):
    """Two of them, for one client. `add_cleanup` is the addCleanup or addClassCleanup of the test
    that they end with."""
    servers = [LiveServer(), LiveServer()]
    for server in servers:
        add_cleanup(server.close)
    return servers
