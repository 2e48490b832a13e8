"""Routing replay: a tiny mixture of experts of transformers, whose rollouts chose other experts than
the trainer would, and SIS on the same batch."""

import unittest

import numpy as np
import torch
from transformers import MixtralConfig, MixtralForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM

import sis
import sis.routing
import sis.torch
from server.testing.live_server import LiveServer

VOCABULARY, TOP_K, EXPERTS, CHOSEN, LAYERS = 50, 5, 8, 2, 3
ROWS, PROMPT, LENGTH = 4, 6, 20


def models():
    shape = {
        "vocab_size": VOCABULARY, "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": LAYERS,
        "num_attention_heads": 2, "num_key_value_heads": 2, "num_experts_per_tok": CHOSEN,
    }  # fmt: skip
    torch.manual_seed(3)
    yield Qwen3MoeForCausalLM(
        Qwen3MoeConfig(**shape, head_dim=16, moe_intermediate_size=32, num_experts=EXPERTS, norm_topk_prob=True)
    )
    yield MixtralForCausalLM(MixtralConfig(**shape, num_local_experts=EXPERTS))


def spread(model):
    """Weights with which the experts make a difference."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0, 0.3)
    return model.eval()


class RoutingTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = LiveServer()
        cls.addClassCleanup(cls.server.close)

    def test_replayed_routing_gives_the_recorded_log_probs_bit_for_bit(self):
        for model in models():
            with self.subTest(type(model).__name__):
                self.check(spread(model))

    def check(self, model):
        random = torch.Generator().manual_seed(5)
        ids = torch.randint(0, VOCABULARY, (ROWS, PROMPT + LENGTH), generator=random)
        # The tokens whose routing made the distributions of positions 0 ... LENGTH - 1.
        made = slice(PROMPT - 1, PROMPT + LENGTH - 1)
        # An engine whose numbers are others chooses other experts now and then.
        other = torch.full((ROWS, PROMPT + LENGTH, LAYERS, CHOSEN), -1)
        random_experts = torch.rand((ROWS, LENGTH, LAYERS, EXPERTS), generator=random).topk(CHOSEN).indices
        flips = torch.rand((ROWS, LENGTH, LAYERS, 1), generator=random) < 0.1
        other[:, made] = torch.where(flips, random_experts, -1)
        with torch.no_grad(), sis.routing.replayed(model, other.flatten(0, 1)), sis.routing.recorded(model) as chosen:
            rollout = torch.log_softmax(model(ids).logits[:, made].float(), dim=-1)
        experts = chosen.experts.unflatten(0, (ROWS, -1))[:, made]
        flipped = (flips & (other[:, made] >= 0)).expand_as(experts)
        self.assertTrue(torch.equal(experts[flipped], random_experts[flipped]))

        column = sis.routing.column(model)
        self.assertEqual(column, sis.Column("experts", LAYERS * CHOSEN))
        with sis.Client(self.server.address, timeout=30) as client:
            run = client.create_run(
                type(model).__name__, seed=1, vocabulary_size=VOCABULARY, top_k=TOP_K, log_prob_encoding="float32",
                columns=[column],
            )  # fmt: skip
            names = [f"sequence-{row}" for row in range(ROWS)]
            sampled = ids[:, PROMPT:].numpy()
            blocks = []
            for row, name in enumerate(names):
                values = rollout[row].numpy()
                own = np.take_along_axis(values, sampled[row][:, None], axis=1)[:, 0]
                kept = sis.canonical(np.broadcast_to(np.arange(VOCABULARY), values.shape), values, sampled[row], own, TOP_K)
                blocks.append(
                    sis.Block(name, 0, 0, *kept, columns={"experts": sis.routing.to_column(model, experts[row])})
                )
            client.append_many(run, blocks, sampling=sis.Sampling("raw"))

            records = client.fetch_top_k(run, names, columns=["experts"])
            wanted = torch.full_like(other, -1)
            wanted[:, made] = sis.routing.from_column(model, records).unflatten(0, (ROWS, LENGTH))
            self.assertTrue(torch.equal(wanted[:, made], experts))

            decided = {}
            for name, replay in [("own", torch.full_like(wanted, -1)), ("replayed", wanted)]:
                with sis.routing.replayed(model, replay.flatten(0, 1)):
                    logits = model(ids).logits[:, made]
                current = torch.log_softmax(logits.float(), dim=-1)
                self.assertEqual(torch.equal(current, rollout), name == "replayed")
                gathered = sis.torch.gather(records, logits.detach().flatten(0, 1))
                decided[name] = client.evaluate(run, records, draw=len(decided), **gathered._asdict())
            # Equal policies: whatever lies in V_K is accepted. The trainer's own routing costs.
            inside = np.isin(np.arange(ROWS * LENGTH), np.flatnonzero((records.ids == records.sampled_ids[:, None]).any(1)))
            np.testing.assert_array_equal(decided["replayed"].accepted, inside)
            self.assertLess(decided["own"].accepted.sum(), inside.sum())

        # Weights of the replayed experts have gradients: the router learns.
        with sis.routing.replayed(model, wanted.flatten(0, 1)):
            model(ids).logits.square().mean().backward()
        self.assertGreater(max(router.weight.grad.abs().max() for router in sis.routing._routers(model)), 0)
        with sis.routing.replayed(model, wanted[:2].flatten(0, 1)):
            with self.assertRaisesRegex(ValueError, "experts has 52 tokens, the forward pass 104"):
                model(ids)
        with self.assertRaisesRegex(ValueError, r"must be \[any, 3, 2\]"):
            with sis.routing.replayed(model, wanted.flatten(0, 1)[:, :2]):
                pass

    def test_a_model_without_routers(self):
        with self.assertRaisesRegex(ValueError, "Linear has 0 routers"):
            sis.routing.column(torch.nn.Linear(2, 2))


if __name__ == "__main__":
    unittest.main()
