"""Rules in the place of verl's clip, and score centering, beside float64."""

import dataclasses

import training_worker
from expected import gradients as expected_gradients
from training_worker import Gradients, append, batch, detach, rollout
from verl_case import CISPO, K, WHOLE, VerlCase, metrics_of


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
                append(self.client, settings.create_run(self.client, WHOLE), samples)
                of = {"seed": 1, "draw": 0, "top_k": K, "lost": {lost.name}}
                every = [*samples[1:], dataclasses.replace(samples[0], turns=[*samples[0].turns, lost])]
                advantages = [*data["advantages"][1:], data["advantages"][0]]
                expected, _ = expected_gradients(self.model, every, advantages, rule=next(iter(weights)), **of)
                clipped, _ = expected_gradients(self.model, every, advantages, **of)
                gradients = Gradients(self.worker)
                self.attached(settings)
                metrics = metrics_of(self.worker.train_batch(data.clone()))
                (step,) = gradients.steps
                self.assert_close(step, expected)
                with self.assertRaises(AssertionError):
                    self.assert_close(step, clipped)
                self.assertAlmostEqual(metrics["sis/missing"][0][0], 6 / sum(sum(sample.mask) for sample in samples))

    def test_score_centering(self):
        """In float64 over the whole vocabulary, with one of two turns of a sample lost."""
        self.addCleanup(training_worker.set_loss, self.worker)
        actor = training_worker.set_loss(self.worker, **CISPO)
        samples = rollout(self.stale, 8, WHOLE, 28)
        lost = samples[0].turns[1]
        data = batch(samples)
        for number, weights in enumerate(({}, {"weight": "expected"})):
            with self.subTest(**weights):
                detach(self.worker)
                # Sets are whole, and of float32, whatever these say.
                settings = self.settings(run=f"centered-{number}", top_k=WHOLE, mass=0.7, score_centering=True, **weights)
                kept = [dataclasses.replace(sample, turns=[t for t in sample.turns if t is not lost]) for sample in samples]
                append(self.client, settings.create_run(self.client, WHOLE), kept)
                of = {"seed": 1, "draw": 0, "top_k": WHOLE, "lost": {lost.name}, "limit": 1.5, "expected": bool(weights)}
                expected, share = expected_gradients(self.model, samples, data["advantages"], centered=True, **of)
                plain, _ = expected_gradients(self.model, samples, data["advantages"], **of)
                self.assertTrue(0.1 < share < 0.9, share)
                gradients = Gradients(self.worker)
                self.attached(settings, False, actor)
                metrics = metrics_of(self.worker.train_batch(data.clone()))
                (step,) = gradients.steps
                self.assert_close(step, expected)
                with self.assertRaises(AssertionError):
                    self.assert_close(step, plain)
                missing = len(lost.log_probs) / sum(sum(sample.mask) for sample in samples)
                self.assertAlmostEqual(metrics["sis/missing"][0][0], missing)

    def test_score_centering_over_what_a_filter_keeps(self):
        """There the mean score of equal policies is 0, and only there."""
        self.addCleanup(training_worker.set_loss, self.worker)
        actor = training_worker.set_loss(self.worker, **CISPO)
        samples = rollout(self.model, 8, WHOLE, 29, top_p=0.8)
        data = batch(samples)
        expected, _ = expected_gradients(
            self.model, samples, data["advantages"], seed=1, draw=0, top_k=WHOLE, top_p=0.8, limit=1.5
        )
        settings = self.settings(top_k=WHOLE, score_centering=True)
        append(self.client, settings.create_run(self.client, WHOLE), samples)
        gradients = Gradients(self.worker)
        self.attached(settings, True, actor)
        self.worker.train_batch(data)
        (step,) = gradients.steps
        self.assert_close(step, expected)
