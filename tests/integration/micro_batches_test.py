"""Requests with options and outputs of every kind give the same bits cut up as in one piece."""

import dataclasses
import unittest
import unittest.mock

import numpy as np

import sis
from server.testing.live_server import LiveServer
from sis._servers.single_server import SingleServer
from tests.integration.same_evaluation import assert_same_evaluation

TOP_K, VOCABULARY = 5, 40
LENGTHS = {"a": 90, "b": 1, "c": 64, "d": 37}
# The longest sequence: all of them get through in several requests only.
LIMIT = 90
OUTPUTS = ("decisions", "ratios", "log_ratios", "acceptance_probabilities", "surrogates", "coefficients")


def log_softmax(generator, rows):
    logits = generator.normal(size=(rows, VOCABULARY))
    return (logits - np.logaddexp.reduce(logits, axis=1, keepdims=True)).astype(np.float32)


class MicroBatchesTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.clients = []
        for flags in ([], [f"--max_evaluate_positions={LIMIT}"]):
            server = LiveServer(*flags)
            cls.addClassCleanup(server.close)
            cls.clients.append(sis.Client(server.address, timeout=30))
            cls.addClassCleanup(cls.clients[-1].close)
        generator = np.random.default_rng(3)
        for client in cls.clients:
            cls.run_ = client.create_run("run", seed=1, vocabulary_size=VOCABULARY, top_k=TOP_K)
        for name, length in LENGTHS.items():
            values = log_softmax(generator, length)
            sampled = generator.integers(VOCABULARY, size=length)
            record = sis.canonical(
                np.broadcast_to(np.arange(VOCABULARY), values.shape),
                values,
                sampled,
                np.take_along_axis(values, sampled[:, None], 1)[:, 0],
                TOP_K,
            )
            for client in cls.clients:
                with client.append(cls.run_, sampling=sis.Sampling("raw")) as stream:
                    stream.block(name, first_position=0, policy_version=0, **record._asdict())
        cls.records = cls.clients[0].fetch_top_k(cls.run_, list(LENGTHS))
        # An empty slice, and a sequence that is not there.
        cls.slices = [*cls.records.slices[:2], sis.Slice("none", length=8), sis.Slice("none"), *cls.records.slices[2:]]
        total = cls.total = sum(part.length for part in cls.slices)
        cls.log_probs = np.sort(log_softmax(generator, total)[:, :TOP_K], axis=1)[:, ::-1].copy()
        cls.sampled_log_probs = cls.log_probs[:, 1].copy()
        cls.mask = generator.random(total) < 0.8
        cls.own = -generator.random(total).astype(np.float32)
        cls.decoupled = cls.sampled_log_probs - 0.01
        cls.advantages = generator.normal(size=total).astype(np.float32)
        cls.sampled_ids = np.insert(cls.records.sampled_ids, np.full(8, sum(list(LENGTHS.values())[:2])), 0)
        cls.draw = 0

    def setUp(self):
        type(self).draw += 1

    def options(self, algorithm, **others):
        return sis.EvaluateOptions(
            mask=self.mask,
            own_log_probs=self.own,
            algorithm=algorithm,
            advantages=self.advantages,
            sampled_ids=self.sampled_ids,
            **others,
        )

    def evaluate(self, client, slices=None, outputs=OUTPUTS, **keywords):
        arguments = {"log_probs": self.log_probs, "sampled_log_probs": self.sampled_log_probs}
        arguments = keywords.pop("arguments", arguments)
        with unittest.mock.patch.object(SingleServer, "micro_batch_bytes", 1 << 30 if client == 0 else 1000):
            return self.clients[client].evaluate(
                self.run_, slices or self.slices, draw=self.draw, outputs=outputs, **arguments, **keywords
            )

    def check(self, **keywords):
        whole, cut = (self.evaluate(client, **keywords) for client in range(2))
        assert_same_evaluation(self, cut, whole)
        counted = self.total - whole.totals.masked
        self.assertEqual((whole.newly_counted, cut.newly_counted), (counted, counted))
        return whole

    def test_everything_that_is_of_every_position(self):
        whole = self.check(options=self.options(sis.Dapo()), prefix_curve=[1, 4], total_variation=True)
        self.assertTrue(0 < whole.totals.accepted < whole.totals.scored)
        self.assertTrue(whole.totals.missing and whole.totals.masked and whole.totals.total_variation)
        self.assertTrue(np.any(whole.coefficients))

    def test_three_policies(self):
        self.check(options=self.options(sis.Grpo(), decoupled_log_probs=self.decoupled, weight="expected"))

    def test_reduced(self):
        ones = np.ones(self.total, np.float32)
        arguments = {
            "sampled_log_probs": self.sampled_log_probs,
            "log_envelopes": 0.5 * ones,
            "covered_masses": 0.9 * ones,
        }
        self.check(arguments=arguments, options=self.options(sis.Cispo()))

    def test_gspo_where_its_sums_allow(self):
        options = self.options(sis.Gspo())
        whole = self.check(slices=[*self.slices[:3], *self.slices[4:]], options=options)
        self.assertEqual(len(whole.log_ratio_sums), 5)
        type(self).draw += 1
        first, *others = self.slices
        halves = [dataclasses.replace(first, length=40, record_digest=None),
                  dataclasses.replace(first, first_position=40, length=50, record_digest=None), *others]
        self.assertTrue(options._needs_one_request(halves))
        with self.assertRaisesRegex(sis.InvalidArgument, f"{self.total} positions in all"):
            self.evaluate(1, slices=halves, options=options)
        sums = [sis.LogRatioSum(1 << 20, 30 + i) for i in range(len(halves))]
        self.check(slices=halves, options=dataclasses.replace(options, log_ratio_sums=sums))

    def test_what_depends_on_the_whole_batch_stays_in_one_request(self):
        self.evaluate(0, options=self.options(sis.ClipCov()))
        with self.assertRaisesRegex(sis.InvalidArgument, f"{self.total} positions in all"):
            self.evaluate(1, options=self.options(sis.ClipCov()))

    def test_what_does_not_fit_is_refused_before_anything_is_sent(self):
        for name, values in (
            ("mask", self.mask[:-1]),
            ("own_log_probs", self.own[:-1]),
            ("decoupled_log_probs", self.decoupled[:-1]),
            ("advantages", self.advantages[:-1]),
            ("sampled_ids", self.sampled_ids[:-1]),
            ("log_ratio_sums", [sis.LogRatioSum(0, 0)]),
        ):
            with self.assertRaisesRegex(ValueError, name):
                self.evaluate(1, options=sis.EvaluateOptions(**{name: values}))


if __name__ == "__main__":
    unittest.main()
