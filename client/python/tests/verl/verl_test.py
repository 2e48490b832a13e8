"""verl's FSDP2 engine beside the real server: run by tools/rl-test."""

import contextlib
import copy
import dataclasses
import importlib
import json
import os
import pathlib
import socket
import subprocess
import sys
import tempfile
import time
import tomllib
import unittest
import unittest.mock
import warnings

import numpy as np
import recorded_ratios
import tiny_model
import training_worker
from expected import gradients as expected_gradients
from training_worker import Gradients, append, batch, detach, rollout


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


training_worker.environment(0, 1, free_port())

import torch
from server.testing.live_server import LiveServer

import sis
from sis.verl.names import SESSION, name_in
from sis.verl.refusals import check_training
from sis.verl.settings import Settings, truncates
from sis.verl.training import attach

K = 16
# Few enough for a record to hold all of them.
WHOLE = tiny_model.VOCABULARY = training_worker.VOCABULARY
# They start ranks of their own, or Ray. tools/rl-test says when.
takes_minutes = unittest.skipUnless("SIS_ALL" in os.environ, "with tools/rl-test --all, or by name")
# Weights up to 1.5.
CISPO = {"loss_mode": "cispo", "clip_ratio_low": 1.0, "clip_ratio_high": 0.5}


def metrics_of(output):
    from verl.utils import tensordict_utils

    return tensordict_utils.get(output, "metrics")


@contextlib.contextmanager
def warned(test):
    # unittest's own way imports all that transformers would import when it is needed.
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        yield
    test.assertEqual(sum("training goes on without" in str(warning.message) for warning in seen), 1)


def answered(call):
    """What a call of a server returns that has just been started: gRPC pauses between attempts."""
    for _ in range(100):
        try:
            return call()
        except sis.Unavailable:
            time.sleep(0.1)
    return call()


class RolloutCorrectionTest(unittest.TestCase):
    """verl's own masks of sequences, in the service."""

    def test_sequences_are_left_out_that_verl_leaves_out(self):
        from verl.trainer.ppo.rollout_corr_helper import (
            SUPPORTED_ROLLOUT_RS_OPTIONS,
            compute_rollout_rejection_mask,
        )

        server = LiveServer()
        self.addCleanup(server.close)
        client = sis.Client(server.address)
        self.addCleanup(client.close)
        modes = sorted(mode for mode in SUPPORTED_ROLLOUT_RS_OPTIONS if mode.startswith("seq_"))
        self.assertEqual(len(modes), 8)
        behaviour, current, mask = recorded_ratios.tensors(1)
        self.assertTrue((current - behaviour < -20)[mask].any(), "none is beyond verl's limit")
        for mode in modes:
            with self.subTest(mode):
                _, aggregate, divergence = mode.split("_")
                wide = sis.SequenceTrustRegion(divergence, aggregate, upper=1e9)
                of = recorded_ratios.evaluate(client, f"{mode}-all", behaviour, current, mask, [wide])
                # Half of them lie outside, none of them near a bound, where rounding would tell.
                values = np.sort(np.abs(of.divergences[:, 0]))
                gaps = np.diff(values[24:40])
                bound = float(values[24:40][gaps.argmax()] + gaps.max() / 2)
                spec = f"{np.exp(-bound)!s}_{np.exp(bound)!s}" if divergence == "k1" else str(bound)
                region = sis.SequenceTrustRegion(
                    divergence, aggregate, -bound if divergence == "k1" else None, bound
                )
                got = recorded_ratios.evaluate(client, mode, behaviour, current, mask, [region])
                want, _ = compute_rollout_rejection_mask(
                    torch.tensor(current - behaviour), torch.tensor(mask, dtype=torch.float32), mode, spec
                )
                kept = want.numpy().any(axis=1)
                self.assertTrue(20 < kept.sum() < 44, kept.sum())
                np.testing.assert_array_equal(~got.outside_trust_regions, kept)
                np.testing.assert_array_equal(got.coefficients != 0, want.numpy()[mask] != 0)


class VerlTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        from transformers import AutoModelForCausalLM

        torch.set_num_threads(1)
        cls.path = str(tiny_model.make_for(cls))
        torch.distributed.init_process_group("gloo", rank=0, world_size=1)
        cls.addClassCleanup(torch.distributed.destroy_process_group)
        cls.worker = training_worker.make_worker(cls.path)
        cls.initial = [p.detach().clone() for p in cls.worker.engine.module.parameters()]
        cls.model = AutoModelForCausalLM.from_pretrained(cls.path, dtype=torch.float32)
        cls.coarse = AutoModelForCausalLM.from_pretrained(cls.path, dtype=torch.bfloat16)
        cls.stale = copy.deepcopy(cls.model)
        torch.manual_seed(0)
        with torch.no_grad():
            for parameter in cls.stale.parameters():
                parameter.add_(0.03 * parameter.abs().mean() * torch.randn_like(parameter))
        server = LiveServer(cache_bytes=256 << 20)
        cls.addClassCleanup(server.close)
        cls.address = server.address
        cls.client = sis.Client(server.address)
        cls.addClassCleanup(cls.client.close)

    def setUp(self):
        self.addCleanup(self.reset)

    def reset(self):
        detach(self.worker)
        with torch.no_grad():
            for parameter, before in zip(self.worker.engine.module.parameters(), self.initial):
                parameter.copy_(before)
        self.worker.engine.optimizer.state.clear()

    def settings(self, **changed):
        return Settings(**{"address": self.address, "run": self.id().split(".")[-1], "top_k": K, "seed": 1, **changed})

    def attached(self, settings, *others):
        training = attach(self.worker, settings, *others)
        self.addCleanup(training.close)
        return training

    def assert_same(self, steps, others):
        self.assertEqual(len(steps), len(others))
        for step, other in zip(steps, others):
            for name, gradient in step.items():
                self.assertTrue(torch.equal(gradient, other[name]), name)
                self.assertTrue(gradient.abs().max() > 0 or "bias" in name, name)

    def assert_close(self, step, expected):
        self.assertEqual(set(step), set(expected))
        for name, gradient in expected.items():
            torch.testing.assert_close(step[name].double(), gradient.double(), rtol=1e-3, atol=1e-5, msg=name)

    def stock(self, data):
        """Gradients of verl's own loss."""
        gradients = Gradients(self.worker)
        self.worker.train_batch(data)
        detach(self.worker)
        return gradients.steps

    def on_sampling_log_probs(self, samples):
        data = batch(samples)
        data["old_log_probs"] = data["rollout_log_probs"]
        return self.stock(data)

    def test_without_records_gradients_are_those_of_verl_on_the_sampling_log_probs(self):
        samples = rollout(self.coarse, 8, K, 1)
        expected = self.on_sampling_log_probs(samples)
        gradients = Gradients(self.worker)
        training = self.attached(self.settings())
        data = batch(samples)
        before = data.clone()
        metrics = metrics_of(self.worker.train_batch(data))
        self.assert_same(gradients.steps, expected)
        self.assertEqual(metrics["sis/missing"], [[1.0]])
        self.assertEqual((metrics["sis/missing_never_arrived"], metrics["sis/missing_stale"]), ([[1.0]], [[0.0]]))
        self.assertNotIn("sis/accept_rate", metrics)
        totals = self.client.get_step(training.run, 0).totals
        self.assertEqual(totals.missing, sum(sum(sample.mask) for sample in samples))
        # What the trainer keeps is as it was.
        for name in ("old_log_probs", "rollout_log_probs", "response_mask", "advantages"):
            self.assertTrue(torch.equal(data[name], before[name]), name)
        self.assertFalse({"sis_row", "distillation_use_topk"} & set(data.keys()))

    def test_without_a_server_training_goes_on_and_acceptance_returns_with_it(self):
        samples = rollout(self.coarse, 8, K, 2)
        expected = self.on_sampling_log_probs(samples)
        port = free_port()
        gradients = Gradients(self.worker)
        training = self.attached(self.settings(address=f"127.0.0.1:{port}"))
        with warned(self):
            metrics = metrics_of(self.worker.train_batch(batch(samples)))
        self.assert_same(gradients.steps, expected)
        self.assertEqual(metrics["sis/missing"], [[1.0]])
        server = LiveServer(listen=f"127.0.0.1:{port}")
        self.addCleanup(server.kill)
        with sis.Client(server.address) as client:
            append(client, answered(lambda: self.settings().create_run(client, WHOLE)), samples)
            answered(training._client.list_runs)
            metrics = metrics_of(self.worker.train_batch(batch(samples)))
            self.assertEqual(metrics["sis/missing"], [[0.0]])
            self.assertGreater(metrics["sis/accept_rate"][0][0], 0.3)
            # Killed between two steps.
            server.kill()
            with warned(self):
                for _ in range(2):
                    metrics = metrics_of(self.worker.train_batch(batch(samples)))
            self.assertEqual(metrics["sis/missing"], [[1.0]])

    def test_a_training_that_is_resumed_under_its_name_begins_anew(self):
        settings = self.settings(max_staleness=1)
        samples = rollout(self.coarse, 8, K, 9)
        first = self.attached(settings)
        append(self.client, first.run, samples)
        self.worker.train_batch(batch(samples))
        self.client.advance_version(first.run, 150)
        detach(self.worker)
        # From a checkpoint of step 100, with all its processes.
        resumed = self.attached(settings)
        self.assertEqual((first.run.incarnation, resumed.run.incarnation), (1, 2))
        rollouts = settings.create_run(self.client, WHOLE)
        self.assertEqual(rollouts, resumed.run)
        self.client.advance_version(rollouts, 101)
        append(self.client, rollouts, samples, policy_version=101)
        metrics = metrics_of(self.worker.train_batch(batch(samples)))
        self.assertEqual(metrics["sis/missing"], [[0.0]])
        self.assertEqual(self.client.get_step(resumed.run, resumed.draw).totals.missing, 0)
        # One that has told nothing and evaluated nothing is that which others have opened.
        joined = self.attached(self.settings(run="joined"))
        self.assertEqual(self.attached(self.settings(run="joined")).run, joined.run)

    def test_all_that_main_ppo_imports_is_installed(self):
        """Once it runs: it imports its trainers late."""
        for name in ("main_ppo", "main_ppo_v0", "ppo.v1"):
            importlib.import_module(f"verl.trainer.{name}")

    def test_of_equal_policies_every_ratio_is_1(self):
        samples = rollout(self.model, 8, WHOLE, 3)
        # Stock gradients of ratios that are exactly 1: old log-probs are what the engine itself finds.
        from verl.workers.utils.padding import no_padding_2_padding

        data = batch(samples)
        data["old_log_probs"] = torch.zeros_like(data["old_log_probs"])
        from verl.utils import tensordict_utils

        tensordict_utils.assign_non_tensor(data, compute_loss=False)
        own = self.worker.infer_batch(data)["log_probs"]
        data = batch(samples)
        data["old_log_probs"] = no_padding_2_padding(own, data)
        expected = self.stock(data)
        settings = self.settings(top_k=WHOLE, log_prob_encoding="float32")
        append(self.client, settings.create_run(self.client, WHOLE), samples)
        gradients = Gradients(self.worker)
        self.attached(settings)
        metrics = metrics_of(self.worker.train_batch(batch(samples)))
        self.assertEqual(metrics["sis/accept_rate"], [[1.0]])
        self.assertEqual(metrics["sis/missing"], [[0.0]])
        self.assertLess(metrics["sis/d"][0][0], 1e-5)
        self.assertEqual(metrics["actor/ppo_kl"][0].aggregate(), 0)
        self.assert_same(gradients.steps, expected)

    def test_equal_policies_have_ratios_of_1_over_what_a_filter_keeps(self):
        """And the gradient is that of the log-probs over it, found anew in float64."""
        samples = rollout(self.model, 8, WHOLE, 10, top_p=0.8)
        data = batch(samples)
        expected, _ = expected_gradients(
            self.model, samples, data["advantages"], seed=1, draw=0, top_k=WHOLE, top_p=0.8
        )

        settings = self.settings(top_k=WHOLE, log_prob_encoding="float32")
        append(self.client, settings.create_run(self.client, WHOLE), samples)
        gradients = Gradients(self.worker)
        training = attach(self.worker, settings, truncated=True)
        self.addCleanup(training.close)
        metrics = metrics_of(self.worker.train_batch(data))
        self.assertEqual((metrics["sis/accept_rate"], metrics["sis/incomplete"]), ([[1.0]], [[0.0]]))
        self.assertLess(metrics["sis/d"][0][0], 1e-5)
        (step,) = gradients.steps
        self.assert_close(step, expected)

    def test_a_filter_that_keeps_more_than_is_recorded(self):
        samples = rollout(self.model, 8, K, 11, top_p=0.8)
        settings = self.settings(log_prob_encoding="float32")
        append(self.client, settings.create_run(self.client, WHOLE), samples)
        training = attach(self.worker, settings, truncated=True)
        self.addCleanup(training.close)
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            metrics = [metrics_of(self.worker.train_batch(batch(samples))) for _ in range(2)]
        recorded = np.concatenate([turn.record.top_k_log_probs for sample in samples for turn in sample.turns])
        longer = int((np.exp(recorded.astype(float)).sum(1) < 0.999).sum())
        self.assertTrue(0 < longer < len(recorded))
        self.assertEqual([of_step["sis/incomplete"] for of_step in metrics], [[[longer]]] * 2)
        self.assertEqual(sum("the 16 recorded tokens are not known" in str(warning.message) for warning in seen), 1)

    def test_filters_of_a_configuration(self):
        for rollouts, truncated in (
            ({"top_p": 1.0, "top_k": -1}, False),
            ({"top_p": 0.9, "top_k": -1}, True),
            ({"top_p": 1.0, "top_k": 50}, True),
        ):
            self.assertEqual(truncates({"use_kl_loss": False}, rollouts), truncated)
        truncates({"use_kl_loss": True}, {"top_p": 1.0, "logprobs_mode": "raw_logprobs"})
        with self.assertRaisesRegex(ValueError, "Set use_kl_loss to false"):
            truncates({"use_kl_loss": True}, {"top_p": 0.9})
        with self.assertRaisesRegex(ValueError, "Set it to 'processed_logprobs'"):
            truncates({}, {"top_p": 0.9, "logprobs_mode": "raw_logprobs"})
        with self.assertRaisesRegex(ValueError, "mass is 0.97, and rollouts leave tokens out.*Set it to 0"):
            attach(self.worker, self.settings(mass=0.97), truncated=True)

    def test_shuffled_epochs_of_micro_batches_of_any_size(self):
        from verl.utils import tensordict_utils

        samples = rollout(self.coarse, 16, K, 4)
        names = [turn.name for sample in samples for turn in sample.turns]
        count = sum(sum(sample.mask) for sample in samples)
        run = self.settings().create_run(self.client, WHOLE)
        append(self.client, run, samples)
        training = self.attached(self.settings())
        data = batch(samples)
        tensordict_utils.assign_non_tensor(
            data, mini_batch_size=8, epochs=2, seed=7, dataloader_kwargs={"shuffle": True}, global_batch_size=8,
            use_dynamic_bsz=True, max_token_len_per_gpu=70,
        )  # fmt: skip
        metrics = metrics_of(self.worker.train_mini_batch(data))
        self.assertEqual(training.draw, 3)
        steps = [self.client.get_step(run, draw).totals for draw in range(4)]
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

    def test_two_ranks_decide_as_one(self):
        samples = rollout(self.coarse, 8, K, 5)
        run = self.settings().create_run(self.client, WHOLE)
        append(self.client, run, samples)
        gradients = Gradients(self.worker)
        self.attached(self.settings(release=False))
        metrics = metrics_of(self.worker.train_batch(batch(samples)))
        alone = self.client.get_step(run, 0).totals
        told = {"address": self.address, "run": "two-ranks", "top_k": K, "seed": 1}
        append(self.client, Settings(**told).create_run(self.client, WHOLE), samples)
        answers = [answer for (answer,) in self.two_ranks([(samples, told, False, {})])]
        together = self.client.get_step(sis.Run("two-ranks", 0, run.config), 0).totals
        for name in ("accepted", "rejected", "outside_top_k", "missing"):
            self.assertEqual(getattr(together, name), getattr(alone, name), name)
        self.assertAlmostEqual(together.d, alone.d, delta=1e-4)
        for answer in answers:
            # Both ranks log what both did.
            logged = answer["metrics"]
            self.assertEqual(logged["sis/accept_rate"], [metrics["sis/accept_rate"][0]] * 2)
            self.assertAlmostEqual(logged["sis/d"][0][0], together.mean_d, delta=1e-12)
            self.assert_close(answer["gradients"], gradients.steps[0])

    def two_ranks(self, steps, arrangement=None, **batch_settings):
        """What each found, step by step, each (samples, settings, truncated, changes of the loss)."""
        with tempfile.TemporaryDirectory() as folder:
            task = {"path": self.path, "arrangement": arrangement or {}, "steps": steps, "batch": batch_settings}
            torch.save(task, f"{folder}/task")
            port, script = free_port(), pathlib.Path(__file__).parent / "two_ranks.py"
            ranks = [subprocess.Popen([sys.executable, script, str(rank), str(port), folder]) for rank in range(2)]
            self.assertEqual([rank.wait(timeout=240) for rank in ranks], [0, 0])
            return [torch.load(f"{folder}/answer{rank}", weights_only=False) for rank in range(2)]

    def recorded(self, model, count, top_k, seed, mass=0.0, **filters):
        """Samples that the run of this test has, and its settings."""
        samples = rollout(model, count, top_k, seed, **filters)
        settings = self.settings(run=f"{self.id().split('.')[-1]}-{seed}", top_k=top_k, mass=mass, log_prob_encoding="float32")
        append(self.client, settings.create_run(self.client, WHOLE), samples)
        return samples, settings

    def test_without_padding_the_gradient_is_that_of_float64(self):
        """The logits of a micro-batch are those of its tokens, one after the other."""
        worker = training_worker.make_worker(self.path, remove_padding=True)
        samples, settings = self.recorded(self.coarse, 8, K, 20)
        gradients = Gradients(worker)
        training = attach(worker, settings)
        self.addCleanup(training.close)
        for draw, sizes in enumerate(({}, {"use_dynamic_bsz": True, "max_token_len_per_gpu": 70})):
            data = batch(samples, seed=draw, **sizes)
            expected, share = expected_gradients(self.model, samples, data["advantages"], seed=1, draw=draw, top_k=K)
            self.assertTrue(0.3 < share < 1, share)
            metrics = metrics_of(worker.train_batch(data))
            self.assertEqual(metrics["sis/missing"], [[0.0]])
            self.assertAlmostEqual(metrics["sis/accept_rate"][0][0], share, delta=1e-12)
            self.assert_close(gradients.steps[draw], expected)

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

    def test_samples_that_are_alike_have_one_record(self):
        """Which Evaluate, in a micro-batch of all, would not take twice."""
        samples, settings = self.recorded(self.coarse, 8, K, 33)
        samples[3:6] = [copy.deepcopy(samples[6]) for _ in range(3)]
        data = batch(samples, micro_batch_size_per_gpu=8)
        expected, share = expected_gradients(self.model, samples, data["advantages"], seed=1, draw=0, top_k=K)
        gradients = Gradients(self.worker)
        self.attached(settings)
        metrics = metrics_of(self.worker.train_batch(data))
        self.assertEqual(metrics["sis/missing"], [[0.0]])
        self.assertAlmostEqual(metrics["sis/accept_rate"][0][0], share, delta=1e-12)
        self.assert_close(gradients.steps[0], expected)

    @torch.no_grad()
    def on_own_sets(self, samples, temperature):
        """The samples as the actor's own log-probs say, and its weights as updates leave them."""
        found = []
        for sample in samples:
            context = torch.tensor([sample.prompt + sample.tokens])
            every = (self.model(context).logits[0, len(sample.prompt) - 1 : -1] / temperature).log_softmax(-1)
            own = every.gather(1, torch.tensor(sample.tokens)[:, None])[:, 0]
            turns = [
                dataclasses.replace(turn, log_probs=every[turn.start : turn.start + len(turn.log_probs)])
                for turn in sample.turns
            ]
            found.append(dataclasses.replace(sample, log_probs=own.tolist(), turns=turns))
        training_worker.move(moved := copy.deepcopy(self.model))
        return moved, found

    def test_sets_of_the_trainer(self):
        """Of whichever engine the samples are, and told no log-probs of it."""
        samples = rollout(self.stale, 8, K, 31)
        # Three that are alike: two are recorded together, all trained on together.
        samples[6] = copy.deepcopy(samples[4])
        samples[7] = copy.deepcopy(samples[4])
        moved, own = self.on_own_sets(samples, 0.8)
        rule = {"soft_acceptance": True, "weight": "expected"}
        settings = self.settings(sets="trainer", log_prob_encoding="float32", **rule)
        data = batch(samples, temperature=0.8)
        of = {"seed": 1, "draw": 0, "top_k": K, "rule": "soft_acceptance", "temperature": 0.8}
        expected, _ = expected_gradients(moved, own, data["advantages"], **of)
        of_engine, _ = expected_gradients(moved, samples, data["advantages"], **of)
        gradients = Gradients(self.worker)
        training = self.attached(settings)
        data.pop("rollout_log_probs")
        self.worker.infer_batch(data)
        # As on two ranks.
        sizes = {"temperature": 0.8, "micro_batch_size_per_gpu": 2}
        halves = [batch(part, **sizes) for part in (samples[:6], samples[6:])]
        data["old_log_probs"] = torch.cat([training_worker.recompute(self.worker, part) for part in halves])
        training_worker.move(self.worker.engine.module)
        metrics = metrics_of(self.worker.train_batch(data))
        self.assertEqual((metrics["sis/missing"], metrics["sis/envelope_violations"]), ([[0.0]], [[0.0]]))
        self.assertGreater(metrics["sis/d"][0][0], 1e-3)
        (step,) = gradients.steps
        self.assert_close(step, expected)
        with self.assertRaises(AssertionError):
            self.assert_close(step, of_engine)
        # Weights of verl's own for the mismatch are the loss's matter.
        data["rollout_is_weights"] = torch.zeros_like(data["advantages"])
        self.worker.train_batch(data)
        self.assertEqual(max(value.abs().max() for value in gradients.steps[1].values()), 0)

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

    @takes_minutes
    def test_sequence_parallelism_over_two_ranks(self):
        """Each has half of the tokens of a micro-batch, and a stretch may be on both."""
        drawn, settings = self.recorded(self.coarse, 8, K, 21)
        filtered, of_kept = self.recorded(self.model, 8, WHOLE, 22, top_p=0.8)
        targeted, of_mass = self.recorded(self.coarse, 8, K, 25, mass=0.7)
        damped = dataclasses.replace(settings, run=f"{settings.run}-damped", damped_truncation=True)
        append(self.client, damped.create_run(self.client, WHOLE), drawn)
        stale = rollout(self.stale, 8, K, 30)
        centered = dataclasses.replace(settings, run=f"{settings.run}-centered", score_centering=True)
        append(self.client, centered.create_run(self.client, WHOLE), stale)
        steps = [
            (drawn, vars(settings), False, {}), (filtered, vars(of_kept), True, {}),
            (targeted, vars(of_mass), False, {}), (drawn, vars(damped), False, {}),
            (stale, vars(centered), False, CISPO),
        ]  # fmt: skip
        arrangement = {"remove_padding": True, "sequence_parallel": 2}
        first, second = self.two_ranks(steps, arrangement)
        advantages = batch(drawn)["advantages"]
        expected, share = expected_gradients(self.model, drawn, advantages, seed=1, draw=0, top_k=K)
        of_damped, _ = expected_gradients(
            self.model, drawn, advantages, seed=1, draw=0, top_k=K, rule="damped_truncation"
        )
        of_filtered, _ = expected_gradients(
            self.model, filtered, batch(filtered)["advantages"], seed=1, draw=0, top_k=WHOLE, top_p=0.8
        )
        advantages = batch(targeted)["advantages"]
        of_targeted, share_of_mass = expected_gradients(
            self.model, targeted, advantages, seed=1, draw=0, top_k=K, mass=0.7
        )
        of_centered, _ = expected_gradients(
            self.model, stale, batch(stale)["advantages"], seed=1, draw=0, top_k=K, limit=1.5, centered=True
        )
        for answers in (first, second):
            self.assert_close(answers[0]["gradients"], expected)
            self.assert_close(answers[1]["gradients"], of_filtered)
            self.assert_close(answers[2]["gradients"], of_targeted)
            self.assert_close(answers[3]["gradients"], of_damped)
            self.assert_close(answers[4]["gradients"], of_centered)
        # As verl: what is logged comes from the first.
        self.assertEqual([answer["metrics"] for answer in second], [{}] * 5)
        logged = first[0]["metrics"]
        self.assertEqual(logged["sis/missing"], [[0.0]])
        self.assertAlmostEqual(logged["sis/accept_rate"][0][0], share, delta=1e-12)
        self.assertEqual(first[1]["metrics"]["sis/accept_rate"], [[1.0]])
        self.assertEqual(first[1]["metrics"]["sis/incomplete"], [[0.0]])
        # Sets end where their mass is reached: parts of ragged records were cut out, and decided.
        run = self.client.get_run(of_mass.run).run
        counts = self.client.fetch_top_k(run, [turn.name for sample in targeted for turn in sample.turns]).counts
        self.assertGreater(len(np.unique(counts)), 4)
        self.assertAlmostEqual(first[2]["metrics"]["sis/accept_rate"][0][0], share_of_mass, delta=1e-12)
        self.assertEqual(first[2]["metrics"]["sis/missing"], [[0.0]])
        # Every token counts once.
        totals = self.client.get_step(self.client.get_run(settings.run).run, 0).totals
        self.assertEqual((totals.scored, totals.missing), (sum(sum(sample.mask) for sample in drawn), 0))
        self.assertAlmostEqual(totals.accept_rate, share, delta=1e-12)

    def test_the_plugin_and_the_recipe_in_verls_own_actor(self):
        package = pathlib.Path(__file__).parents[2]
        samples = rollout(self.coarse, 8, 20, 8)
        with tempfile.TemporaryDirectory() as folder:
            # As pip would leave it.
            (metadata := pathlib.Path(folder) / "sis_ratio_client-0.dist-info").mkdir()
            (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: sis-ratio-client\nVersion: 0\n")
            points = tomllib.loads((package / "pyproject.toml").read_text())["project"]["entry-points"]
            lines = [f"{name} = {module}" for name, module in points["verl.plugins"].items()]
            (metadata / "entry_points.txt").write_text("\n".join(["[verl.plugins]", *lines]))
            told = Settings(address=self.address, run="my-training", top_k=20)
            append(self.client, told.create_run(self.client, WHOLE), samples)
            torch.save(samples, file := f"{folder}/samples")
            overrides = package / "examples/verl/overrides.txt"
            script = pathlib.Path(__file__).parent / "plugin_worker.py"
            subprocess.run(
                [sys.executable, script, self.address, str(free_port()), self.path, overrides, file],
                env={**os.environ, "PYTHONPATH": f"{folder}:{os.environ['PYTHONPATH']}"}, check=True, timeout=240,
            )  # fmt: skip
            answer = torch.load(file, weights_only=False)
        self.assertEqual(answer["replica"], "sis.verl.plugin")
        self.assertRegex(answer["refused"], "rollout_is .* Set it to null")
        self.assertEqual(answer["metrics"]["sis/missing"], [0.0, 0.0])
        self.assertGreater(min(answer["metrics"]["sis/accept_rate"]), 0.3)

    def test_refuses_what_would_be_wrong(self):
        samples = rollout(self.coarse, 8, K, 6)
        self.attached(self.settings())
        data = batch(samples)
        data.pop("rollout_log_probs")
        with self.assertRaisesRegex(ValueError, "calculate_log_probs=true"):
            self.worker.train_batch(data)
        data = batch(samples)
        data["rollout_is_weights"] = torch.ones_like(data["advantages"])
        with self.assertRaisesRegex(ValueError, "corrects twice"):
            self.worker.train_batch(data)
        with self.assertRaisesRegex(ValueError, "distillation"):
            self.worker.train_batch(batch(samples, distillation_use_topk=True))
        detach(self.worker)
        for owner, name, value in (
            (self.worker.engine_config, "strategy", "megatron"),
            (self.worker.model_config, "use_fused_kernels", True),
            (self.worker.engine_config, "pad_to_length", True),
        ):
            with self.subTest(name), unittest.mock.patch.dict(owner.__dict__, {name: value}):
                with self.assertRaisesRegex(ValueError, name):
                    attach(self.worker, self.settings())
        with self.assertRaisesRegex(ValueError, "give attach the actor's configuration"):
            attach(self.worker, self.settings(score_centering=True))
        self.addCleanup(training_worker.set_loss, self.worker)
        for changed, weights, message in (
            ({"loss_mode": "vanilla"}, {}, "loss_mode is 'vanilla'.*set it to 'cispo'"),
            ({"use_kl_loss": True}, {}, "use_kl_loss is True.*set it to False"),
            ({"clip_ratio_low": 0.2}, {}, "clip_ratio_low is 0.2.*weights to 0.8.*Set it to 1.0"),
            ({}, {"damped_truncation": True}, "sis.damped_truncation is True.*set it to False"),
        ):
            actor = training_worker.set_loss(self.worker, **{**CISPO, **changed})
            with self.subTest(message), self.assertRaisesRegex(ValueError, message):
                attach(self.worker, self.settings(score_centering=True, **weights), False, actor)

    @takes_minutes
    def test_sessions_of_transfer_queue_name_what_is_recorded(self):
        samples = rollout(self.coarse, 8, K, 23)
        settings = self.settings(log_prob_encoding="float32")
        tokens = [np.array(sample.tokens) for sample in samples]

        def named(number):
            """Turns that the session names."""
            for turn in samples[number].turns:
                context = [*samples[number].prompt, *samples[number].tokens[: turn.start]]
                turn.name = name_in(f"uid_{number}", context)

        for number in (0, 1, 2, 3, 4, 7):
            named(number)
        run = settings.create_run(self.client, WHOLE)
        append(self.client, run, samples)
        # Under the name that the session gives 6 something else is recorded, which is not its.
        other = rollout(self.coarse, 7, K, 24)[6]
        other.prompt = samples[6].prompt
        other.turns[0].name = name_in("uid_6", [*samples[6].prompt, *samples[6].tokens[: samples[6].turns[0].start]])
        other.turns = other.turns[:1]
        append(self.client, run, [other])
        # What is longer than verl allows.
        cut, turn = samples[1], samples[1].turns[-1]
        for name in ("tokens", "mask", "log_probs"):
            setattr(cut, name, getattr(cut, name)[:-3])
        turn.log_probs = turn.log_probs[:-3]
        self.assertLess(len(cut.tokens), len(tokens[1]))
        advantages = batch(samples)["advantages"]
        with tempfile.TemporaryDirectory() as folder:
            task = {"path": self.path, "samples": samples, "settings": vars(settings), "advantages": advantages}
            torch.save(task, f"{folder}/task")
            script = pathlib.Path(__file__).parent / "queued_samples.py"
            subprocess.run([sys.executable, script, str(free_port()), folder], check=True, timeout=540)
            answer = torch.load(f"{folder}/answer", weights_only=False)
        self.assertEqual([told["extra_args"] for told in answer["told"]], [{SESSION: f"uid_{i}"} for i in range(8)])
        expected, share = expected_gradients(self.model, samples, advantages, seed=1, draw=0, top_k=K)
        self.assertEqual(answer["metrics"]["sis/missing"], [0.0])
        self.assertAlmostEqual(answer["metrics"]["sis/accept_rate"][0], share, delta=1e-12)
        (step,) = answer["gradients"]
        self.assert_close(step, expected)

    def test_a_session_that_was_evicted_is_missing_for_that_reason(self):
        """Its content name is not asked for: the session's own was there."""
        samples = rollout(self.coarse, 8, K, 26)
        for number, sample in enumerate(samples):
            for turn in sample.turns:
                context = [*sample.prompt, *sample.tokens[: turn.start]]
                turn.name = name_in(f"uid_{number}", context)
        server = LiveServer(cache_bytes=16 << 20)
        self.addCleanup(server.close)
        settings = self.settings(address=server.address)
        client = sis.Client(server.address)
        self.addCleanup(client.close)
        run = settings.create_run(client, WHOLE)
        append(client, run, samples)
        # What was read goes first, and nothing that is leased.
        victim, names = samples[4].turns[0], [turn.name for sample in samples for turn in sample.turns]
        client.fetch_top_k(run, [victim.name])
        client.fetch_top_k(run, [name for name in names if name != victim.name], lease_seconds=600)
        filler = client.create_run("filler", seed=0, vocabulary_size=WHOLE, top_k=K)
        for number in range(4000):
            block = sis.Block(f"{number}", 0, 0, *victim.record)
            client.append_many(filler, [block], sampling=sis.Sampling("processed"))
            if client.get_run(run.id).sequences < len(names):
                break

        training = self.attached(settings)
        data = batch(samples, uid="uid")
        data["session_id"] = torch.arange(len(samples))
        with unittest.mock.patch.object(training._client, "fetch_top_k", wraps=training._client.fetch_top_k) as fetch:
            metrics = metrics_of(self.worker.train_batch(data))
        self.assertEqual(fetch.call_count, 1)
        share = len(victim.log_probs) / sum(sum(sample.mask) for sample in samples)
        self.assertEqual(metrics["sis/missing"], [[share]])
        self.assertEqual((metrics["sis/missing_evicted"], metrics["sis/missing_never_arrived"]), ([[share]], [[0.0]]))
        self.assertGreater(metrics["sis/accept_rate"][0][0], 0.3)

    def test_refuses_a_configuration_with_the_setting_to_change(self):
        import verl
        from hydra import compose, initialize_config_dir

        actor_rollout = "actor_rollout_ref"
        ours = f"+{actor_rollout}.rollout.custom.sis"
        recipe = [
            f"{ours}.address=localhost:1", f"{ours}.run=r", f"{ours}.damped_truncation=true",
            f"{actor_rollout}.rollout.name=vllm", f"{actor_rollout}.rollout.calculate_log_probs=true",
            "algorithm.rollout_correction.bypass_mode=true", f"{actor_rollout}.actor.strategy=fsdp2",
        ]  # fmt: skip
        with initialize_config_dir(str(pathlib.Path(verl.__file__).parent / "trainer/config"), version_base=None):
            check_training(compose("ppo_trainer", overrides=recipe))
            own = [f"{ours}.sets=trainer", *recipe[:-2], recipe[-1]]
            own[own.index(f"{actor_rollout}.rollout.name=vllm")] = f"{actor_rollout}.rollout.name=sglang"
            told = own.index(f"{actor_rollout}.rollout.calculate_log_probs=true")
            own[told] = "algorithm.rollout_correction.rollout_is=token"
            check_training(compose("ppo_trainer", overrides=[*own, f"{actor_rollout}.rollout.top_p=0.9"]))
            for config, override, message in (
                ("ppo_trainer", f"{actor_rollout}.rollout.name=sglang", "Set it to 'vllm'"),
                ("ppo_trainer", f"{actor_rollout}.rollout.calculate_log_probs=false", "Set it to true"),
                ("ppo_trainer", f"{actor_rollout}.model.use_fused_kernels=true", "use_fused_kernels.* Set it to false"),
                ("ppo_trainer", f"{actor_rollout}.actor.pad_to_length=true", "pad_to_length.* Set it to false"),
                ("ppo_trainer", "algorithm.rollout_correction.rollout_is=token", "rollout_is .* Set it to null"),
                ("ppo_trainer", f"{ours}.sets=trainer", "bypass_mode is true.*Set bypass_mode to false"),
                ("ppo_trainer", f"{actor_rollout}.actor.fsdp_config.ulysses_sequence_parallel_size=2", "'trainer'.*Set it to 1"),
                ("ppo_trainer", "algorithm.rollout_correction.rollout_rs=token_k1", "rollout_rs .* Set it to null"),
                ("ppo_trainer", "algorithm.rollout_correction.rollout_rs=token_k1", "as a whole. Set it to null"),
                ("ppo_trainer", "distillation.distillation_loss.loss_mode=forward_kl_topk", "Set it to 'k3'"),
                ("ppo_trainer", f"{actor_rollout}.actor.policy_loss.loss_mode=geo_mean", "'geo_mean', but damped.*'vanilla'"),
                ("ppo_trainer", f"{ours}.score_centering=true", "loss_mode is 'vanilla'.*set it to 'cispo'"),
                ("ppo_megatron_trainer", f"{actor_rollout}.actor.strategy=megatron", "Set it to 'fsdp2'"),
            ):
                given = [*recipe, override, "distillation.enabled=true"]
                if "'trainer'" in message or "as a whole" in message:
                    given = [*own, override]
                if config != "ppo_trainer":
                    given.remove(recipe[-1])
                with self.subTest(override), self.assertRaisesRegex(ValueError, message):
                    check_training(compose(config, overrides=given))


if __name__ == "__main__":
    unittest.main(verbosity=2)
