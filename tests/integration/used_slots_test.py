"""Values of the used slots alone decide as those of all slots, cut up or whole, with one server and
with several."""

import dataclasses
import unittest
import unittest.mock

import numpy as np

import sis
from server.testing.live_server import LiveServer
from sis._servers.replicas import Replicas
from sis._servers.single_server import SingleServer
from tests.integration.same_evaluation import assert_same_evaluation

VOCABULARY, TOP_K, MASS = 200, 24, 0.95
LENGTHS = {"a": 90, "b": 38, "c": 64, "d": 1, "e": 128, "f": 70}
OUTPUTS = ("decisions", "ratios", "log_ratios", "acceptance_probabilities", "coefficients")


def log_softmax(generator, rows):
    """Some of a single token, some flat."""
    logits = generator.normal(size=(rows, VOCABULARY)) * generator.uniform(0.1, 12, size=(rows, 1))
    return (logits - np.logaddexp.reduce(logits, axis=1, keepdims=True)).astype(np.float32)


def append(client, run):
    generator = np.random.default_rng(3)
    with client.append(run, sampling=sis.Sampling("raw")) as stream:
        for name, length in LENGTHS.items():
            values = log_softmax(generator, length)
            sampled = (values + generator.gumbel(size=values.shape)).argmax(axis=1)
            ids = np.broadcast_to(np.arange(VOCABULARY), values.shape)
            own = np.take_along_axis(values, sampled[:, None], 1)[:, 0]
            record = sis.canonical(ids, values, sampled, own, TOP_K)
            if name == "a":  # a gap
                before, after = ([array[part] for array in record] for part in (slice(40), slice(45, None)))
                stream.block(name, first_position=0, policy_version=0, **sis.TopK(*before)._asdict())
                stream.block(name, first_position=45, policy_version=0, **sis.TopK(*after)._asdict())
            else:
                stream.block(name, first_position=0, policy_version=0, **record._asdict())


class UsedSlotsTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = LiveServer()
        cls.addClassCleanup(cls.server.close)
        cls.client = sis.Client(cls.server.address, timeout=30)
        cls.addClassCleanup(cls.client.close)
        replicas = [LiveServer(listen="127.0.0.1:0") for _ in range(3)]
        for replica in replicas:
            cls.addClassCleanup(replica.close)
        cls.replicas = sis.Client([replica.address for replica in replicas], timeout=30)
        cls.addClassCleanup(cls.replicas.close)
        for client in (cls.client, cls.replicas):
            cls.run_ = client.create_run("run", seed=1, vocabulary_size=VOCABULARY, top_k=TOP_K, mass=MASS)
            append(client, cls.run_)
        cls.names = [*LENGTHS, sis.Slice("never", length=9), sis.Slice("b", 3, 20)]
        cls.records = cls.client.fetch_top_k(cls.run_, cls.names)

    def setUp(self):
        generator = np.random.default_rng(4)
        unused = self.records.ids < 0
        moved = np.where(unused, 0, np.nan_to_num(self.records.log_probs, neginf=0))
        moved = moved + generator.normal(size=moved.shape).astype(np.float32) * 0.1
        self.log_probs = np.minimum(moved - 0.2, -0.01).astype(np.float32)
        self.log_probs[unused] = np.nan
        self.sampled = log_softmax(generator, len(moved))[:, 0]
        # A position twice is for fetch_top_k alone.
        self.once = list(range(len(self.names) - 1))
        generator.shuffle(self.once)

    def assert_records(self, got, expected):
        self.assertEqual((got.slices, got.missing), (expected.slices, expected.missing))
        for name in ("counts", "ids", "log_probs", "sampled_ids", "sampled_log_probs"):
            self.assertEqual(getattr(got, name).tobytes(), getattr(expected, name).tobytes(), name)

    def test_sets_are_of_many_lengths(self):
        counts = self.records.counts
        self.assertGreater(len(set(counts.tolist())), TOP_K // 2)
        self.assertIn(0, counts)
        self.assertIn(TOP_K, counts)
        self.assertEqual((self.records.mass, self.records.select([0]).mass), (MASS, MASS))

    def evaluate(self, client, records, log_probs, sampled, curve=(1, 2, 9, TOP_K), **keywords):
        return client.evaluate(
            self.run_, records, draw=7, log_probs=log_probs, sampled_log_probs=sampled, outputs=OUTPUTS,
            prefix_curve=curve, options=self.options(len(records)), **keywords,
        )  # fmt: skip

    def options(self, total):
        generator = np.random.default_rng(5)
        return sis.EvaluateOptions(
            mask=generator.random(total) < 0.9,
            own_log_probs=-generator.random(total),
            algorithm=sis.Grpo(),
            advantages=generator.normal(size=total),
        )

    def both(self):
        """The records of some slices, values of all slots and of the used ones, and of sampled tokens."""
        rows = np.concatenate([np.r_[self.records.rows(i)] for i in self.once])
        records, values = self.records.select(self.once), self.log_probs[rows]
        return records, values, values[np.arange(TOP_K) < records.counts[:, None]], self.sampled[rows]

    def test_decisions_are_the_same_however_they_are_sent(self):
        records, values, used, sampled = self.both()
        for curve, keywords in (([1, 2, 9, TOP_K], {}), ([1, 2, 3], {"top_k": 3})):
            expected = self.evaluate(self.client, records, values, sampled, curve, **keywords)
            self.assertGreater(expected.totals.accepted, 0)
            self.assertGreater(expected.totals.missing, 0)
            for limit in (1, 3000, 1 << 20):
                with unittest.mock.patch.object(SingleServer, "micro_batch_bytes", limit):
                    got = self.evaluate(self.client, records, used, sampled, curve, **keywords)
                assert_same_evaluation(self, got, expected)

    def test_with_several_servers_too(self):
        records, values, used, sampled = self.both()
        chosen = self.replicas.fetch_top_k(self.run_, self.names)
        self.assert_records(chosen, self.records)
        expected = self.evaluate(self.client, records, values, sampled)
        for limit in (1, 3000, 1 << 30):
            with unittest.mock.patch.object(Replicas, "micro_batch_bytes", limit):
                got = self.evaluate(self.replicas, chosen.select(self.once), used, sampled)
            assert_same_evaluation(self, got, expected)

    def test_what_does_not_fit_is_refused(self):
        records, _, used, sampled = self.both()
        with self.assertRaisesRegex(ValueError, "log_probs has shape"):
            self.evaluate(self.client, records, used[:-1], sampled)
        wrong = dataclasses.replace(records, counts=np.roll(records.counts, 1))
        for client in (self.client, self.replicas):
            with self.assertRaisesRegex(sis.FailedPrecondition, "counts"):
                self.evaluate(client, wrong, used, sampled)


if __name__ == "__main__":
    unittest.main()
