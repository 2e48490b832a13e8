"""A real server takes what the formulas of docs/scaling.md say."""

import unittest

import numpy as np

import sis
from server.testing.live_server import LiveServer
from server.testing.relay import Relay

VOCABULARY, ID_BYTES = 151_936, 3
SEQUENCES, LENGTH = 20, 1024
LOG_PROB_BYTES = {"float32": 4, "fixed16": 2}
SAMPLING = sis.Sampling("raw")


def recorded_bytes(slots, encoding="fixed16"):
    """Returns the bytes of a token in a block."""
    return slots * (LOG_PROB_BYTES[encoding] + ID_BYTES) + ID_BYTES + 6 + (encoding == "fixed16")


def cache_bytes(slots, tokens, blocks, sequences, encoding="fixed16"):
    return recorded_bytes(slots, encoding) * tokens + 220 * blocks + 430 * sequences


def block_of(top_k, length=LENGTH):
    ids = VOCABULARY // top_k * np.arange(top_k, dtype=np.int32) + np.arange(length, dtype=np.int32)[:, None]
    log_probs = np.tile(-5 - np.arange(top_k, dtype=np.float32) / 64, (length, 1))
    return sis.TopK(ids[:, 0], log_probs[:, 0], ids, log_probs)._asdict()


class SizingTest(unittest.TestCase):
    def start(self, top_k, through=lambda server: server.address, **config):
        self.server = self.enterContext(LiveServer(cache_bytes=128 << 20))
        self.client = self.enterContext(sis.Client(through(self.server), timeout=60))
        self.run_ = self.client.create_run("run", seed=1, vocabulary_size=VOCABULARY, top_k=top_k, **config)

    def relay(self, server):
        self.relayed = Relay(server.address)
        self.addCleanup(self.relayed.close)
        return self.relayed.address

    def append(self, names, record, block, version=0):
        """Appends in blocks of `block` tokens."""
        length = len(record["sampled_ids"])
        with self.client.append(self.run_, sampling=SAMPLING) as stream:
            for first in range(0, length, block):
                rows = {name: array[first : first + block] for name, array in record.items()}
                for name in names:
                    stream.block(name, first_position=first, policy_version=version, **rows)
            for name in names:
                stream.seal(name, length=length)

    def assert_near(self, measured, formula):
        self.assertAlmostEqual(measured / formula, 1, delta=0.02)

    def test_what_is_recorded_and_appended(self):
        names, tokens = [str(number) for number in range(SEQUENCES)], SEQUENCES * LENGTH
        for top_k, encoding in ((10, "fixed16"), (50, "float32")):
            with self.subTest(top_k=top_k, encoding=encoding):
                self.start(top_k, log_prob_encoding=encoding)
                # The server merges small blocks into large ones.
                self.append(names, block_of(top_k), LENGTH // 16)
                blocks = SEQUENCES * LENGTH / 256
                metrics = self.server.metrics()
                self.assert_near(metrics["sis_cache_bytes"], cache_bytes(top_k, tokens, blocks, SEQUENCES, encoding))
                sent = tokens * recorded_bytes(top_k, encoding) + 16 * SEQUENCES * 72
                (received,) = (value for name, value in metrics.items() if name.startswith("sis_ingest_bytes_total"))
                self.assert_near(received, sent)

    def test_what_travels(self):
        top_k, tokens = 20, SEQUENCES * LENGTH
        names = [str(number) for number in range(SEQUENCES)]
        self.start(top_k, self.relay)

        def travelled(call):
            sent, received = self.relayed.sent, self.relayed.received
            call()
            return self.relayed.sent - sent, self.relayed.received - received

        record = block_of(top_k)
        recorded = tokens * recorded_bytes(top_k)
        self.assert_near(travelled(lambda: self.append(names, record, LENGTH))[0], recorded)
        self.assert_near(travelled(lambda: self.client.fetch_top_k(self.run_, names))[1], recorded)
        _, received = travelled(lambda: self.client.fetch_top_k(self.run_, names, log_probs=False))
        self.assert_near(received, tokens * (top_k * ID_BYTES + ID_BYTES + 5))
        records = self.client.fetch_top_k(self.run_, names)
        zeros = np.zeros(tokens, np.float32)
        for draw, (each, values) in enumerate((
            (4 * top_k + 5, {"log_probs": records.log_probs}),
            (12, {"log_envelopes": zeros, "covered_masses": zeros + 0.5}),
        )):  # fmt: skip
            with self.subTest(values.keys()):
                evaluate = lambda: self.client.evaluate(
                    self.run_, records, draw=draw, sampled_log_probs=records.sampled_log_probs, **values
                )
                # A retry changes nothing. On a slow connection gRPC sends frames of its own,
                # separate from answers.
                tries = [travelled(evaluate) for _ in range(5)]
                self.assert_near(min(sent for sent, _ in tries), tokens * each)
                received = min(received for _, received in tries)
                self.assertLess(received, tokens / 8 + 1024)  # headers and totals

    def test_what_is_in_flight(self):
        # Rollouts of each step arrive while a step is trained on that is as stale as it may be.
        top_k, sequences, length, staleness = 10, 40, 256, 2
        self.start(top_k, max_staleness=staleness)
        record = block_of(top_k, length)
        most = 0
        for step in range(8):
            self.client.advance_version(self.run_, step)
            self.append([f"{step}/{number}" for number in range(sequences)], record, length, step)
            most = max(most, self.server.metrics()["sis_cache_bytes"])
            if step < staleness:
                continue
            ids = [f"{step - staleness}/{number}" for number in range(sequences)]
            records = self.client.fetch_top_k(self.run_, ids)
            evaluation = self.client.evaluate(
                self.run_, records, draw=step, log_probs=records.log_probs, sampled_log_probs=records.sampled_log_probs
            )
            self.assertEqual(evaluation.totals.scored, sequences * length)
            self.client.release(self.run_, ids)
        held = (staleness + 1) * sequences
        self.assert_near(most, cache_bytes(top_k, held * length, held, held))


if __name__ == "__main__":
    unittest.main()
