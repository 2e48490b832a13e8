"""Ragged sets, as an engine may give them: records, digests and decisions are those of padded ones."""

import hashlib
import unittest

import numpy as np
from server.testing.live_server import LiveServer

import sis

VOCABULARY, TOP_K, ROWS = 200, 40, 1000
SAMPLING = sis.Sampling("raw")


def log_softmax(rows, seed):
    logits = np.random.default_rng(seed).normal(size=(rows, VOCABULARY)) * 4
    return (logits - np.logaddexp.reduce(logits, axis=1, keepdims=True)).astype(np.float32)


def record(rows=ROWS, seed=1):
    """Some sets are empty, or short."""
    values = log_softmax(rows, seed)
    random = np.random.default_rng(seed)
    sampled = random.integers(VOCABULARY, size=rows)
    sampled[::2] = values[::2].argmax(axis=1)
    made = sis.canonical(
        np.broadcast_to(np.arange(VOCABULARY), values.shape), values, sampled,
        np.take_along_axis(values, sampled[:, None], 1)[:, 0], TOP_K,
    )  # fmt: skip
    lengths = np.where(random.random(rows) < 0.2, random.integers(0, TOP_K + 1, rows), TOP_K)
    unused = np.arange(TOP_K) >= lengths[:, None]
    made.top_k_ids[unused], made.top_k_log_probs[unused] = -1, -np.inf
    return made


def ragged_form(made):
    counts = (made.top_k_ids >= 0).sum(axis=1)
    used = np.arange(made.top_k_ids.shape[1]) < counts[:, None]
    return {
        "sampled_ids": made.sampled_ids,
        "sampled_log_probs": made.sampled_log_probs,
        "top_k_ids": made.top_k_ids[used],
        "top_k_log_probs": made.top_k_log_probs[used],
        "top_k_counts": counts,
    }


class RaggedTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.servers = [LiveServer(cache_bytes=64 << 20) for _ in range(2)]
        for server in cls.servers:
            cls.addClassCleanup(server.close)

    def setUp(self):
        self.client = self.connect(self.servers[0].address)

    def connect(self, address):
        client = sis.Client(address, timeout=30)
        self.addCleanup(client.close)
        return client

    def create(self, name, client=None, **settings):
        return (client or self.client).create_run(
            f"{self.id().split('.')[-1]}-{name}", seed=7, vocabulary_size=VOCABULARY, top_k=TOP_K,
            **{"mass": 0.95, **settings},
        )  # fmt: skip

    def append(self, run, *blocks, client=None):
        return (client or self.client).append_many(run, blocks, sampling=SAMPLING)

    def told(self, run, sequences, client=None):
        """Records, digests and decisions."""
        client = client or self.client
        records = client.fetch_top_k(run, sequences)
        log_probs, sampled = sis.gather(records, log_softmax(len(records), seed=50))
        evaluation = client.evaluate(
            run, records, draw=3, log_probs=log_probs, sampled_log_probs=sampled, outputs=["decisions", "ratios"]
        )
        arrays = (
            records.ids, records.log_probs, records.sampled_ids, records.sampled_log_probs, evaluation.decisions,
            evaluation.ratios,
        )  # fmt: skip
        self.assertGreater(evaluation.totals.accepted, len(records) / 40)
        digests = [hashlib.sha256(array.tobytes()).hexdigest() for array in arrays]
        return digests, records.slices, records.missing, evaluation.totals

    def test_they_are_recorded_as_padded_ones(self):
        made = record()
        for mass in (0.0, 0.95):
            for encoding in ("float32", "fixed16"):
                run = self.create(f"{encoding}-{mass}", mass=mass, log_prob_encoding=encoding)
                other = self.create(f"{encoding}-{mass}-padded", mass=mass, log_prob_encoding=encoding)
                with self.client.append(run, sampling=SAMPLING) as stream:
                    stream.block("s", first_position=0, policy_version=0, **ragged_form(made))
                    stream.seal("s", length=ROWS)
                self.append(other, sis.Block("s", 0, 0, *made), sis.Seal("s", ROWS))
                self.assertEqual(self.told(run, ["s"]), self.told(other, ["s"]))
                # Each is acked again, whichever way it comes.
                self.append(run, sis.Block("s", 0, 0, *made))
                self.append(other, sis.Block("s", 0, 0, **ragged_form(made)))

    def test_over_replicas(self):
        several = self.connect([server.address for server in self.servers])
        run, other = self.create("r", several), self.create("padded", several)
        names = [f"s{index}" for index in range(8)]
        made = [record(400, seed) for seed in range(len(names))]
        self.append(
            run, *(sis.Block(name, 0, 0, **ragged_form(one)) for name, one in zip(names, made)), client=several
        )
        self.append(other, *(sis.Block(name, 0, 0, *one) for name, one in zip(names, made)), client=several)
        told = self.told(run, names, several)
        self.assertEqual(told[0][:4], self.told(other, names, several)[0][:4])
        self.assertEqual(told[2], ())

    def test_shapes_and_counts_are_checked_before_anything_is_sent(self):
        run, good = self.create("r"), ragged_form(record(10))
        total = len(good["top_k_ids"])
        wrong = {
            "top_k_counts": (
                (good["top_k_counts"][:9], r"top_k_counts has shape \[9\], must be \[10\]"),
                (np.full(10, TOP_K + 1), rf"top_k_counts, position 0: {TOP_K + 1} is not in \[0, {TOP_K}\]"),
                (np.full(10, -1), "top_k_counts, position 0: -1 is not in"),
                (np.full(10, 0.5), "top_k_counts has dtype float64, must be integers"),
                (np.zeros(10, int), rf"top_k_ids has shape \[{total}\], must be \[0\]"),
            ),
            "top_k_log_probs": (
                (good["top_k_log_probs"][:3], rf"top_k_log_probs has shape \[3\], must be \[{total}\]"),
            ),
            "top_k_ids": ((np.zeros((10, TOP_K), int), r"top_k_ids has shape \[10, 40\]"),),
        }
        for name, cases in wrong.items():
            for value, message in cases:
                with self.assertRaisesRegex(ValueError, message):
                    self.append(run, sis.Block("s", 0, 0, **{**good, name: value}))
        self.assertEqual(self.client.get_run(run.id).sequences, 0)


if __name__ == "__main__":
    unittest.main()
