"""Requests with options and outputs of every kind give the same bits in one piece and cut up, by one server and by
several, with values of all slots and of the used ones alone."""

import dataclasses
import unittest
import unittest.mock

import numpy as np

import sis
from server.testing.live_server import LiveServer
from server.testing.random_records import drawn, log_softmax
from sis._servers.replicas import Replicas
from sis._servers.single_server import SingleServer

VOCABULARY, TOP_K, MASS = 200, 24, 0.95
LENGTHS = {"a": 90, "b": 1, "c": 64, "d": 38, "e": 70}
# The longest sequence: all of them get through in several requests only.
LIMIT = 90
OUTPUTS = ("decisions", "ratios", "log_ratios", "acceptance_probabilities", "surrogates", "coefficients")
WHOLE, LIMITED, REPLICAS = range(3)
OBSERVE = {
    **sis.PRESETS,
    "k4": sis.Sis(top_k=4),
    "expected": sis.Sis(weight="expected"),
    "grpo": sis.Grpo(),
    "mask": sis.SequenceMask(0.5, 2.0),
    "product": sis.SequenceMask(0.0, 1e9, "product"),
    "one": sis.SequenceMask(0.5, 2.0, "one"),
    "token": sis.TokenMask(0.1),
}
# Client, whether it is given the values of all slots, and its bytes of a request.
WAYS = ((LIMITED, True, 1000), (LIMITED, False, 900), (WHOLE, False, 1), (REPLICAS, False, 1), (REPLICAS, True, 1 << 30))


def policy(generator, rows):
    """Log-probs, some of a single token, some flat."""
    return log_softmax(generator.normal(size=(rows, VOCABULARY)) * generator.uniform(0.1, 12, size=(rows, 1)))


def append(client, run):
    generator = np.random.default_rng(3)
    with client.append(run, sampling=sis.Sampling("raw")) as stream:
        for name, length in LENGTHS.items():
            record = drawn(policy(generator, length), generator, TOP_K)
            for part in (slice(40), slice(45, None)) if name == "a" else (slice(None),):
                rows = sis.TopK(*(array[part] for array in record))
                stream.block(name, first_position=part.start or 0, policy_version=0, **rows._asdict())


class MicroBatchesTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.clients = []
        for flags, servers in (((), 1), ((f"--max_evaluate_positions={LIMIT}",), 1), ((), 3)):
            started = [LiveServer(*flags) for _ in range(servers)]
            for server in started:
                cls.addClassCleanup(server.close)
            addresses = [server.address for server in started]
            client = cls.enterClassContext(sis.Client(addresses if servers > 1 else addresses[0], timeout=30))
            cls.run_ = client.create_run("run", seed=1, vocabulary_size=VOCABULARY, top_k=TOP_K, mass=MASS)
            append(client, cls.run_)
            cls.clients.append(client)
        # With an empty slice, and a sequence that is not there.
        names = ["d", "a", sis.Slice("none", length=8), sis.Slice("empty"), "b", "e", "c"]
        cls.records, cls.fetched = (cls.clients[i].fetch_top_k(cls.run_, names) for i in (WHOLE, REPLICAS))
        generator = np.random.default_rng(4)
        total = cls.total = len(cls.records)
        unused = cls.records.ids < 0
        moved = np.where(unused, 0, np.nan_to_num(cls.records.log_probs, neginf=0))
        moved = moved + generator.normal(size=moved.shape) * 0.1
        cls.log_probs = np.minimum(moved - 0.2, -0.01).astype(np.float32)
        cls.log_probs[unused] = np.nan
        cls.used = cls.log_probs[np.arange(TOP_K) < cls.records.counts[:, None]]
        cls.sampled_log_probs = policy(generator, total)[:, 0]
        cls.mask = generator.random(total) < 0.8
        cls.own = -generator.random(total).astype(np.float32)
        cls.decoupled = cls.sampled_log_probs - 0.01
        cls.advantages = generator.normal(size=total).astype(np.float32)
        cls.draw = 0

    def setUp(self):
        type(self).draw += 1

    def options(self, algorithm, **others):
        return sis.EvaluateOptions(
            mask=self.mask, own_log_probs=self.own, algorithm=algorithm, advantages=self.advantages,
            sampled_ids=np.maximum(self.records.sampled_ids, 0), **others,
        )  # fmt: skip

    def evaluate(self, client, slots=True, limit=1 << 30, records=None, arguments=None, **keywords):
        if arguments is None:
            arguments = {"log_probs": self.log_probs if slots else self.used}
        with (
            unittest.mock.patch.object(SingleServer, "micro_batch_bytes", limit),
            unittest.mock.patch.object(Replicas, "micro_batch_bytes", limit),
        ):
            return self.clients[client].evaluate(
                self.run_, records or self.records, draw=self.draw, outputs=OUTPUTS,
                sampled_log_probs=self.sampled_log_probs, **arguments, **keywords,
            )  # fmt: skip

    def check(self, **keywords):
        whole, counted = self.evaluate(WHOLE, **keywords), {WHOLE}
        self.assertEqual(whole.newly_counted, self.total - whole.totals.masked)
        for client, slots, limit in WAYS:
            got = self.evaluate(client, slots, limit, **keywords)
            self.assertEqual(got.newly_counted, 0 if client in counted else whole.newly_counted)
            counted.add(client)
            for field in dataclasses.fields(sis.Evaluation):
                mine, theirs = getattr(got, field.name), getattr(whole, field.name)
                if isinstance(theirs, np.ndarray):
                    self.assertEqual(mine.tobytes(), theirs.tobytes(), field.name)
                elif field.name != "newly_counted":
                    self.assertEqual(mine, theirs, field.name)
        return whole

    def test_several_servers_have_the_records_of_one(self):
        self.assertEqual((self.fetched.slices, self.fetched.missing), (self.records.slices, self.records.missing))
        for name in ("counts", "ids", "log_probs", "sampled_ids", "sampled_log_probs"):
            self.assertEqual(getattr(self.fetched, name).tobytes(), getattr(self.records, name).tobytes(), name)
        some = self.clients[REPLICAS].fetch_top_k(self.run_, self.records.slices, log_probs=False)
        self.assertEqual(some.used_ids.tobytes(), self.records.used_ids.tobytes())
        counts = self.records.counts.tolist()
        self.assertGreater(len(set(counts)), TOP_K // 2)
        self.assertEqual((min(counts), max(counts)), (0, TOP_K))
        self.assertEqual((self.records.mass, self.records.select([0]).mass), (MASS, MASS))

    def test_everything_that_is_of_every_position(self):
        options = self.options(sis.Dapo(), observe=OBSERVE)
        whole = self.check(options=options, prefix_curve=[1, 2, 9, TOP_K], total_variation=True)
        self.assertTrue(0 < whole.totals.accepted < whole.totals.scored)
        self.assertTrue(whole.totals.missing and whole.totals.masked and whole.totals.total_variation)
        self.assertTrue(np.any(whole.coefficients))
        for client in self.clients:
            step = client.list_steps(self.run_, draws=[self.draw])[self.draw]
            self.assertEqual({name: step.corrections[name] for name in whole.corrections}, dict(whole.corrections))
            self.assertEqual(sum(step.distributions.residual_mass.counts), whole.totals.scored)

    def test_a_smaller_k(self):
        self.check(options=self.options(sis.Cispo()), top_k=3, prefix_curve=[1, 2, 3])

    def test_three_policies(self):
        self.check(options=self.options(sis.Grpo(), decoupled_log_probs=self.decoupled, weight="expected"))

    def test_reduced(self):
        ones = np.ones(self.total, np.float32)
        arguments = {"log_envelopes": 0.5 * ones, "covered_masses": 0.9 * ones}
        self.check(arguments=arguments, options=self.options(sis.Cispo()))

    def test_gspo_where_its_sums_allow(self):
        options = self.options(sis.Gspo())
        self.assertEqual(len(self.check(options=options).log_ratio_sums), len(self.records.slices))
        type(self).draw += 1
        first, second, *others = self.records.slices
        second = [dataclasses.replace(second, first_position=begin, length=length, record_digest=None)
                  for begin, length in ((0, 40), (40, 50))]
        halves = dataclasses.replace(self.records, slices=(first, *second, *others))
        self.assertTrue(options._needs_one_request(halves.slices))
        with self.assertRaisesRegex(sis.InvalidArgument, f"{self.total} positions in all"):
            self.evaluate(LIMITED, records=halves, options=options)
        sums = [sis.LogRatioSum(1 << 20, 30 + i) for i in range(len(halves.slices))]
        self.check(records=halves, options=dataclasses.replace(options, log_ratio_sums=sums))

    def test_what_depends_on_the_whole_batch_stays_in_one_request(self):
        self.evaluate(WHOLE, options=self.options(sis.ClipCov()))
        with self.assertRaisesRegex(sis.InvalidArgument, f"{self.total} positions in all"):
            self.evaluate(LIMITED, options=self.options(sis.ClipCov()))

    def test_what_does_not_fit_is_refused_before_anything_is_sent(self):
        for name, values in (
            ("mask", self.mask[:-1]),
            ("own_log_probs", self.own[:-1]),
            ("decoupled_log_probs", self.decoupled[:-1]),
            ("advantages", self.advantages[:-1]),
            ("sampled_ids", self.mask[:-1]),
            ("log_ratio_sums", [sis.LogRatioSum(0, 0)]),
        ):
            with self.assertRaisesRegex(ValueError, name):
                self.evaluate(LIMITED, options=sis.EvaluateOptions(**{name: values}))
        with self.assertRaisesRegex(ValueError, "log_probs has shape"):
            self.evaluate(WHOLE, arguments={"log_probs": self.used[:-1]})
        wrong = dataclasses.replace(self.records, counts=np.roll(self.records.counts, 1))
        for client in (WHOLE, REPLICAS):
            with self.assertRaisesRegex(sis.FailedPrecondition, "counts"):
                self.evaluate(client, slots=False, records=wrong, options=self.options(sis.Cispo()))


if __name__ == "__main__":
    unittest.main()
