"""A real sis_server on free loopback ports, for tests. Run by Bazel, which puts its binary into the working directory."""

import subprocess
import unittest

import sis

CACHE_BYTES = 64 << 20


class LiveServer:
    """A process, which ends with close()."""

    def __init__(self, *flags, listen="127.0.0.1:0", cache_bytes=CACHE_BYTES):
        self.process = subprocess.Popen(
            ["server/sis_server", f"--listen={listen}", "--metrics=127.0.0.1:0", f"--cache_bytes={cache_bytes}", *flags],
            stdout=subprocess.PIPE,
            text=True,
        )
        # By what they are for: grpc, metrics.
        self.addresses = {}
        for line in self.process.stdout:
            if line.strip() == "ready":
                return
            name, _, address = line.partition(": ")
            self.addresses[name] = address.strip()
        raise RuntimeError(f"the server ended with {self.process.wait()} before it was ready")

    @property
    def address(self):
        return self.addresses["grpc"]

    def close(self):
        self.process.terminate()
        self.process.communicate(timeout=30)


class LiveServerTest(unittest.TestCase):
    """Has a server, and a client of it, for all tests of a class."""

    @classmethod
    def setUpClass(cls):
        cls.server = LiveServer()
        cls.addClassCleanup(cls.server.close)
        cls.client = sis.Client(cls.server.address)
        cls.addClassCleanup(cls.client.close)
