"""SIS next to routing replay (R3, arXiv:2510.11370): a tiny mixture of experts whose trainer chooses the experts that
the rollout chose. The trainer keeps and replays them itself; records know nothing of experts."""

import contextlib
import unittest

import numpy as np
import torch
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

import sis
import sis.torch
from server.testing.live_server import LiveServer

VOCABULARY, TOP_K, EXPERTS, CHOSEN, LAYERS = 50, 5, 8, 2, 3
ROWS, PROMPT, LENGTH = 4, 6, 20


def mixture():
    torch.manual_seed(3)
    config = Qwen3MoeConfig(
        vocab_size=VOCABULARY, hidden_size=32, intermediate_size=32, moe_intermediate_size=32, num_hidden_layers=LAYERS,
        num_attention_heads=2, num_key_value_heads=2, head_dim=16, num_experts=EXPERTS, num_experts_per_tok=CHOSEN,
        norm_topk_prob=True,
    )  # fmt: skip
    model = Qwen3MoeForCausalLM(config)
    with torch.no_grad():
        for parameter in model.parameters():
            # Weights with which the experts make a difference.
            if parameter.dim() > 1:
                parameter.normal_(0, 0.3)
    return model.eval()


@contextlib.contextmanager
def replayed(model, experts):
    """Forward passes use `experts`, int [tokens, LAYERS, CHOSEN], where these are not negative."""
    routers = [module for module in model.modules() if type(module).__name__.endswith("TopKRouter")]
    with contextlib.ExitStack() as hooks:
        for layer, router in enumerate(routers):

            def replay(_router, _arguments, output, wanted=experts[:, layer]):
                logits, weights, own = output
                used = torch.where(wanted < 0, own, wanted)
                weights_of_used = torch.softmax(logits, dim=-1, dtype=torch.float).gather(1, used)
                return logits, (weights_of_used / weights_of_used.sum(dim=-1, keepdim=True)).to(weights.dtype), used

            hooks.callback(router.register_forward_hook(replay).remove)
        yield


class RoutingTest(unittest.TestCase):
    def test_equal_policies_accept_every_recorded_token_if_the_trainer_replays_the_experts(self):
        model = mixture()
        random = torch.Generator().manual_seed(5)
        ids = torch.randint(0, VOCABULARY, (ROWS, PROMPT + LENGTH), generator=random)
        # The tokens whose routing made the distributions of positions 0 ... LENGTH - 1.
        made = slice(PROMPT - 1, PROMPT + LENGTH - 1)
        # An engine with other rounding chooses other experts now and then.
        experts = torch.full((ROWS, PROMPT + LENGTH, LAYERS, CHOSEN), -1)
        others = torch.rand((ROWS, LENGTH, LAYERS, EXPERTS), generator=random).topk(CHOSEN).indices
        flips = torch.rand((ROWS, LENGTH, LAYERS, 1), generator=random) < 0.1
        experts[:, made] = torch.where(flips, others, -1)
        with torch.no_grad(), replayed(model, experts.flatten(0, 1)):
            rollout = torch.log_softmax(model(ids).logits[:, made].float(), dim=-1)
        sampled = ids[:, PROMPT:].numpy()

        server = LiveServer()
        self.addCleanup(server.close)
        with sis.Client(server.address, timeout=30) as client:
            run = client.create_run(
                "r", seed=1, vocabulary_size=VOCABULARY, top_k=TOP_K, log_prob_encoding="float32"
            )
            names = [f"sequence-{row}" for row in range(ROWS)]
            blocks = []
            for row, name in enumerate(names):
                values = rollout[row].numpy()
                own = np.take_along_axis(values, sampled[row][:, None], axis=1)[:, 0]
                every = np.broadcast_to(np.arange(VOCABULARY), values.shape)
                blocks.append(sis.Block(name, 0, 0, *sis.canonical(every, values, sampled[row], own, TOP_K)))
            sis.append_many(client, run, blocks, sampling=sis.Sampling("raw"))
            records = client.fetch_top_k(run, names)
            inside = (records.ids == records.sampled_ids[:, None]).any(axis=1)

            accepted = {}
            for draw, (name, wanted) in enumerate({"own": torch.full_like(experts, -1), "replayed": experts}.items()):
                with torch.no_grad(), replayed(model, wanted.flatten(0, 1)):
                    logits = model(ids).logits[:, made]
                gathered = sis.torch.gather(records, logits.flatten(0, 1))
                accepted[name] = client.evaluate(run, records, draw=draw, **gathered._asdict()).accepted
        np.testing.assert_array_equal(accepted["replayed"], inside)
        # The trainer's own routing costs.
        self.assertLess(accepted["own"].sum(), inside.sum())


if __name__ == "__main__":
    unittest.main()
