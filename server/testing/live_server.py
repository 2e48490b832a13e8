"""A real sis_server on free loopback ports, for tests. Run by Bazel, which puts its binary into the working directory."""

import subprocess


class LiveServer:
    """A process, which serves from when it is made until close() or kill(), either of which may come again."""

    def __init__(self, *flags, listen="127.0.0.1:0", cache_bytes=64 << 20):
        self.process = subprocess.Popen(
            ["server/main/sis_server", f"--listen={listen}", "--metrics=127.0.0.1:0", f"--cache_bytes={cache_bytes}", *flags],
            stdout=subprocess.PIPE,
            text=True,
        )
        # What it says before it is ready: its addresses (grpc, metrics), its store.
        self.said = {}
        for line in iter(self.process.stdout.readline, ""):
            if line == "ready\n":
                return
            name, _, value = line.strip().partition(": ")
            self.said[name] = value
        raise RuntimeError(f"the server ended with {self.process.wait()} before it was ready")

    @property
    def address(self):
        return self.said["grpc"]

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
