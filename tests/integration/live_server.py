"""A real sis_server and a client of it, for the tests of a class."""

import tempfile
import unittest

import sis
from server.testing.live_server import LiveServer


class LiveServerTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = cls.start_server()
        cls.addClassCleanup(cls.server.close)
        cls.client = sis.Client(cls.server.address)
        cls.addClassCleanup(cls.client.close)

    @classmethod
    def start_server(cls) -> LiveServer:
        return LiveServer()


def start_shared_memory_server(test_class: type[unittest.TestCase], size: int) -> LiveServer:
    """One that leases `size` bytes of segments, at a Unix socket that goes with the class."""
    folder = tempfile.TemporaryDirectory()
    test_class.addClassCleanup(folder.cleanup)
    return LiveServer(f"--shared_memory_bytes={size}", listen=f"unix:{folder.name}/socket")
