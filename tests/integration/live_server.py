"""Real servers and clients of them, which end with a test, or one of each for the tests of a class."""

import unittest

import sis
from server.testing.live_server import LiveServer


class ServersTest(unittest.TestCase):
    def serve(self, *flags, **named):
        server = LiveServer(*flags, **named)
        self.addCleanup(server.kill)
        return server

    def connect(self, *servers, **options):
        addresses = [server.address for server in servers]
        return self.enterContext(sis.Client(addresses if len(servers) > 1 else addresses[0], timeout=20, **options))


class LiveServerTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = cls.enterClassContext(cls.start_server())
        cls.client = cls.enterClassContext(sis.Client(cls.server.address))

    @classmethod
    def start_server(cls) -> LiveServer:
        return LiveServer()
