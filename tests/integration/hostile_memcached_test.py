"""A node of memcached that turns hostile under a server: its share is missing, and that is all."""

import concurrent.futures
import pathlib
import tempfile
import unittest

import sis
from server.testing.hostile_memcached import HostileMemcached, announce, drip, foreign_keys
from server.testing.live_server import LiveServer
from server.testing.process_status import process_status
from server.testing.until import until
from tests.integration import large_sequences

MEBIBYTE = 1 << 20


class HostileMemcachedTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.node = HostileMemcached(str(pathlib.Path(folder.name) / "node"))
        self.addCleanup(self.node.close)
        self.server = LiveServer(f"--store=memcached:{self.node.path}", "--shutdown_grace=1s", cache_bytes=16 * MEBIBYTE)
        self.addCleanup(self.server.kill)
        self.client = sis.Client(self.server.address, timeout=60)
        self.addCleanup(self.client.close)
        self.run_created = self.client.create_run("run", **large_sequences.CONFIG)
        large_sequences.append(self.client, self.run_created, [0])

    def fetch(self, number):
        """Which reason positions of a sequence that the server does not hold are missing for."""
        records = self.client.fetch_top_k(self.run_created, [sis.Slice(large_sequences.name(number), length=1)])
        return [part.reason for part in records.missing]

    def test_it_costs_its_share_and_no_more(self):
        before = process_status(self.server.process, "VmHWM")
        for name, hostile in {
            "2^64 - 1 bytes": announce(2**64 - 1),
            "3 GB": announce(3 * 10**9),
            "drips": drip,
            "foreign keys": foreign_keys,
        }.items():
            with self.subTest(name):
                self.node.hostile = hostile
                self.assertEqual(self.fetch(1), [sis.MissingReason.STORE_DOWN])
                with self.assertRaises(sis.AppendError):
                    large_sequences.append(self.client, self.run_created, [1])
                self.assertTrue(self.client.list_runs())
        self.assertLess((process_status(self.server.process, "VmHWM") - before) << 10, 64 * MEBIBYTE)
        # It may be asked again, and what it has is there.
        self.node.hostile = None
        until(lambda: self.fetch(1), lambda reasons: reasons == [sis.MissingReason.NEVER_ARRIVED])
        large_sequences.append(self.client, self.run_created, [1])

    def test_it_does_not_hold_up_the_end_of_the_server(self):
        self.node.hostile = drip
        with concurrent.futures.ThreadPoolExecutor(4) as callers:
            for number in range(2, 6):
                callers.submit(self.fetch, number)
            self.node.asked.acquire()
            self.server.process.terminate()
            self.assertEqual(self.server.process.wait(timeout=50), 0)


if __name__ == "__main__":
    unittest.main()
