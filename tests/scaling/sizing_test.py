"""A real server takes what the formulas of docs/scaling.md say."""

import re
import unittest
import urllib.request

import sis
from server.testing.live_server import LiveServer
from server.testing.random_records import random_record
from server.testing.relay import Relay
from tests.scaling import measured_sizes, sizing
from tests.scaling.measured_sizes import LENGTH, VOCABULARY


class SizingTest(unittest.TestCase):
    def assert_near(self, measured, formula):
        self.assertAlmostEqual(measured / formula, 1, delta=0.02)

    def test_what_is_recorded_and_appended(self):
        for top_k, encoding in ((10, "fixed16"), (50, "float32")):
            with self.subTest(top_k=top_k, encoding=encoding):
                measurement = measured_sizes.Measurement(top_k, encoding, sequences=20)
                self.addCleanup(measurement.close)
                tokens = measurement.tokens
                # The server merges small blocks into large ones.
                measurement.append(LENGTH // 16)
                blocks = sizing.cache_bytes(top_k, VOCABULARY, tokens, 20 * LENGTH / 256, 20, encoding)
                self.assert_near(measurement.charged_bytes(), blocks)
                sent = tokens * sizing.recorded_bytes(top_k, VOCABULARY, encoding) + 16 * 20 * sizing.HEADER
                self.assert_near(measurement.metric("sis_ingest_bytes_total"), sent)

    def test_what_travels(self):
        top_k = 20
        measurement = measured_sizes.Measurement(top_k, sequences=20)
        self.addCleanup(measurement.close)
        tokens = measurement.tokens
        relay = Relay(measurement.server.address)
        self.addCleanup(relay.close)
        # Its own client asks for what others append.
        measurement.client.close()
        measurement.client = sis.Client(relay.address, timeout=60)
        slices = [sis.Slice(str(number), 0, LENGTH) for number in range(20)]

        def travelled(call):
            sent, received = relay.sent, relay.received
            call()
            return relay.sent - sent, relay.received - received

        sent, _ = travelled(lambda: measurement.append(LENGTH))
        recorded = tokens * sizing.recorded_bytes(top_k, VOCABULARY)
        self.assert_near(sent, recorded)
        client, run = measurement.client, measurement.run
        _, received = travelled(lambda: client.fetch_top_k(run, slices))
        self.assert_near(received, recorded)
        _, received = travelled(lambda: client.fetch_top_k(run, slices, log_probs=False))
        self.assert_near(received, tokens * sizing.fetched_ids_bytes(top_k, VOCABULARY))
        records = client.fetch_top_k(run, slices)
        for draw, form in enumerate(("gathered", "reduced")):
            with self.subTest(form):
                # A retry changes nothing. On a slow connection gRPC sends frames of its own,
                # separate from answers.
                tries = [travelled(lambda: measurement.evaluate(records, form, draw)) for _ in range(5)]
                self.assert_near(min(sent for sent, _ in tries), tokens * sizing.evaluate_bytes(top_k, form))
                received = min(received for _, received in tries)
                self.assertLess(received, tokens / 8 + 1024)  # headers and totals

    def test_what_is_in_flight(self):
        # Rollouts of each step arrive while a step is trained on that is as stale as it may be.
        top_k, sequences, length, staleness, steps = 10, 40, 256, 2, 8
        server = LiveServer(cache_bytes=32 << 20)
        self.addCleanup(server.kill)
        client = sis.Client(server.address, timeout=20)
        self.addCleanup(client.close)
        run = client.create_run(
            "run", seed=1, vocabulary_size=VOCABULARY, top_k=top_k, max_staleness=staleness
        )
        record = random_record(1, length, VOCABULARY, top_k)._asdict()
        most = 0
        for step in range(steps):
            client.advance_version(run, step)
            with client.append(run, sampling=sis.Sampling("raw")) as stream:
                for number in range(sequences):
                    stream.block(f"{step}/{number}", first_position=0, policy_version=step, **record)
                    stream.seal(f"{step}/{number}", length=length)
            with urllib.request.urlopen(f"http://{server.admin_address}/metrics", timeout=20) as page:
                most = max(most, float(re.search(r"^sis_cache_bytes (\S+)$", page.read().decode(), re.M).group(1)))
            trained = step - staleness
            if trained < 0:
                continue
            ids = [f"{trained}/{number}" for number in range(sequences)]
            records = client.fetch_top_k(run, [sis.Slice(sequence, 0, length) for sequence in ids])
            evaluation = client.evaluate(
                run, records, draw=step, log_probs=records.log_probs, sampled_log_probs=records.sampled_log_probs
            )
            self.assertEqual(evaluation.totals.scored, sequences * length)
            client.release(run, ids)
        held = sizing.steps_held(staleness) * sequences
        self.assert_near(most, sizing.cache_bytes(top_k, VOCABULARY, held * length, held, held))


if __name__ == "__main__":
    unittest.main()
