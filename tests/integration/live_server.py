"""A real sis_server and a client of it, for the tests of a class."""

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
