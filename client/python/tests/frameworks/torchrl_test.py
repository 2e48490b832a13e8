"""TorchRL's losses on its batches, with a real server."""

import copy
import unittest

import tiny_model
import torch
from client.python.tests import snippets
from in_float64 import decided
from loss_laws import CLIP, PROMPTS, SEED, K, LossLaws
from tensordict import TensorDict
from torchrl.modules.llm import TransformersWrapper
from torchrl.objectives.llm import CISPOLoss, GRPOLoss

from sis.integrations.torchrl import SEQUENCE, OldLogProbs, SisConfig, SisGRPOLoss, SisLossMixin


class SisCISPOLoss(SisLossMixin, CISPOLoss):
    pass


class TorchrlTest(LossLaws, unittest.TestCase):
    WAYS = {"grpo": SisGRPOLoss, "cispo": SisCISPOLoss}
    RULED = tuple(WAYS)

    def begun(self, address, **changed):
        old = OldLogProbs(SisConfig(address, **self.settings(**changed)), tiny_model.VOCABULARY)
        self.addCleanup(old.client.close)
        return old

    def batch(self):
        """As a collector of TorchRL returns it, without names or log-probs of the whole."""
        torch.manual_seed(2)
        sampler = TransformersWrapper(
            self.behaviour, tokenizer=self.tokenizer, input_mode="text", generate=True, return_log_probs=True,
            pad_output=True, generate_kwargs={"max_new_tokens": 24, "do_sample": True},
        )  # fmt: skip
        batch = sampler(TensorDict({"text": TensorDict({"prompt": PROMPTS}, [4])}, [4]))
        # Rows begin in different columns.
        self.assertGreater(len(set(batch["masks", "all_attention_mask"].sum(1).tolist())), 1)
        advantages = torch.tensor([1.5, -1.0, -0.25, 0.5])
        batch["advantage"] = advantages[:, None, None].expand(*batch["tokens", "full"].shape, 1)
        return batch

    def loss(self, kind, model, old_log_probs, **settings):
        actor = TransformersWrapper(
            model, tokenizer=self.tokenizer, input_mode="tokens", generate=False, return_log_probs=True, pad_output=True
        )
        return kind(actor, old_log_probs=old_log_probs, entropy_bonus=False, clip_epsilon=CLIP, **settings)

    def recorded(self, old):
        # A training that observes leaves the sampling log-probs as they are, and the sampler has none of the whole.
        batch = self.recorded(self.begun(self.server.address, run="whole")) if old.config.observe else self.batch()
        loss = self.loss(SisGRPOLoss, self.behaviour, old)
        loss.record(batch, [f"{self.id()}/{row}" for row in range(4)])
        return batch

    def update(self, old, batch, model, step, way):
        before = batch["log_probs", "full"].clone()
        loss = self.loss(self.WAYS.get(way, SisGRPOLoss), model, old)
        if way is None:
            loss = self.stock(loss.actor_network)
        old.step = step
        model.zero_grad()
        value = loss(batch).loss_objective
        value.backward()
        # The caller's batch keeps what was sampled with.
        self.assertTrue(torch.equal(batch["log_probs", "full"], before))
        return value.item(), [parameter.grad.clone() for parameter in model.parameters()], old.stepped()

    @staticmethod
    def stock(actor, **settings):
        return GRPOLoss(actor, entropy_bonus=False, clip_epsilon=CLIP, **settings)

    def exact(self, old, batch, step, way, rule):
        tokens, attention = batch["tokens", "full"], batch["masks", "all_attention_mask"]
        mask = torch.zeros_like(attention)
        mask[:, batch["tokens", "prompt"].shape[1] :] = True
        mask &= attention
        starts = [row.nonzero()[0, 0].item() for row in mask]
        behaviour, current = (copy.deepcopy(model).double() for model in (self.behaviour, self.current))
        before, logits = (
            torch.nn.functional.pad(model(tokens, attention_mask=attention).logits[:, :-1], (0, 0, 1, 0))
            for model in (behaviour, current)
        )
        log_ratios, advantages, taken = decided(
            batch.get(SEQUENCE).tolist(), starts, mask, tokens, before, logits, SEED, step, K,
            batch["advantage"][..., 0].double(), rule,
        )  # fmt: skip
        ratio = log_ratios.exp()
        clipped = ratio.clamp(1 - CLIP[0], 1 + CLIP[1]) * advantages
        each = clipped if way == "cispo" else torch.minimum(ratio * advantages, clipped)
        value, share = -(each * mask).sum() / mask.sum(), taken.sum().item() / mask.sum().item()
        value.backward()
        return value.item(), [parameter.grad for parameter in current.parameters()], share

    def test_steps_are_policy_versions(self):
        self.begun(self.server.address).stepped()
        self.assertEqual(self.client.get_run(self.settings()["run"]).policy_version, 1)

    def test_the_distance_to_the_sampler_is_of_what_was_sampled_with(self):
        old = self.begun(self.server.address)
        batch = self.recorded(old)
        settings = {"kl_to_inference_coeff": 0.5, "kl_mask_threshold": 0.01}
        ours = self.loss(SisGRPOLoss, self.current, old, **settings)(batch)
        stock = self.stock(self.loss(SisGRPOLoss, self.current, old).actor_network, **settings)(batch)
        self.assertEqual(ours.kl_to_inference.item(), stock.kl_to_inference.item())
        self.assertGreater(ours.kl_to_inference.item(), 0)

    def test_the_page(self):
        actor = self.loss(SisGRPOLoss, self.current, self.begun(self.server.address)).actor_network
        here = {
            "address": self.server.address, "V": tiny_model.VOCABULARY, "actor": actor, "batch": self.batch(),
            "names": ["a", "b", "c", "d"], "updates": 2, "optimizer": torch.optim.SGD(self.current.parameters(), 0.0),
        }  # fmt: skip
        snippets.run("frameworks", 1, here)
        here["old"].client.close()
        # The policy stays as it is.
        self.assertEqual(here["metrics"]["missing"], 0)
        self.assertLess(here["metrics"]["d"], 1e-5)

    def test_what_is_refused(self):
        old = self.begun(self.server.address)
        with self.assertRaisesRegex(ValueError, "actor_network NoneType has no parameters"):
            SisGRPOLoss(None, old_log_probs=old)
        loss = self.loss(SisGRPOLoss, self.current, old)
        batch = self.batch()
        with self.assertRaisesRegex(ValueError, "no 'sis_sequence': call record"):
            loss(batch)


if __name__ == "__main__":
    unittest.main()
