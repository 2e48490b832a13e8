"""A real sis_server on free loopback ports, for tests and benchmarks."""

import pathlib
import subprocess
import urllib.request

BINARY = pathlib.Path(__file__).absolute().parents[1] / "main/sis_server"


class LiveServer:
    """A server process that serves until close() or kill(), which can be called again."""

    def __init__(self, *flags, listen=None, cache_bytes=64 << 20, prefix=(), stderr=None):
        """Starts the server, and waits until it is ready.

        Args:
            listen: Its gRPC addresses. The default is a free port.
            prefix: A command that runs the server.
            stderr: A file for its stderr.
        """
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
        # Its output until it is ready, by name: its addresses (grpc, admin), backend, and store.
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
        """Returns all metrics: values by series, as they are written."""
        with urllib.request.urlopen(f"http://{self.admin_address}/metrics", timeout=30) as page:
            lines = page.read().decode().splitlines()
        return {series: float(value) for series, _, value in (line.rpartition(" ") for line in lines if line[0] != "#")}

    def close(self):
        """Shuts the server down as an operator would."""
        self.process.terminate()
        self._wait()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def kill(self):
        self.process.kill()
        self._wait()

    def _wait(self):
        self.process.wait(timeout=30)
        self.process.stdout.close()


def two_replicas(add_cleanup):
    """Returns two servers for one client. `add_cleanup` is the addCleanup or addClassCleanup of the test."""
    servers = [LiveServer(), LiveServer()]
    for server in servers:
        add_cleanup(server.close)
    return servers
