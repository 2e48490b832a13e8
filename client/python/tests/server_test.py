"""The client and the real server, together. Run by Bazel, which puts the server's binary into the
working directory."""

import unittest

import numpy as np

import sis
from server.testing import random_records
from server.testing.live_server import LiveServer

SAMPLING = sis.Sampling("raw")
VOCABULARY = 32
TOP_K = 6




def log_softmax(rows, seed):
    return random_records.log_softmax(np.random.default_rng(seed).normal(size=(rows, VOCABULARY)))


def record(values, seed):
    return random_records.drawn(values, np.random.default_rng(seed), TOP_K)


class ServerTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = LiveServer(cache_bytes=256 << 20)
        cls.addClassCleanup(cls.server.close)

    def setUp(self):
        self.client = sis.Client(self.server.address, timeout=30)
        self.addCleanup(self.client.close)
        self.run_ = self.create()

    def create(self, suffix="", **settings):
        settings = {"seed": 1, "vocabulary_size": VOCABULARY, "top_k": TOP_K, **settings}
        return self.client.create_run(self.id().split(".")[-1] + suffix, **settings)

    def append(self, sequence, values, seed=0, first=0, version=0, run=None):
        kept = record(values, seed)
        with self.client.append(run or self.run_, sampling=SAMPLING, worker="w") as stream:
            stream.block(sequence, first_position=first, policy_version=version, **kept._asdict())
            self.assertEqual(stream.flush(), {(sequence, 0): first + len(values)})
        return kept

    def evaluate(self, records, values, draw=1, **options):
        log_probs, sampled_log_probs = sis.gather(records, values)
        return self.client.evaluate(
            self.run_, records, draw=draw, log_probs=log_probs, sampled_log_probs=sampled_log_probs, **options
        )

    def test_labels_name_policy_versions(self):
        for _ in range(2):
            self.client.advance_version(self.run_, 3, label="step-3")
        self.client.advance_version(self.run_, 5)
        self.client.advance_version(self.run_, 5, label="step-5 ü")
        message = "label: 'step-3' for policy_version 6, but it names policy_version 3"
        with self.assertRaisesRegex(sis.AlreadyExists, message):
            self.client.advance_version(self.run_, 6, label="step-3")
        status = self.client.get_run(self.run_.id)
        self.assertEqual(status.version_labels, {"step-3": 3, "step-5 ü": 5})
        self.assertEqual(status.policy_version, 5)

    def test_gaps_keep_their_reasons(self):
        names = ("INVALID_LOG_PROB", "NO_LOG_PROB", "INFINITE_LOG_PROB", "UNKNOWN_VERSION")
        reasons = [sis.MissingReason[name] for name in names]
        gaps = [sis.Gap("gaps", position, 1, reason) for position, reason in enumerate(reasons)]
        sis.append_many(self.client, self.run_, gaps, sampling=SAMPLING)
        missing = self.client.fetch_top_k(self.run_, [sis.Slice("gaps", length=4)]).missing
        self.assertEqual([part.reason for part in missing], reasons)
        # A block fills a gap, and a gap does not undo a block.
        self.append("gaps", log_softmax(1, seed=1), first=3)
        with self.assertRaisesRegex(sis.AppendError, r"sequence 'gaps' attempt 0, gap \[3, 4\): .*position 3"):
            sis.append_many(self.client, self.run_, [sis.Gap("gaps", 3, 1)], sampling=SAMPLING)
        missing = self.client.fetch_top_k(self.run_, [sis.Slice("gaps", length=4)]).missing
        self.assertEqual([part.reason for part in missing], reasons[:3])

    def test_the_server_refuses_an_id_that_stands_twice(self):
        good = record(log_softmax(3, seed=1), 1)
        wrong = good._replace(top_k_ids=good.top_k_ids.copy())
        first, second = np.flatnonzero(good.top_k_ids[2] != good.sampled_ids[2])[:2]
        wrong.top_k_ids[2, second] = twice = wrong.top_k_ids[2, first]
        blocks = [sis.Block("wrong", 0, 0, *wrong), sis.Block("good", 0, 0, *good)]
        message = rf"sequence 'wrong' .*ids at position 2, slot {second}: id {twice} stands twice"
        with self.assertRaisesRegex(sis.AppendError, message) as raised:
            sis.append_many(self.client, self.run_, blocks, sampling=SAMPLING)
        self.assertEqual(len(raised.exception.refused), 1)
        self.assertEqual(len(self.client.fetch_top_k(self.run_, ["good"]).sampled_ids), 3)

    def test_a_run_tells_how_the_last_stream_sampled(self):
        self.assertIsNone(self.client.get_run(self.run_.id).sampling)
        filtered = sis.Sampling("processed", temperature=0.5, top_p=0.8, top_k=5, logit_bias=True)
        block = sis.Block("s", 0, 0, *record(log_softmax(3, seed=1), 1))
        for sampling in (filtered, sis.Sampling("raw")):
            sis.append_many(self.client, self.run_, [block], sampling=sampling)
            self.assertEqual(self.client.get_run(self.run_.id).sampling, sampling)

    def test_messages_above_four_megabytes_pass_both_ways(self):
        self.run_ = self.create("-lossless", log_prob_encoding="float32")
        values = log_softmax(150_000, seed=1)
        kept = self.append("s", values)
        records = self.client.fetch_top_k(self.run_, ["s"])
        self.assertGreater(records.ids.nbytes + records.log_probs.nbytes, 5 << 20)
        np.testing.assert_array_equal(records.ids, kept.top_k_ids)
        evaluation = self.evaluate(records, values, outputs=["decisions", "ratios", "log_ratios"])
        self.assertEqual(len(evaluation.ratios), 150_000)
        self.assertEqual(evaluation.totals.rejected, 0)


class TerminationTest(unittest.TestCase):
    def test_a_call_after_a_restart_finds_its_stream_closed_and_loses_nothing(self):
        server = LiveServer()
        self.addCleanup(lambda: server.close())
        kept = record(log_softmax(3, seed=1), seed=1)
        for way in ("kill", "close"):
            with sis.Client(server.address, timeout=20) as client:
                run = client.create_run("run", seed=1, vocabulary_size=VOCABULARY, top_k=TOP_K)
                client.advance_version(run, 4)
                sis.append_many(client, run, [sis.Block("before", 0, 4, *kept)], sampling=SAMPLING)
                getattr(server, way)()
                server = LiveServer(listen=server.address)
                committed = None
                while committed is None:
                    try:
                        committed = sis.append_many(client, run, [sis.Block("after", 0, 4, *kept)], sampling=SAMPLING)
                    except sis.Unavailable:
                        pass  # It has not connected yet, as may be with any call.
                self.assertEqual(committed, {("after", 0): 3})
                self.assertEqual(client.get_run("run").policy_version, 4)
                self.assertEqual(len(client.fetch_top_k(run, ["after"])), 3)


if __name__ == "__main__":
    unittest.main()
