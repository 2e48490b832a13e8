"""The client and the real server, together. Run by Bazel, which puts the server's binary into the
working directory."""

import unittest

import numpy as np

import sis
from server.testing.live_server import LiveServer
from server.testing.random_records import drawn, log_softmax, random_record

VOCABULARY = 32
TOP_K = 6


class ServerTest(unittest.TestCase):
    def setUp(self):
        server = self.enterContext(LiveServer(cache_bytes=256 << 20))
        self.client = self.enterContext(sis.Client(server.address, timeout=30))
        self.run_ = self.client.create_run(
            "run", seed=1, vocabulary_size=VOCABULARY, top_k=TOP_K, log_prob_encoding="float32"
        )

    def test_a_run_tells_how_the_last_stream_sampled(self):
        self.assertIsNone(self.client.get_run("run").sampling)
        filtered = sis.Sampling("processed", temperature=0.5, top_p=0.8, top_k=5, logit_bias=True)
        block = sis.Block("s", 0, 0, *random_record(1, 3, VOCABULARY, TOP_K))
        for sampling in (filtered, sis.Sampling("raw")):
            sis.append_many(self.client, self.run_, [block], sampling=sampling)
            self.assertEqual(self.client.get_run("run").sampling, sampling)

    def test_labels_name_policy_versions(self):
        self.client.advance_version(self.run_, 3, label="step-3")
        self.client.advance_version(self.run_, 5, label="step-5 ü")
        with self.assertRaisesRegex(sis.AlreadyExists, "'step-3' for policy_version 6, but it names policy_version 3"):
            self.client.advance_version(self.run_, 6, label="step-3")
        self.assertEqual(self.client.get_run("run").version_labels, {"step-3": 3, "step-5 ü": 5})

    def test_messages_above_four_megabytes_pass_both_ways(self):
        generator = np.random.default_rng(1)
        values = log_softmax(generator.normal(size=(150_000, VOCABULARY)))
        kept = drawn(values, generator, TOP_K)
        with self.client.append(self.run_, sampling=sis.Sampling("raw")) as stream:
            stream.block("s", first_position=0, policy_version=0, **kept._asdict())
        records = self.client.fetch_top_k(self.run_, ["s"])
        self.assertGreater(records.ids.nbytes + records.log_probs.nbytes, 5 << 20)
        np.testing.assert_array_equal(records.ids, kept.top_k_ids)
        log_probs, sampled_log_probs = sis.gather(records, values)
        evaluation = self.client.evaluate(
            self.run_, records, draw=1, log_probs=log_probs, sampled_log_probs=sampled_log_probs,
            outputs=["decisions", "ratios", "log_ratios"],
        )  # fmt: skip
        self.assertEqual(len(evaluation.ratios), 150_000)
        self.assertEqual(evaluation.totals.rejected, 0)


if __name__ == "__main__":
    unittest.main()
