"""Appends of a trainer that recomputes old log-probs, with the real server, compared with float64."""

import importlib.util
import unittest

import numpy as np

import sis
from server.testing.live_server import LiveServer

if importlib.util.find_spec("torch"):
    import torch

    import sis.recomputed
    import sis.torch


def setUpModule():
    if not importlib.util.find_spec("torch"):
        raise unittest.SkipTest("PyTorch is not installed")


B, T, K, V = 4, 12, 6, 40
SAMPLING = sis.Sampling("processed")
LENGTHS = (12, 7, 0, 9)


def mask():
    """bool [B, T]. A tool wrote some tokens of the last row."""
    inside = torch.arange(T) < torch.tensor(LENGTHS)[:, None]
    inside[3, 4:6] = False
    return inside


def logits(seed, near=None):
    random = torch.from_numpy(np.random.default_rng(seed).normal(size=(B, T, V)))
    return (2 * random if near is None else near + 0.3 * random).float()


class RecomputedTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        torch.set_num_threads(1)
        cls.server = cls.enterClassContext(LiveServer())

    def setUp(self):
        self.client = self.enterContext(sis.Client(self.server.address, timeout=30))
        self.engine = logits(1)
        self.recomputed = logits(2, near=self.engine)
        self.current = logits(3, near=self.recomputed)
        drawn = torch.distributions.Categorical(logits=self.engine).sample
        torch.manual_seed(4)
        self.tokens = drawn()
        self.batch = sis.torch.PaddedBatch(["a", "b", "nothing", "c"], mask())

    def create(self, name, **settings):
        given = {"seed": 5, "vocabulary_size": V, "top_k": K, "log_prob_encoding": "float32", **settings}
        return self.client.create_run(name, **given)

    def in_float64(self, values, ids):
        """[N, ...] of logits [B, T, V] at ids int [N, ...]."""
        every = torch.log_softmax(self.batch.flat(values).double(), dim=-1).numpy()
        wide = np.maximum(ids, 0).astype(int)
        return np.take_along_axis(every, wide, 1) if wide.ndim == 2 else every[np.arange(len(wide)), wide]

    def test_of_the_same_logits_ratios_are_exactly_1(self):
        sets = sis.recomputed.sets(self.batch, self.tokens, self.recomputed, K)
        run = self.create("equal")
        sis.append_many(self.client, run, sets.entries, sampling=SAMPLING)
        records = self.client.fetch_top_k(run, self.batch.slices)
        self.assertEqual(self.client.evaluate(
            run, records, draw=0, options=sis.EvaluateOptions(mask=self.batch.mask),
            **sis.torch.gather(records, self.recomputed.flatten(0, 1), rows=self.batch.rows)._asdict(),
        ).totals.d, 0)  # fmt: skip

    def test_sets_in_the_place_of_the_engines(self):
        """EXPECTED soft acceptance on the sets of the recomputed policy, without a weight for the engine's."""
        run = self.create("sets")
        made = sis.recomputed.sets(self.batch, self.tokens, self.recomputed, K, policy_version=0)
        sis.append_many(self.client, run, made.entries, sampling=SAMPLING)
        records = self.client.fetch_top_k(run, self.batch.slices)
        flat, own = self.batch.flat(self.tokens), self.batch.mask.numpy()
        every = torch.log_softmax(self.batch.flat(self.recomputed).double(), dim=-1).numpy()
        np.testing.assert_array_equal(records.ids[own], np.argsort(-every, axis=1)[own, :K])
        np.testing.assert_array_equal(records.present, own)
        sampled = self.in_float64(self.recomputed, flat.numpy())
        np.testing.assert_allclose(made.sampled_log_probs.numpy(), np.where(own, sampled, 0), rtol=0, atol=2e-6)

        gathered = sis.torch.gather(records, self.batch.flat(self.current), flat)
        advantages = np.where(np.arange(len(records)) % 2, 1, -1).astype(np.float32)
        evaluation = self.client.evaluate(
            run, records, draw=0, **gathered._asdict(), outputs=("coefficients",),
            options=sis.EvaluateOptions(
                weight="expected", algorithm=sis.SoftAcceptance(), advantages=advantages, mask=own, sampled_ids=flat
            ),
        )  # fmt: skip
        ratios = np.exp(self.in_float64(self.current, records.ids) - np.take_along_axis(every, np.maximum(records.ids, 0), 1))
        w = np.exp(self.in_float64(self.current, flat.numpy()) - sampled)
        inside = (records.ids == flat.numpy()[:, None]).any(axis=1)
        a = np.where(inside, w / ratios.max(axis=1), 0)
        outward = np.where(advantages > 0, w > 1, w < 1)
        expected = (a + (1 - a) * w) * np.where(outward, a, 1)
        self.assertTrue(((outward & inside)[own]).any() and (~inside[own]).any())
        np.testing.assert_allclose(evaluation.coefficients[own], expected[own], rtol=1e-4, atol=1e-7)


if __name__ == "__main__":
    unittest.main()
