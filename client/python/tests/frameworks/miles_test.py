import asyncio
import functools
import importlib.util
import pathlib
import types
import unittest
import unittest.mock

import torch
from miles.backends.training_utils import data
from miles.backends.training_utils.log_utils import aggregate_train_losses
from miles.backends.training_utils.loss import compute_advantages_and_returns, loss_function
from miles.backends.training_utils.parallel import GroupInfo, ParallelState, set_parallel_state
from miles.rollout.base_types import GenerateFnInput
from miles.rollout.inference_rollout.compatibility import load_generate_function
from miles.utils import http_utils
from miles.utils.types import Sample
from slime_family_case import KEYS, LONGEST, PROMPTS, REWARDS, SlimeFamilyCase, on_cpu

import sis.integrations.miles


class MilesTest(SlimeFamilyCase, unittest.TestCase):
    module = sis.integrations.miles
    OWN = {
        "sglang_speculative_algorithm": None, "sglang_router_policy": None, "rollout_max_context_len": None,
        "use_miles_router": False, "miles_router_middleware_paths": "", "true_on_policy_mode": False, "lora_rank": 0,
        "lora_adapter_path": None, "qkv_format": "thd", "use_dynamic_global_batch_size": False,
    }  # fmt: skip
    REFUSED = (({"lora_rank": 8}, "Set it to 0"),)
    WAYS = {**SlimeFamilyCase.WAYS, "padded": {"qkv_format": "bshd"}}

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        alone = GroupInfo(0, 1, torch.distributed.group.WORLD)
        set_parallel_state(ParallelState(*[alone] * 7))

    def generated(self, args, prompts=PROMPTS, evaluation=False):
        http_utils._http_client = None
        http_utils.init_http_client(args)
        state = types.SimpleNamespace(args=args, tokenizer=self.tokenizer, processor=None)
        params = {"temperature": args.rollout_temperature, "top_p": args.rollout_top_p, "top_k": args.rollout_top_k}

        async def all_of_them():
            ask = load_generate_function(args.custom_generate_function_path)
            asked = []
            for index, prompt in enumerate(prompts):
                wanted = {**params, "max_new_tokens": LONGEST - 3 * index}
                asked.append(ask(GenerateFnInput(state, Sample(index=index, prompt=prompt), wanted, evaluation)))
            outputs = await asyncio.gather(*asked)
            await http_utils._http_client.aclose()
            return [output.samples for output in outputs]

        return asyncio.run(all_of_them())

    def rollout(self, args, samples, masks):
        rollout = {
            "partition": range(len(samples)), "tokens": [sample.tokens for sample in samples],
            "response_lengths": [sample.response_length for sample in samples], "loss_masks": masks,
            "rewards": REWARDS[: len(samples)], "rollout_log_probs": [sample.rollout_log_probs for sample in samples],
            "total_lengths": [len(sample.tokens) for sample in samples],
        }  # fmt: skip
        with on_cpu(), unittest.mock.patch("ray.get", lambda held: held):
            made = data.get_rollout_data(args, [types.SimpleNamespace(inner=rollout)])
        compute_advantages_and_returns(args, made)
        return made

    def micro_batches(self, args, rollout, size):
        iterator = data.DataIterator(rollout, size)
        count = len(rollout["tokens"]) // size
        made = []
        for _ in range(count):
            with on_cpu():
                keys = [*KEYS, "max_seq_lens"]
                batch = data.get_batch(iterator, keys, args.data_pad_size_multiplier, args.qkv_format)
            made.append((batch, functools.partial(of_logits, args, batch, count)))
        return made

    def reduced(self, args, logged):
        return aggregate_train_losses(logged)

    def test_a_router_that_changes_tokens_is_refused(self):
        args = self.args(miles_router_middleware_paths=["miles.RadixTreeMiddleware"])
        with self.assertRaisesRegex(ValueError, "leave it out"):
            self.generated(args, PROMPTS[:1])
        self.assertEqual(self.engine.requests, [])

    def test_the_arguments_are_miless(self):
        package = importlib.util.find_spec("miles").submodule_search_locations[0]
        self.check_arguments(
            (pathlib.Path(package) / "utils/arguments.py").read_text(), "miles_router_middleware_paths"
        )


def of_logits(args, batch, count, logits):
    return loss_function(args, batch, count, logits, True)


if __name__ == "__main__":
    unittest.main()
