"""Rules that replace verl's clip, compared with float64."""

import dataclasses

from expected import gradients as expected_gradients
from training_worker import append, batch, detach, rollout
from verl_case import WHOLE, K, VerlCase


class VerlWeightTest(VerlCase):
    def test_a_rule_takes_the_place_of_the_clip(self):
        """One of two turns of a sample is lost."""
        samples = rollout(self.coarse, 8, K, 27)
        lost = samples[0].turns[1]
        samples[0].turns.remove(lost)
        data = batch(samples)
        for number, weights in enumerate(({"damped_truncation": True}, {"soft_acceptance": True, "weight": "expected"})):
            with self.subTest(**weights):
                detach(self.worker)
                settings = self.settings(run=f"rule-{number}", log_prob_encoding="float32", **weights)
                append(self.client, settings.create_run(self.client, WHOLE, algorithm="verl"), samples)
                of = {"seed": 1, "draw": 0, "top_k": K, "lost": {lost.name}}
                every = [*samples[1:], dataclasses.replace(samples[0], turns=[*samples[0].turns, lost])]
                advantages = [*data["advantages"][1:], data["advantages"][0]]
                expected, _ = expected_gradients(self.model, every, advantages, rule=next(iter(weights)), **of)
                clipped, _ = expected_gradients(self.model, every, advantages, **of)
                self.attached(settings)
                step, metrics = self.stepped(data.clone())
                self.assert_close(step, expected)
                with self.assertRaises(AssertionError):
                    self.assert_close(step, clipped)
                self.assertAlmostEqual(metrics["missing"], 6 / sum(sum(sample.mask) for sample in samples))
