import asyncio
import functools
import importlib.util
import pathlib
import types
import unittest
import unittest.mock

import torch
from megatron.core import parallel_state
from slime.backends.megatron_utils import data
from slime.backends.megatron_utils.cp_utils import reduce_train_step_metrics
from slime.backends.megatron_utils.loss import compute_advantages_and_returns, loss_function
from slime.rollout.sglang_rollout import GenerateState, generate_and_rm
from slime.utils import http_utils
from slime.utils.data import process_rollout_data
from slime.utils.misc import SingletonMeta
from slime.utils.types import Sample
from slime_family_case import KEYS, LONGEST, PROMPTS, REWARDS, SlimeFamilyCase, on_cpu

import sis.slime


class SlimeTest(SlimeFamilyCase, unittest.TestCase):
    module = sis.slime
    OWN = {
        "router_policy": None, "ci_test": False, "group_rm": False, "mask_offpolicy_in_partial_rollout": False,
        "rollout_stop": None, "rollout_stop_token_ids": None, "rollout_skip_special_tokens": False,
        "sglang_dp_size": 1, "n_samples_per_prompt": 1, "eps_clip_c": None, "use_opd": False,
        "custom_advantage_function_path": None, "rollout_sample_hook_path": None, "gamma": 1.0,
    }  # fmt: skip

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        parallel_state.initialize_model_parallel()
        cls.addClassCleanup(parallel_state.destroy_model_parallel)

    def generated(self, args, prompts=PROMPTS, evaluation=False, begun=()):
        """begun: samples to go on with, in the place of prompts."""
        http_utils._http_client = None
        http_utils.init_http_client(args)
        SingletonMeta._instances.pop(GenerateState, None)
        params = GenerateState(args).sampling_params

        async def all_of_them():
            samples = begun or [Sample(index=index, prompt=prompt) for index, prompt in enumerate(prompts)]
            asked = []
            for index, sample in enumerate(samples):
                sample.reward = 0.0
                wanted = {**params, "max_new_tokens": LONGEST - 3 * index}
                asked.append(generate_and_rm(args, sample, wanted, evaluation))
            made = await asyncio.gather(*asked)
            await http_utils._http_client.aclose()
            return made

        return asyncio.run(all_of_them())

    def rollout(self, args, samples, masks):
        rollout = {
            "partition": list(range(len(samples))), "tokens": [torch.tensor(sample.tokens) for sample in samples],
            "response_lengths": [sample.response_length for sample in samples],
            "loss_masks": [torch.tensor(mask, dtype=torch.int) for mask in masks],
            "rewards": REWARDS[: len(samples)],
            "rollout_log_probs": [torch.tensor(sample.rollout_log_probs) for sample in samples],
            "total_lengths": [len(sample.tokens) for sample in samples],
            "rollout_mask_sums": torch.tensor([float(sum(mask)) for mask in masks]),
        }  # fmt: skip
        with unittest.mock.patch("ray.get", lambda held: held):
            made = process_rollout_data(args, [types.SimpleNamespace(inner=rollout)], 0, 1)
        compute_advantages_and_returns(args, made)
        return made

    def micro_batches(self, args, rollout, size):
        count = len(rollout["tokens"]) // size
        iterator = data.DataIterator(rollout, [list(range(at * size, (at + 1) * size)) for at in range(count)])
        made = []
        for _ in range(count):
            with on_cpu():
                keys = [*KEYS, "rollout_mask_sums"]
                batch = data.get_batch(iterator, keys, args.data_pad_size_multiplier, args.allgather_cp)
            # Its scaling takes back Megatron's mean over micro-batches.
            samples = len(rollout["tokens"])
            made.append((batch, functools.partial(loss_function, args, batch, count, samples)))
        return made

    def reduced(self, args, logged):
        group = parallel_state.get_data_parallel_group(with_context_parallel=True)
        tokens = args.calculate_per_token_loss
        return reduce_train_step_metrics(
            logged, calculate_per_token_loss=tokens, step_global_batch_size=4, cp_size=1, dp_with_cp_group=group
        )

    def test_what_was_aborted_begins_anew(self):
        """Fully asynchronous rollouts hand it in again; a record is of one request, and of one policy."""
        args = self.args()
        (whole,) = self.generated(args, PROMPTS[:1])
        begun = Sample(prompt=PROMPTS[0], status=Sample.Status.ABORTED, tokens=whole.tokens[:-3], response="begun")
        begun.response_length = whole.response_length - 3
        begun.rollout_log_probs, begun.loss_mask = whole.rollout_log_probs[:-3], [1] * begun.response_length
        (again,) = self.generated(args, begun=[begun])
        prompt = self.tokenizer.encode(PROMPTS[0], add_special_tokens=False)
        self.assertEqual(self.engine.requests[-1]["input_ids"], prompt)
        self.assertEqual(again.tokens[: len(prompt)], prompt)
        self.assertEqual(len(again.tokens), len(prompt) + again.response_length)
        self.assertEqual(len(again.rollout_log_probs), again.response_length)
        self.assertEqual(self.client.get_run(args.sis["run"]).sequences, 2)
        self.updated(args, self.trained_on(args, [whole, again]), self.current, 0)
        self.assertEqual(self.totals(0).missing, 0)

    def test_what_is_aborted_is_not_recorded(self):
        args = self.args()
        self.engine.instead = {"text": "", "meta_info": {"finish_reason": {"type": "abort"}}}
        (sample,) = self.generated(args, PROMPTS[:1])
        self.assertEqual(sample.status, Sample.Status.ABORTED)
        self.assertEqual(self.client.get_run(args.sis["run"]).sequences, 0)

    def test_the_arguments_are_slimes(self):
        package = importlib.util.find_spec("slime").submodule_search_locations[0]
        self.check_arguments((pathlib.Path(package) / "utils/arguments.py").read_text())


if __name__ == "__main__":
    unittest.main()
