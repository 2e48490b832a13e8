"""TorchRL's losses on its batches, with a real server."""

import copy
import itertools
import unittest
import warnings

import tiny_model
import torch
from client.python.tests import snippets
from in_float64 import decided, distance
from server.testing.live_server import LiveServer
from tensordict import TensorDict
from torchrl.modules.llm import TransformersWrapper
from torchrl.objectives.llm import CISPOLoss, GRPOLoss
from transformers import AutoModelForCausalLM, AutoTokenizer

import sis
from sis.integrations.torchrl import SEQUENCE, OldLogProbs, SisConfig, SisGRPOLoss, SisLossMixin

SEED, K = 11, 20
PROMPTS = ["the tokens of a model", "one", "it is there for as long as", "a folder"]
CLIP = (0.1, 0.15)


class SisCISPOLoss(SisLossMixin, CISPOLoss):
    pass


class TorchrlTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        torch.set_num_threads(1)
        folder = tiny_model.make_for(cls)
        cls.tokenizer = AutoTokenizer.from_pretrained(folder)
        cls.behaviour = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        torch.manual_seed(1)
        cls.current = copy.deepcopy(cls.behaviour)
        with torch.no_grad():
            for parameter in cls.current.parameters():
                parameter += 0.02 * parameter.std(correction=0) * torch.randn_like(parameter)
        cls.server = LiveServer()
        cls.addClassCleanup(cls.server.close)
        cls.client = sis.Client(cls.server.address)
        cls.addClassCleanup(cls.client.close)

    def old_log_probs(self, address=None, **changed):
        settings = {"run": self.id(), "seed": SEED, "top_k": K, "log_prob_encoding": "float32", **changed}
        old = OldLogProbs(SisConfig(address or self.server.address, **settings), tiny_model.VOCABULARY)
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
        batch = self.batch()
        loss = self.loss(SisGRPOLoss, self.behaviour, old)
        loss.record(batch, [f"{self.id()}/{row}" for row in range(4)])
        return batch

    def objective(self, loss, batch, model):
        model.zero_grad()
        value = loss(batch).loss_objective
        value.backward()
        return value.item(), [parameter.grad.clone() for parameter in model.parameters()]

    def in_float64(self, batch, draw, clipped, rule=None):
        """Loss, gradients and the share of accepted tokens; with a rule its loss."""
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
            batch.get(SEQUENCE).tolist(), starts, mask, tokens, before, logits, SEED, draw, K,
            batch["advantage"][..., 0].double(), rule,
        )  # fmt: skip
        value = -(clipped(log_ratios.exp(), advantages) * mask).sum() / mask.sum()
        value.backward()
        return value.item(), [parameter.grad for parameter in current.parameters()], taken.sum().item() / mask.sum().item()

    def test_losses_are_those_of_float64(self):
        """With decisions, and with the rules in their place."""
        low, high = 1 - CLIP[0], 1 + CLIP[1]
        clips = {
            SisGRPOLoss: lambda w, a: torch.minimum(w * a, w.clamp(low, high) * a),
            SisCISPOLoss: lambda w, a: w.clamp(low, high) * a,
        }
        rules = ({}, {"damped_truncation": True}, {"soft_acceptance": True, "weight": "expected"})
        for (kind, clipped), weights in itertools.product(clips.items(), rules):
            with self.subTest(kind.__name__, **weights):
                rule = next(iter(weights), None)
                old = self.old_log_probs(run=f"{kind.__name__}-{rule}", **weights)
                batch = self.recorded(old)
                before = batch["log_probs", "full"].clone()
                value, gradients = self.objective(self.loss(kind, self.current, old), batch, self.current)
                wanted, exact, share = self.in_float64(batch, old.step, clipped, rule)
                self.assertAlmostEqual(value, wanted, delta=1e-5)
                self.assertLess(distance(gradients, exact), 1e-4)
                # Another correction gives another loss.
                other, _, _ = self.in_float64(batch, old.step, clipped, None if rule else "damped_truncation")
                self.assertGreater(abs(other - wanted), 1e-3)
                # The caller's batch keeps what was sampled with.
                self.assertTrue(torch.equal(batch["log_probs", "full"], before))
                metrics = old.stepped()
                self.assertAlmostEqual(metrics["accept_rate"], share, places=9)
                self.assertTrue(0.1 < share < 0.9, share)
                self.assertEqual((metrics["missing"], metrics["envelope_violations"]), (0, 0))
                self.assertEqual(self.client.get_run(f"{kind.__name__}-{rule}").policy_version, 1)

    def test_without_a_server_it_is_torchrls_own_loss(self):
        server = LiveServer()
        self.addCleanup(server.kill)
        old = self.old_log_probs(server.address)
        batch = self.recorded(old)
        loss = self.loss(SisGRPOLoss, self.current, old)
        with_decisions = self.objective(loss, batch, self.current)
        server.kill()
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            lost = self.objective(loss, batch, self.current)
            old.stepped()
        self.assertEqual(sum("training goes on" in str(warning.message) for warning in seen), 1)
        stock = GRPOLoss(loss.actor_network, entropy_bonus=False, clip_epsilon=CLIP)
        own = self.objective(stock, batch, self.current)
        self.assertEqual(lost[0], own[0])
        self.assertTrue(all(map(torch.equal, lost[1], own[1])))
        self.assertNotEqual(with_decisions[0], own[0])

    def test_observing_leaves_the_loss_as_it_is(self):
        batch = self.recorded(self.old_log_probs())
        old = self.old_log_probs(run="observed", observe=True)
        self.loss(SisGRPOLoss, self.behaviour, old).record(batch, ["a", "b", "c", "d"])
        loss = self.loss(SisGRPOLoss, self.current, old)
        observed = self.objective(loss, batch, self.current)
        stock = self.objective(GRPOLoss(loss.actor_network, entropy_bonus=False, clip_epsilon=CLIP), batch, self.current)
        self.assertEqual(observed[0], stock[0])
        self.assertTrue(all(map(torch.equal, observed[1], stock[1])))
        metrics = old.stepped()
        self.assertGreater(metrics["accept_rate"], 0.1)
        self.assertAlmostEqual(metrics["sis/d"], metrics["d_sis"], places=6)
        for name in ("damped_truncation/touched", "tis/effective", "icepop/zeroed", "soft_acceptance/d"):
            self.assertTrue(0 <= metrics[name] <= 1, name)

    def test_the_distance_to_the_sampler_is_of_what_was_sampled_with(self):
        old = self.old_log_probs()
        batch = self.recorded(old)
        settings = {"kl_to_inference_coeff": 0.5, "kl_mask_threshold": 0.01}
        ours = self.loss(SisGRPOLoss, self.current, old, **settings)(batch)
        stock = GRPOLoss(
            self.loss(SisGRPOLoss, self.current, old).actor_network, entropy_bonus=False, clip_epsilon=CLIP, **settings
        )(batch)
        self.assertEqual(ours.kl_to_inference.item(), stock.kl_to_inference.item())
        self.assertGreater(ours.kl_to_inference.item(), 0)

    def test_the_page(self):
        actor = self.loss(SisGRPOLoss, self.current, self.old_log_probs()).actor_network
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
        old = self.old_log_probs()
        with self.assertRaisesRegex(ValueError, "actor_network NoneType has no parameters"):
            SisGRPOLoss(None, old_log_probs=old)
        loss = self.loss(SisGRPOLoss, self.current, old)
        batch = self.batch()
        with self.assertRaisesRegex(ValueError, "no 'sis_sequence': call record"):
            loss(batch)


if __name__ == "__main__":
    unittest.main()
