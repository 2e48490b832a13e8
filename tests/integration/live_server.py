"""A real sis_server on a free loopback port, and a client of it, for the tests of a class."""

import subprocess
import unittest

import sis


class LiveServerTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = subprocess.Popen(
            ["server/sis_server", "--listen=127.0.0.1:0", "--metrics=", "--cache_bytes=67108864"],
            stdout=subprocess.PIPE,
            text=True,
        )
        for line in cls.server.stdout:
            if line.startswith("grpc: "):
                cls.client = sis.Client(line.split()[1])
                break

    @classmethod
    def tearDownClass(cls):
        cls.client.close()
        cls.server.terminate()
        cls.server.communicate()
