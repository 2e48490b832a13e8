"""Compares trainers' use of decisions with the real server's algorithms, and with autograd in float64."""

import importlib.util
import unittest

import numpy as np
from server.testing.live_server import LiveServer

import sis

if importlib.util.find_spec("torch"):
    import torch

    import sis.recomputed
    import sis.torch
    from sis.integrations import SisConfig
    from sis.integrations._decided import Decided


def setUpModule():
    if not importlib.util.find_spec("torch"):
        raise unittest.SkipTest("PyTorch is not installed")


B, T, K, V = 6, 40, 4, 30


class UnusableTest(unittest.TestCase):
    def test_a_token_without_a_sampling_log_prob_weighs_1(self):
        sampling = torch.tensor([-2.0, -9999.0, -3.4028235e38, -torch.inf, torch.nan, torch.inf, -2.0])
        current = torch.linspace(-1, -4, len(sampling))
        accepted = torch.tensor([False] * 6 + [True])
        unknown = torch.tensor([False] + [True] * 5 + [False])
        advantages = torch.tensor([1.0, -2.0] * 3 + [1.0])
        for settings in ({}, {"weight": "expected"}, {"soft_acceptance": True}, {"damped_truncation": "without_sets"}):
            with self.subTest(**settings):
                weights = SisConfig(**settings)
                decided = Decided(current, sampling, accepted, accepted.float())
                old = decided.old_log_probs(weights)
                torch.testing.assert_close(old[unknown], current[unknown])
                self.assertTrue(decided.advantages(weights, advantages).isfinite().all())
                self.assertTrue(old.isfinite().all())


class TokenWeightsTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        torch.set_num_threads(1)
        cls.server = cls.enterClassContext(LiveServer())

    def setUp(self):
        self.client = self.enterContext(sis.Client(self.server.address, timeout=30))
        random = np.random.default_rng(1)
        behaviour = torch.from_numpy(random.normal(size=(B, T, V))).float() * 2
        current = behaviour + 0.4 * torch.from_numpy(random.normal(size=(B, T, V))).float()
        torch.manual_seed(2)
        tokens = torch.distributions.Categorical(logits=behaviour).sample()
        mask = torch.ones(B, T, dtype=torch.bool)
        mask[0, 5:9], mask[3, 31:] = False, False
        batch = sis.torch.PaddedBatch([f"{row}" for row in range(B)], mask)
        self.run = self.client.create_run(self.id(), seed=3, vocabulary_size=V, top_k=K, log_prob_encoding="float32")
        made = sis.recomputed.sets(batch, tokens, behaviour, K)
        # The second sequence never arrives.
        there = [entry for entry in made.entries if entry.sequence != "1"]
        sis.append_many(self.client, self.run, there, sampling=sis.Sampling("processed"))
        self.records = self.client.fetch_top_k(self.run, batch.slices)
        self.flat, self.mask = batch.flat(tokens), batch.mask
        self.gathered = sis.torch.gather(self.records, batch.flat(current), self.flat)
        self.own = batch.flat(behaviour.log_softmax(-1)).gather(1, self.flat[:, None])[:, 0]
        self.advantages = torch.from_numpy(random.normal(size=len(batch))).float()
        self.advantages[::17] = 0

    def evaluated(self, weight, algorithm):
        return self.client.evaluate(
            self.run, self.records, draw=7, **self.gathered._asdict(),
            outputs=("accepted", "acceptance_probabilities", "coefficients", "decisions"),
            options=sis.EvaluateOptions(
                weight=weight, algorithm=algorithm, advantages=self.advantages, mask=self.mask, own_log_probs=self.own,
                sampled_ids=self.flat,
            ),
        )  # fmt: skip

    def decided(self, evaluation):
        return Decided(
            self.gathered.sampled_log_probs, self.own, sis.torch.tensor(evaluation.accepted),
            sis.torch.tensor(evaluation.acceptance_probabilities),
        )  # fmt: skip

    def test_rules_have_the_coefficients_of_the_service(self):
        for settings, algorithm in (
            ({"damped_truncation": True}, sis.DampedTruncation()),
            ({"soft_acceptance": True}, sis.SoftAcceptance()),
            ({"soft_acceptance": True, "weight": "expected"}, sis.SoftAcceptance()),
        ):
            with self.subTest(**settings):
                weights = SisConfig(**settings)
                evaluation = self.evaluated(weights.weight, algorithm)
                # There is one of each.
                self.assertEqual(set(evaluation.decisions.tolist()), {int(decision) for decision in sis.Decision})
                decided = self.decided(evaluation)
                weighed = decided.advantages(weights, self.advantages)[self.mask]
                expected = torch.from_numpy(evaluation.coefficients * self.advantages.numpy())[self.mask]
                torch.testing.assert_close(weighed, expected, rtol=2e-6, atol=0)
                # By clipped losses too: the ratio is 1.
                self.assertTrue(torch.equal(decided.old_log_probs(weights), decided.log_probs))

    def test_without_a_rule_weights_are_ratios(self):
        for weight in ("sampled", "expected"):
            with self.subTest(weight):
                weights = SisConfig(weight=weight)
                evaluation = self.evaluated(weight, sis.ImportanceSampling())
                decided = self.decided(evaluation)
                self.assertIs(decided.advantages(weights, self.advantages), self.advantages)
                made = (decided.log_probs - decided.old_log_probs(weights)).exp()[self.mask]
                expected = torch.from_numpy(evaluation.coefficients)[self.mask]
                torch.testing.assert_close(made, expected, rtol=1e-5, atol=0)

    def test_damped_truncation_is_its_definition_whatever_is_clipped(self):
        """Gradients by autograd of a loss that clips, beside those of the definition in float64."""
        evaluation = self.evaluated("sampled", sis.DampedTruncation())
        decided = self.decided(evaluation)
        self.check_damped_truncation(decided, decided.probabilities.double(), True)
        w = (decided.log_probs.double() - self.own.double()).exp()
        self.check_damped_truncation(decided, w.minimum(1 / w), "without_sets")

    def check_damped_truncation(self, decided, a, setting):
        weights = SisConfig(damped_truncation=setting)
        log_probs = decided.log_probs.clone().requires_grad_()
        ratio = (log_probs - decided.old_log_probs(weights)).exp()
        advantages = decided.advantages(weights, self.advantages)
        torch.minimum(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages).sum().backward()
        w = (decided.log_probs.double() - self.own.double()).exp()
        advantages = self.advantages.double()
        outward = ((w > 1) & (advantages > 0)) | ((w < 1) & (advantages < 0))
        wanted = torch.where(w > 1, 1.0, w) * torch.where(outward, a, 1.0) * advantages
        torch.testing.assert_close(log_probs.grad.double(), wanted, rtol=1e-5, atol=0)
        unknown = decided.probabilities == 0
        for name, of in (
            ("outward", outward & ~unknown), ("outward, outside or missing", outward & unknown),
            ("inward", ~outward & (w < 0.9)), ("truncated", ~outward & (w > 1.1)),
        ):  # fmt: skip
            self.assertGreater(int(of.sum()), 5, name)

    def test_positions_without_a_ratio_are_finite(self):
        nothing = torch.zeros(3)
        decided = Decided(torch.tensor([-1.0, -1.0, -200.0]), torch.tensor([torch.nan, -300.0, -1.0]), nothing.bool(), nothing)
        advantages = torch.tensor([1.0, -1.0, 0.0])
        for setting in (True, "without_sets"):
            damped = decided.advantages(SisConfig(damped_truncation=setting), advantages)
            torch.testing.assert_close(damped, torch.tensor([1.0, -1.0, 0.0]))
        soft = decided.advantages(SisConfig(soft_acceptance=True), advantages)
        self.assertTrue(torch.isfinite(soft[1:]).all())

    def test_settings_that_do_not_go_together(self):
        for settings, message in (
            ({"weight": "mean"}, "weight is 'mean', must be one of 'sampled', 'expected'"),
            ({"damped_truncation": "without"}, "damped_truncation is 'without', must be one of False, True, 'without_sets'"),
            ({"damped_truncation": True, "weight": "expected"}, "weight is 'expected', but damped_truncation"),
            ({"damped_truncation": True, "soft_acceptance": True}, "damped_truncation and soft_acceptance.*set one"),
            ({"observe": True, "soft_acceptance": True}, "observe is on.*leave soft_acceptance out"),
            ({"sets": "engines"}, "sets is 'engines', must be one of 'engine', 'trainer'"),
        ):
            with self.subTest(**settings), self.assertRaisesRegex(ValueError, message):
                SisConfig(**settings)


if __name__ == "__main__":
    unittest.main()
