"""Decisions about mini-batches of verl, beside its own loss and float64."""

import copy

import training_worker
from expected import gradients as expected_gradients
from training_worker import append, batch, rollout
from verl_case import WHOLE, K, VerlCase, metrics_of

import sis
from sis.integrations.verl import attach


class VerlDecisionTest(VerlCase):
    def test_of_equal_policies_every_ratio_is_1(self):
        samples, settings = self.recorded(self.model, 8, WHOLE, 3)
        # Stock gradients of ratios that are exactly 1: old log-probs are what the engine itself finds.
        data = batch(samples)
        data["old_log_probs"] = training_worker.recompute(self.worker, batch(samples))
        expected = self.stock(data)
        self.attached(settings)
        step, metrics = self.stepped(batch(samples))
        self.assertEqual((metrics["accept_rate"], metrics["missing"]), (1, 0))
        self.assertLess(metrics["d"], 1e-5)
        self.assert_same(step, expected)

    def test_shuffled_epochs_of_micro_batches_of_any_size(self):
        from verl.utils import tensordict_utils

        samples = rollout(self.coarse, 16, K, 4)
        names = [turn.name for sample in samples for turn in sample.turns]
        count = sum(sum(sample.mask) for sample in samples)
        run = self.settings().create_run(self.client, WHOLE, algorithm="verl")
        append(self.client, run, samples)
        training = self.attached(self.settings())
        data = batch(samples)
        tensordict_utils.assign_non_tensor(
            data, mini_batch_size=8, epochs=2, seed=7, dataloader_kwargs={"shuffle": True}, global_batch_size=8,
            use_dynamic_bsz=True, max_token_len_per_gpu=70,
        )  # fmt: skip
        metrics = metrics_of(self.worker.train_mini_batch(data))
        self.assertEqual(training.draw, 3)
        steps = [self.client.list_steps(run, draws=[draw])[draw].totals for draw in range(4)]
        # An epoch has every token once.
        self.assertEqual([steps[0].scored + steps[1].scored, steps[2].scored + steps[3].scored], [count, count])
        self.assertEqual([totals.missing for totals in steps], [0] * 4)
        for name, of_step in (
            ("accept_rate", "accept_rate"),
            ("expected_accept_rate", "mean_expected_acceptance"),
            ("d", "mean_d"),
            ("d_sis", "mean_d_sis"),
            ("k3", "mean_k3"),
            ("residual_mass", "mean_residual_mass"),
            ("log_envelope", "mean_log_envelope"),
        ):
            self.assertEqual(len(metrics[f"sis/{name}"]), 4)
            for value, totals in zip(metrics[f"sis/{name}"], steps):
                self.assertAlmostEqual(value, getattr(totals, of_step), delta=1e-12, msg=name)
        self.assertEqual(metrics["sis/envelope_violations"], [0.0] * 4)
        self.assertLess(steps[0].mean_d, 0.1)
        self.assertGreater(steps[0].accept_rate, 0.3)
        # Nobody needs them any more.
        records = self.client.fetch_top_k(run, names)
        self.assertEqual({missing.reason for missing in records.missing}, {sis.MissingReason.RELEASED})

    def test_without_padding_the_gradient_is_that_of_float64(self):
        """The logits of a micro-batch are those of its tokens, one after the other."""
        worker = training_worker.make_worker(self.path, remove_padding=True)
        samples, settings = self.recorded(self.coarse, 8, K, 20)
        training = attach(worker, settings)
        self.addCleanup(training.close)
        for draw, sizes in enumerate(({}, {"use_dynamic_bsz": True, "max_token_len_per_gpu": 70})):
            data = batch(samples, seed=draw, **sizes)
            expected, share = expected_gradients(self.model, samples, data["advantages"], seed=1, draw=draw, top_k=K)
            self.assertTrue(0.3 < share < 1, share)
            step, metrics = self.stepped(data, worker)
            self.assertEqual(metrics["missing"], 0)
            self.assertAlmostEqual(metrics["accept_rate"], share, delta=1e-12)
            self.assert_close(step, expected)

    def test_samples_that_are_alike_have_one_record(self):
        """Which Evaluate, in a micro-batch of all, would not take twice."""
        samples, settings = self.recorded(self.coarse, 8, K, 33)
        samples[3:6] = [copy.deepcopy(samples[6]) for _ in range(3)]
        data = batch(samples, micro_batch_size_per_gpu=8)
        expected, share = expected_gradients(self.model, samples, data["advantages"], seed=1, draw=0, top_k=K)
        self.attached(settings)
        step, metrics = self.stepped(data)
        self.assertEqual(metrics["missing"], 0)
        self.assertAlmostEqual(metrics["accept_rate"], share, delta=1e-12)
        self.assert_close(step, expected)
