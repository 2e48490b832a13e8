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


if __name__ == "__main__":
    unittest.main()
