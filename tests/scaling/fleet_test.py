"""Eight replicas, with and without three memcached nodes behind them."""

import contextlib
import tempfile
import threading
import unittest

import numpy as np

import sis
from server.testing.live_server import LiveServer
from server.testing.memcached import Memcached
from server.testing.random_records import random_record
from sis.servers.placement import Placement

REPLICAS, NODES = 8, 3
TOP_K, VOCABULARY, LENGTH = 4, 50, 40
WORKERS, SEQUENCES = 4, 240


def recorded(sequence):
    return random_record(int(sequence), LENGTH, VOCABULARY, TOP_K)


class FleetTest(unittest.TestCase):
    def setUp(self):
        self.exits = contextlib.ExitStack()
        self.addCleanup(self.exits.close)
        self.sequences = [str(number) for number in range(SEQUENCES)]
        self.slices = [sis.Slice(sequence, 0, LENGTH) for sequence in self.sequences]

    def start(self, store):
        """Replicas, on which several workers have put all sequences."""
        servers = [LiveServer(f"--store={store}", cache_bytes=16 << 20) for _ in range(REPLICAS)]
        for server in servers:
            self.exits.callback(server.kill)
        addresses = [server.address for server in servers]
        self.client(addresses).create_run(
            "run", seed=1, vocabulary_size=VOCABULARY, top_k=TOP_K, log_prob_encoding="float32"
        )
        failures = []

        def work(worker):
            try:
                with sis.Client(addresses, timeout=20) as client:
                    run = client.get_run("run").run
                    with client.append(run, sampling=sis.Sampling("raw")) as stream:
                        for sequence in self.sequences[worker::WORKERS]:
                            stream.block(sequence, first_position=0, policy_version=0, **recorded(sequence)._asdict())
                            stream.seal(sequence, length=LENGTH)
            except Exception as error:  # which the test asserts
                failures.append(error)

        workers = [threading.Thread(target=work, args=[worker]) for worker in range(WORKERS)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        self.assertEqual(failures, [])
        return servers, addresses

    def client(self, addresses):
        return self.exits.enter_context(sis.Client(addresses, timeout=20))

    def missing(self, addresses, draw):
        """Why each sequence is missing that is, to a trainer with these replicas; all others are bit
        by bit what was sent, and are decided."""
        client = self.client(addresses)
        return self.missing_to(client, client.get_run("run").run, draw)

    def missing_to(self, client, run, draw):
        records = client.fetch_top_k(run, self.slices)
        for number, sequence in enumerate(self.sequences):
            rows = records.rows(number)
            if records.present[rows].any():
                for name, array in recorded(sequence)._asdict().items():
                    got = getattr(records, name.replace("top_k_", ""))[rows]
                    self.assertEqual(got.tobytes(), array.astype(got.dtype).tobytes(), sequence)
        evaluation = client.evaluate(
            run, records, draw=draw, log_probs=records.log_probs,
            sampled_log_probs=np.where(records.present, records.sampled_log_probs, -1),
        )  # fmt: skip
        missing = {self.sequences[part.slice]: part.reason for part in evaluation.missing}
        self.assertEqual(evaluation.totals.scored, LENGTH * (SEQUENCES - len(missing)))
        return missing

    def moved(self, before, after):
        old, new = Placement(before), Placement(after)
        return {
            sequence
            for sequence in self.sequences
            if before[old.replica("run", sequence)] != after[new.replica("run", sequence)]
        }

    def test_without_a_store_what_moves_is_missing_and_nothing_else(self):
        _, addresses = self.start("memory")
        self.assertEqual(self.missing(addresses, 1), {})
        for fewer in (addresses[:7], addresses[3:]):
            missing = self.missing(fewer, 1)
            self.assertEqual(set(missing), self.moved(addresses, fewer))
            self.assertTrue(missing)
            self.assertEqual(set(missing.values()), {sis.MissingReason.NEVER_ARRIVED})

    def test_with_memcached_replicas_come_and_go_and_nothing_is_missing(self):
        folder = self.exits.enter_context(tempfile.TemporaryDirectory(dir="/tmp", prefix="sis_"))
        nodes = [Memcached(f"{folder}/node{index}") for index in range(NODES)]
        for node in nodes:
            self.exits.callback(node.kill)
        store = "memcached:" + ",".join(node.path for node in nodes)
        servers, addresses = self.start(store)
        self.assertEqual(self.missing(addresses, 1), {})
        # Three are gone for good, without a word.
        for server in servers[:3]:
            server.kill()
        self.assertEqual(self.missing(addresses[3:], 2), {})
        # One is new, and has nothing in memory.
        new = LiveServer(f"--store={store}", cache_bytes=16 << 20)
        self.exits.callback(new.kill)
        grown = addresses[3:] + [new.address]
        self.assertTrue(self.moved(addresses[3:], grown))
        self.assertEqual(self.missing(grown, 3), {})
        # A node's share is lost to those who haven't got it in memory.
        newest = LiveServer(f"--store={store}", cache_bytes=16 << 20)
        self.exits.callback(newest.kill)
        client = self.client([newest.address])
        run = client.get_run("run").run  # which is kept on a node as well
        nodes[0].kill()
        missing = self.missing_to(client, run, 4)
        self.assertTrue(0 < len(missing) < SEQUENCES)
        self.assertEqual(set(missing.values()), {sis.MissingReason.STORE_DOWN})


if __name__ == "__main__":
    unittest.main()
