"""Workers offer four times what the cache holds while readers keep sequences for a while. The process stays within the
budget and a constant, nothing acked is lost in silence, and it ends in good health."""

import concurrent.futures
import contextlib
import random
import threading
import unittest

import numpy as np

import sis
from server.testing.process_status import process_status
from tests.integration import large_sequences
from tests.integration.large_sequences import POSITIONS, name
from tests.integration.live_server import ServersTest

BUDGET = 64 << 20
# Memory beyond --cache_bytes (docs/configuration.md): messages in flight, the lists of each run, and free memory of the
# allocator.
ON_TOP = 48 << 20
WORKERS, READERS = 4, 3
BYTES = 308 * POSITIONS  # of a sequence
SEQUENCES = 4 * BUDGET // BYTES


class OverloadTest(ServersTest):
    def setUp(self):
        self.server = self.serve(cache_bytes=BUDGET)
        self.resident = process_status(self.server.process, "VmRSS") << 10
        self.acked = []
        self.ended = threading.Event()

    def connect(self):
        return sis.Client(self.server.address, timeout=60)

    def work(self, worker):
        with self.connect() as client:
            run = client.get_run("run").run
            for number in range(worker, SEQUENCES, WORKERS):
                # A sequence that was evicted in the middle takes no more blocks.
                with contextlib.suppress(sis.AppendError):
                    large_sequences.append(client, run, [number])
                    self.acked.append(number)

    def read(self, reader):
        choices = random.Random(reader)
        with self.connect() as client:
            run = client.get_run("run").run
            while not self.ended.is_set():
                if self.acked:
                    some = {name(choices.choice(self.acked)) for _ in range(16)}
                    client.fetch_top_k(run, sorted(some), keep_seconds=0.5, log_probs=False)
                self.ended.wait(0.4)

    def present(self, client, run, number):
        """Whether it is there, bit by bit as it was sent; else it was evicted as a whole."""
        records = client.fetch_top_k(run, [sis.Slice(name(number), 0, POSITIONS)])
        if records.missing:
            evicted = sis.MissingRange(0, 0, POSITIONS, sis.MissingReason.EVICTED)
            self.assertEqual(records.missing, (evicted,), number)
            return False
        sent = large_sequences.recorded(number)
        np.testing.assert_array_equal(records.ids, sent.top_k_ids, str(number))
        np.testing.assert_array_equal(records.log_probs, sent.top_k_log_probs, str(number))
        return True

    def test_it_stays_within_the_budget_and_loses_nothing_in_silence(self):
        with self.connect() as client, concurrent.futures.ThreadPoolExecutor(WORKERS + READERS) as pool:
            # Nobody reads all of it.
            run = client.create_run("run", evict_unread=True, **large_sequences.CONFIG)
            readers = [pool.submit(self.read, reader) for reader in range(READERS)]
            try:
                for worker in [pool.submit(self.work, worker) for worker in range(WORKERS)]:
                    worker.result()
            finally:
                self.ended.set()
            for reader in readers:
                reader.result()
            most = process_status(self.server.process, "VmHWM") << 10
            self.assertLessEqual(most - self.resident, BUDGET + ON_TOP)
            self.assertGreater(len(self.acked), SEQUENCES / 2, "few appends came through")
            present = sum(self.present(client, run, number) for number in self.acked)
            self.assertLess(present, len(self.acked), "more was offered than there was room for")
            self.assertGreater(present * BYTES, BUDGET / 4, "the cache was used")

            # After all that the server works like a new one.
            run = client.create_run("run", incarnation=2, **large_sequences.CONFIG)
            self.assertEqual(client.get_run("run").bytes, 0)
            large_sequences.append(client, run, [0])
            self.assertTrue(self.present(client, run, 0))
        self.server.close()
        self.assertEqual(self.server.process.returncode, 0)


if __name__ == "__main__":
    unittest.main()
