"""Sets that verl's actors record while they recompute old log-probs."""

import copy
import dataclasses

import torch
import training_worker
from expected import gradients as expected_gradients
from takes_minutes import takes_minutes
from training_worker import batch, rollout
from verl_case import K, VerlCase

RULE = {"soft_acceptance": True, "weight": "expected"}


class VerlOwnSetsTest(VerlCase):
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
        """With samples of any engine, without its log-probs."""
        samples = rollout(self.stale, 8, K, 31)
        # Three that are alike: two are recorded together, all trained on together.
        samples[6] = copy.deepcopy(samples[4])
        samples[7] = copy.deepcopy(samples[4])
        moved, own = self.on_own_sets(samples, 0.8)
        settings = self.settings(sets="trainer", log_prob_encoding="float32", **RULE)
        data = batch(samples, temperature=0.8)
        of = {"seed": 1, "draw": 0, "top_k": K, "rule": "soft_acceptance", "temperature": 0.8}
        expected, _ = expected_gradients(moved, own, data["advantages"], **of)
        of_engine, _ = expected_gradients(moved, samples, data["advantages"], **of)
        self.attached(settings)
        data.pop("rollout_log_probs")
        self.worker.infer_batch(data)
        # As on two ranks.
        sizes = {"temperature": 0.8, "micro_batch_size_per_gpu": 2}
        halves = [batch(part, **sizes) for part in (samples[:6], samples[6:])]
        data["old_log_probs"] = torch.cat([training_worker.recompute(self.worker, part) for part in halves])
        training_worker.move(self.worker.engine.module)
        step, metrics = self.stepped(data)
        self.assertEqual((metrics["missing"], metrics["envelope_violations"]), (0, 0))
        self.assertGreater(metrics["d"], 1e-3)
        self.assert_close(step, expected)
        with self.assertRaises(AssertionError):
            self.assert_close(step, of_engine)
        # Weights of verl's own for the mismatch are the loss's matter.
        data["rollout_is_weights"] = torch.zeros_like(data["advantages"])
        step, _ = self.stepped(data)
        self.assertEqual(max(value.abs().max() for value in step.values()), 0)

    @takes_minutes
    def test_sets_of_the_trainer_on_two_ranks(self):
        """Each records those of its own samples, and decides about them."""
        samples = rollout(self.stale, 8, K, 32)
        moved, own = self.on_own_sets(samples, 0.8)
        settings = self.settings(sets="trainer", log_prob_encoding="float32", **RULE)
        of = {"seed": 1, "draw": 0, "top_k": K, "rule": "soft_acceptance", "temperature": 0.8}
        expected, _ = expected_gradients(moved, own, batch(samples)["advantages"], **of)
        for (answer,) in self.two_ranks([(samples, vars(settings), False)], temperature=0.8):
            self.assert_close(answer["gradients"], expected)
            metrics = answer["metrics"]
            self.assertEqual(metrics["sis/missing"] + metrics["sis/envelope_violations"], [[0.0]] * 4)
            self.assertGreater(metrics["sis/d"][0][0], 1e-3)
        totals = self.client.list_steps(self.client.get_run(settings.run).run, draws=[0])[0].totals
        self.assertEqual((totals.scored, totals.missing), (sum(sum(sample.mask) for sample in samples), 0))
