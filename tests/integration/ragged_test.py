"""Ragged records and values of the Python client: the same as padded ones in everything that can be
seen, cut up or whole, with one server and with several."""

import dataclasses
import unittest
import unittest.mock

import numpy as np

import sis
from server.testing.live_server import LiveServer
from sis.servers.replicas import Replicas
from sis.servers.single_server import SingleServer
from tests.integration.same_evaluation import assert_same_evaluation

VOCABULARY, TOP_K, MASS = 200, 24, 0.95
LENGTHS = {"a": 90, "b": 38, "c": 64, "d": 1, "e": 128, "f": 70}
OUTPUTS = ("decisions", "ratios", "log_ratios", "acceptance_probabilities", "coefficients")
ARRAYS = ("ids", "log_probs", "sampled_ids", "sampled_log_probs")


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


class RaggedTest(unittest.TestCase):
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
        cls.padded = cls.client.fetch_top_k(cls.run_, cls.names, ragged=False)

    def setUp(self):
        generator = np.random.default_rng(4)
        total = len(self.padded)
        values = log_softmax(generator, total)
        at = np.maximum(self.padded.ids, 0)
        moved = np.where(self.padded.ids < 0, 0, np.nan_to_num(self.padded.log_probs, neginf=0))
        moved = moved + generator.normal(size=moved.shape).astype(np.float32) * 0.1
        self.log_probs = np.minimum(moved - 0.2, -0.01).astype(np.float32)
        self.log_probs[self.padded.ids < 0] = np.nan
        self.sampled = np.take_along_axis(values, at[:, :1], axis=1)[:, 0]
        # A position twice is for fetch_top_k alone.
        self.once = list(range(len(self.names) - 1))
        generator.shuffle(self.once)

    def records(self, ragged, client=None, **keywords):
        client = client or self.client
        return client.fetch_top_k(self.run_, self.names, ragged=ragged, **keywords)

    def assert_records(self, got, expected):
        self.assertEqual(got.slices, expected.slices)
        self.assertEqual(got.missing, expected.missing)
        for name in expected.arrays:
            self.assertEqual(getattr(got, name).tobytes(), getattr(expected, name).tobytes(), name)
            self.assertEqual(getattr(got, name).shape, getattr(expected, name).shape)
        self.assertEqual(got.counts.tobytes(), expected.counts.tobytes())
        if "ids" in expected.arrays:
            self.assertEqual(got.used_ids.tobytes(), expected.used_ids.tobytes())

    def test_sets_are_of_many_lengths(self):
        counts = self.padded.counts
        self.assertGreater(len(set(counts.tolist())), TOP_K // 2)
        self.assertIn(0, counts)
        self.assertIn(TOP_K, counts)

    def test_records_are_the_same(self):
        ragged = self.records(True)
        self.assertTrue(ragged.ragged)
        self.assertEqual(ragged.arrays["ids"].ndim, 1)
        self.assert_records(ragged, self.padded)
        self.assert_records(ragged.select([3, 0, 5, 6]), self.padded.select([3, 0, 5, 6]))
        self.assert_records(ragged.select([]), self.padded.select([]))
        for arrays in (("ids",), ("log_probs", "sampled_ids")):
            expected = self.records(False, arrays=arrays)
            self.assert_records(self.records(True, arrays=arrays), expected)
        # There is nothing to be ragged.
        self.assertFalse(self.records(True, arrays=("sampled_ids",)).ragged)

    def test_a_run_with_a_mass_target_is_fetched_so_by_itself(self):
        records = self.client.fetch_top_k(self.run_, self.names)
        self.assertEqual((records.ragged, records.mass, records.select([0]).mass), (True, MASS, MASS))
        other = self.client.create_run("fixed", seed=1, vocabulary_size=VOCABULARY, top_k=TOP_K)
        append(self.client, other)
        self.assertFalse(self.client.fetch_top_k(other, list(LENGTHS)).ragged)
        self.assert_records(
            self.client.fetch_top_k(other, list(LENGTHS), ragged=True), self.client.fetch_top_k(other, list(LENGTHS))
        )

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

    def both(self, chosen):
        """Records and values, padded and ragged, of some slices."""
        rows = np.concatenate([np.r_[self.padded.rows(i)] for i in chosen])
        padded, ragged = self.padded.select(chosen), self.records(True).select(chosen)
        values = self.log_probs[rows]
        used = values[np.arange(TOP_K) < ragged.counts[:, None]]
        return padded, values, ragged, used, np.minimum(self.sampled[rows], 0)

    def test_decisions_are_the_same_however_they_are_sent(self):
        padded, values, ragged, used, sampled = self.both(self.once)
        for keywords in ({}, {"top_k": 3}):
            curve = [1, 2, 3] if "top_k" in keywords else [1, 2, 9, TOP_K]

            def evaluate(client, records, at_slots, own, curve=curve, keywords=keywords):
                return self.evaluate(client, records, at_slots, own, curve, **keywords)

            expected = evaluate(self.client, padded, values, sampled)
            self.assertGreater(expected.totals.accepted, 0)
            self.assertGreater(expected.totals.missing, 0)
            assert_same_evaluation(self, evaluate(self.client, ragged, used, sampled), expected)
            assert_same_evaluation(self, evaluate(self.client, padded, used, sampled), expected)
            for limit in (1, 3000):
                with unittest.mock.patch.object(SingleServer, "micro_batch_bytes", limit):
                    assert_same_evaluation(self, evaluate(self.client, ragged, used, sampled), expected)

    def test_with_several_servers_too(self):
        padded, values, _, used, sampled = self.both(self.once)
        chosen = self.records(True, client=self.replicas).select(self.once)
        self.assertTrue(chosen.ragged)
        self.assert_records(self.records(True, client=self.replicas), self.padded)
        expected = self.evaluate(self.client, padded, values, sampled)
        for limit in (1, 3000, 1 << 30):
            with unittest.mock.patch.object(Replicas, "micro_batch_bytes", limit):
                got = self.evaluate(self.replicas, chosen, used, sampled)
            assert_same_evaluation(self, got, expected)

    def test_a_server_that_is_away_has_empty_sets(self):
        servers = [LiveServer(listen="127.0.0.1:0") for _ in range(2)]
        for server in servers:
            self.addCleanup(server.kill)
        client = sis.Client([server.address for server in servers], timeout=30)
        self.addCleanup(client.close)
        run = client.create_run("run", seed=1, vocabulary_size=VOCABULARY, top_k=TOP_K, mass=MASS)
        append(client, run)
        slices = [sis.Slice(name, length=length) for name, length in LENGTHS.items()]
        servers[0].kill()
        ragged, padded = (client.fetch_top_k(run, slices, ragged=ragged) for ragged in (True, False))
        self.assert_records(ragged, padded)
        self.assertTrue(any(gap.reason is sis.MissingReason.STORE_DOWN for gap in ragged.missing))
        rows = np.full((len(padded), TOP_K), -5.0, np.float32)
        used = rows[np.arange(TOP_K) < ragged.counts[:, None]]
        both = [
            client.evaluate(run, records, draw=1, log_probs=values, sampled_log_probs=rows[:, 0])
            for records, values in ((padded, rows), (ragged, used))
        ]
        assert_same_evaluation(self, both[1], both[0])

    def test_what_does_not_fit_is_refused(self):
        _, _, ragged, used, sampled = self.both(self.once)
        with self.assertRaisesRegex(ValueError, "log_probs has shape"):
            self.evaluate(self.client, ragged, used[:-1], sampled)
        with self.assertRaisesRegex(ValueError, "log_probs has shape"):
            self.evaluate(self.client, list(ragged.slices), used, sampled)
        wrong = dataclasses.replace(ragged, arrays={**ragged.arrays, "counts": np.roll(ragged.counts, 1)})
        for client in (self.client, self.replicas):
            with self.assertRaisesRegex(sis.FailedPrecondition, "gathered.top_k_counts: position .*the record has"):
                self.evaluate(client, wrong, used, sampled)


if __name__ == "__main__":
    unittest.main()
