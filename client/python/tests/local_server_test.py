"""A server of this process, by the binary that Bazel built."""

import os
import pathlib
import subprocess
import sys
import unittest
import unittest.mock

import sis
from server.testing import live_server

PATH = str(live_server.BINARY.parent)
LEFT_OPEN = """
import sis
server = sis.local_server(cache_bytes=64 << 20)
print(server.address, server._process.pid)
"""


@unittest.mock.patch.dict(os.environ, {"PATH": PATH})
class LocalServerTest(unittest.TestCase):
    def test_it_serves_until_it_is_closed(self):
        with sis.local_server(cache_bytes=64 << 20) as server, sis.Client(server.address, timeout=5) as client:
            self.assertEqual(client.list_runs(), [])
            process = server._process
        self.assertEqual(process.returncode, 0)
        server.close()

    def test_shared_memory(self):
        with sis.local_server(cache_bytes=64 << 20, shared_memory_bytes=1 << 20) as server:
            self.assertRegex(server.address, "^unix:")
            with sis.Client(server.address, timeout=5) as client, client.lease_segment(1 << 16) as segment:
                self.assertEqual(segment.empty((4,)).shape, (4,))

    def test_several_run_side_by_side(self):
        with sis.local_server(cache_bytes=64 << 20) as one, sis.local_server(cache_bytes=64 << 20) as other:
            self.assertNotEqual(one.address, other.address)

    def test_it_ends_with_its_process(self):
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        done = subprocess.run([sys.executable, "-c", LEFT_OPEN], capture_output=True, text=True, env=environment)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertFalse(pathlib.Path(f"/proc/{done.stdout.split()[-1]}").exists())

    def test_what_goes_wrong_is_said(self):
        with self.assertRaisesRegex(RuntimeError, "ended with status 1 before it was ready"):
            sis.local_server("--no_such_flag=1")
        with unittest.mock.patch.dict(os.environ, {"PATH": "/nowhere"}):
            with self.assertRaisesRegex(FileNotFoundError, r"pip install sis-ratio-client\[server\]"):
                sis.local_server()


if __name__ == "__main__":
    unittest.main()
