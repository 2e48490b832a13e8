"""Eight replicas of a memory server: what leaves the list is missing, and nothing else."""

import contextlib
import threading
import unittest

import numpy as np

import sis
from server.testing.live_server import LiveServer
from server.testing.random_records import random_record
from sis._servers.placement import Placement

REPLICAS = 8
TOP_K, VOCABULARY, LENGTH = 4, 50, 40
WORKERS, SEQUENCES = 4, 240


def recorded(sequence):
    return random_record(int(sequence), LENGTH, VOCABULARY, TOP_K)


class ReplicasTest(unittest.TestCase):
    def setUp(self):
        self.exits = contextlib.ExitStack()
        self.addCleanup(self.exits.close)
        self.sequences = [str(number) for number in range(SEQUENCES)]
        self.slices = [sis.Slice(sequence, 0, LENGTH) for sequence in self.sequences]

    def start(self):
        """Replicas, on which several workers have put all sequences."""
        servers = [LiveServer(cache_bytes=16 << 20) for _ in range(REPLICAS)]
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
        return addresses

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

    def test_what_moves_is_missing_and_nothing_else(self):
        addresses = self.start()
        self.assertEqual(self.missing(addresses, 1), {})
        for fewer in (addresses[:7], addresses[3:]):
            missing = self.missing(fewer, 1)
            self.assertEqual(set(missing), self.moved(addresses, fewer))
            self.assertTrue(missing)
            self.assertEqual(set(missing.values()), {sis.MissingReason.NEVER_ARRIVED})


if __name__ == "__main__":
    unittest.main()
