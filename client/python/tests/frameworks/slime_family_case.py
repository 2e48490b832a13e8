"""Tests of slime, and of Miles and vime, which are derived from it: their own functions from the request to the loss,
on a CPU, with a real server. An HTTP server replaces the engine, with a tiny model's log-probs. A tiny model of
transformers replaces Megatron, and makes the logits of packed micro-batches."""

import asyncio
import contextlib
import copy
import functools
import importlib
import os
import pathlib
import types
import unittest.mock
import warnings

# Megatron compiles its cross entropy, which takes longer than all else.
os.environ["TORCHDYNAMO_DISABLE"] = "1"

import torch
from http_engines import SglangEngine
from in_float64 import decided
from loss_laws import CLIP, PROMPTS, SEED, K, LossLaws
from megatron.core import parallel_state
from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler
from server.testing.live_server import LiveServer

from sis.integrations import _slime_family as slime_family
from sis.integrations._names import name_of

TEMPERATURE = 0.8
REWARDS = [1.0, -0.5, 0.25, -1.0]
LONGEST = 24
# The keys of a micro-batch that both train_one_step in backends/megatron_utils/model.py request.
KEYS = [
    "tokens", "multimodal_train_inputs", "packed_seq_params", "total_lengths", "response_lengths", "loss_masks",
    "log_probs", "ref_log_probs", "values", "advantages", "returns", "rollout_log_probs",
]  # fmt: skip


class SlimeFamilyCase(LossLaws):
    """The tests of a framework; a base next to unittest.TestCase. A subclass has
    - generated(args, prompts, evaluation): samples, by the framework's own way to its generate functions
    - rollout(args, samples, masks): the training processes' form of samples, before the first update
    - micro_batches(args, rollout, size): batches of `size` samples, and the framework's loss_function without its logits
    - reduced(args, logged): the metrics of an update from those of its micro-batches
    """

    # The module (sis.integrations.slime, miles or vime), its further arguments, and arguments that it refuses.
    module = None
    OWN = {}
    REFUSED = ()
    # The engine, and the number of log-probs that it is asked for.
    engine_class, LISTED = SglangEngine, K
    REFUSED_OF_ENGINE = (({"sglang_speculative_algorithm": "EAGLE"}, "speculative_algorithm is 'EAGLE'"),)
    # Arguments that change the way to a loss, by name.
    WAYS = {
        "packed": {}, "recomputed": {"recompute_loss_function": True}, "chunks": {"log_probs_chunk_size": 5},
        "gspo": {"advantage_estimator": "gspo"},
    }  # fmt: skip
    RULED, METRICS = ("packed",), "sis/"
    # Megatron's cross entropy rounds the gradient of a logit to bfloat16.
    TOLERANCE = 2**-8

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        torch.distributed.init_process_group("gloo", rank=0, world_size=1, store=torch.distributed.HashStore())
        cls.addClassCleanup(torch.distributed.destroy_process_group)
        cls.engine = cls.engine_class(cls.behaviour)
        cls.addClassCleanup(cls.engine.close)

    def setUp(self):
        self.module._process.forget()
        self.engine.weight_version, self.engine.instead = "1", None
        self.engine.requests.clear()

    def args(self, address=None, **changed):
        (host, port), engine = self.engine.server_address, self.engine.name
        settings = {"address": address or self.server.address, **self.settings(**changed.pop("sis", {}))}
        path = self.module.__name__
        return types.SimpleNamespace(
            **{
                "sis": settings, "hf_checkpoint": str(self.folder), f"{engine}_router_ip": host,
                f"{engine}_router_port": port, f"{engine}_server_concurrency": 8,
                "rollout_temperature": TEMPERATURE, "rollout_top_p": 1.0, "rollout_top_k": -1,
                "rollout_max_response_len": LONGEST, "use_rollout_routing_replay": False,
                "rollout_num_gpus": 1, "rollout_num_gpus_per_engine": 1,
                "use_distributed_post": False, "partial_rollout": False,
                "loss_type": "custom_loss", "custom_loss_function_path": f"{path}.loss",
                "custom_generate_function_path": f"{path}.generate",
                "custom_megatron_before_train_step_hook_path": f"{path}.before_train_step",
                "use_rollout_logprobs": True, "get_mismatch_metrics": False, "use_tis": False, "use_opsm": False,
                "tensor_model_parallel_size": 1, "context_parallel_size": 1,
                "advantage_estimator": "grpo", "kl_coef": 0.0, "normalize_advantages": False, "use_kl_loss": False,
                "use_unbiased_kl": False, "entropy_coef": 0.0, "eps_clip": CLIP[0], "eps_clip_high": CLIP[1],
                "allgather_cp": False, "log_probs_chunk_size": -1, "recompute_loss_function": False,
                "calculate_per_token_loss": False, "global_batch_size": 4, "data_pad_size_multiplier": 16,
                **self.OWN, **changed,
            }
        )  # fmt: skip

    def trained_on(self, args, samples):
        masks = [[1] * sample.response_length for sample in samples]
        masks[0][2:4] = [0, 0]
        return self.rollout(args, samples, masks)

    def begun(self, address, **settings):
        self.module._process.forget()
        return self.args(address, sis=settings)

    def recorded(self, args):
        return self.generated(args)

    def update(self, args, samples, model, step, way):
        changed = {"loss_type": "policy_loss"} if way is None else self.WAYS[way]
        args = types.SimpleNamespace(**{**vars(args), **changed})
        rollout = self.trained_on(args, samples)
        before = [values.clone() for values in rollout["rollout_log_probs"]]
        made = self.updated(args, rollout, model, step)
        # The framework's own data is unchanged.
        self.assertTrue(all(map(torch.equal, rollout["rollout_log_probs"], before)))
        return made

    def updated(self, args, rollout, model, step, micro_batch_size=2):
        """Loss, gradients and metrics of one update, by the framework's functions, as train_one_step calls
        them."""
        model.zero_grad()
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        scheduler = OptimizerParamScheduler(
            optimizer, init_lr=0.0, max_lr=1.0, min_lr=0.0, lr_warmup_steps=0, lr_decay_steps=100,
            lr_decay_style="constant", start_wd=0.0, end_wd=0.0, wd_incr_steps=100, wd_incr_style="constant",
        )  # fmt: skip
        scheduler.step(increment=step * args.global_batch_size)
        self.module.before_train_step(args, 0, 0, [model], optimizer, scheduler)
        total, logged = 0.0, []
        batches = self.micro_batches(args, rollout, micro_batch_size)
        for batch, loss_of in batches:
            value, _, log = loss_of(logits_of(model, args, batch))
            value = value / len(batches)
            value.backward()
            total += value.item()
            logged.append(log)
        return total, [parameter.grad.clone() for parameter in model.parameters()], self.reduced(args, logged)

    def exact(self, args, samples, step, way, rule):
        behaviour, current = (copy.deepcopy(model).double() for model in (self.behaviour, self.current))
        total, count, taken_of_all = 0.0, 0, 0
        for index, sample in enumerate(samples):
            length = sample.response_length
            whole = torch.tensor([sample.tokens])
            tokens = whole[:, -length:]
            mask = torch.ones_like(tokens).bool()
            if index == 0:
                mask[0, 2:4] = False
            with torch.no_grad():
                before = behaviour(whole).logits[:, -length - 1 : -1] / TEMPERATURE
            logits = current(whole).logits[:, -length - 1 : -1] / TEMPERATURE
            name = name_of(sample.tokens[:-length], sample.tokens[-length:], sample.rollout_log_probs)
            advantage = torch.full(tokens.shape, REWARDS[index], dtype=torch.float64)
            log_ratio, advantage, taken = decided(
                [name], [0], mask, tokens, before, logits, SEED, step, K, advantage, rule
            )
            if way == "gspo":
                log_ratio = ((log_ratio * mask).sum() / mask.sum()).expand_as(log_ratio)
            ratio = log_ratio.exp()
            each = torch.minimum(ratio * advantage, ratio.clamp(1 - CLIP[0], 1 + CLIP[1]) * advantage)
            total = total - (each * mask).sum() / mask.sum()
            count += mask.sum().item()
            taken_of_all += taken.sum().item()
        value = total / len(samples)
        value.backward()
        return value.item(), [parameter.grad for parameter in current.parameters()], taken_of_all / count

    def test_what_is_recorded_and_counted(self):
        args = self.args()
        samples = self.generated(args)
        self.assertEqual(set(map(self.engine.listed, self.engine.requests)), {self.LISTED})
        status = self.client.get_run(args.sis["run"])
        self.assertEqual((status.sequences, status.policy_version), (4, 1))
        value, _, metrics = self.updated(args, self.trained_on(args, samples), self.current, 0)
        self.assertEqual(self.totals(args.sis["run"], 0).masked, 2)
        self.assertAlmostEqual(metrics["loss"], value, places=5)

    def test_metrics_are_means_over_micro_batches(self):
        args = self.args()
        rollout = self.trained_on(args, self.generated(args))
        _, _, metrics = self.updated(args, rollout, self.current, 0, micro_batch_size=4)
        self.assertAlmostEqual(metrics["sis/accept_rate"], self.totals(args.sis["run"], 0).accept_rate, places=6)
        self.assertAlmostEqual(metrics["sis/d"], self.totals(args.sis["run"], 0).mean_d, places=6)
        vars(args).update(calculate_per_token_loss=True)
        _, _, of_tokens = self.updated(args, rollout, self.current, 0, micro_batch_size=4)
        self.assertAlmostEqual(of_tokens["sis/accept_rate"], self.totals(args.sis["run"], 0).accept_rate, places=6)

    def test_a_sample_that_was_drawn_twice_has_one_record(self):
        args = self.args()
        (sample,) = self.generated(args, PROMPTS[:1])
        sampled = zip(sample.rollout_log_probs, sample.tokens[-sample.response_length :])
        # Tops that differ, as those of another batch of the engine may.
        again = self.engine.told([(token, value, {token: value - 0.25}) for value, token in sampled], "length")
        params = {"temperature": TEMPERATURE, "logprobs": self.LISTED}
        self.module._process.connection.record(sample, params, again)
        self.assertEqual(self.client.get_run(args.sis["run"]).sequences, 1)
        self.updated(args, self.trained_on(args, [sample, copy.deepcopy(sample)]), self.current, 0)
        totals = self.totals(args.sis["run"], 0)
        self.assertEqual((totals.missing, totals.masked), (0, 2))
        self.assertGreater(totals.accepted, 0)

    def test_weight_updates_are_policy_versions(self):
        args = self.args()
        run = lambda: self.client.get_run(args.sis["run"])
        for told, version, sequences in (("default", 0, 1), ("2", 2, 2), ("2", 2, 3), ("3", 3, 4)):
            self.engine.weight_version = told
            with warnings.catch_warnings(record=True) as seen:
                warnings.simplefilter("always")
                self.generated(args, PROMPTS[:1])
            refused = [warning for warning in seen if "weight version 'default'" in str(warning.message)]
            self.assertEqual(len(refused), told == "default")
            self.assertEqual((run().policy_version, run().sequences), (version, sequences))

    def test_evaluations_are_not_recorded(self):
        args = self.args()
        self.generated(args, PROMPTS[:1])
        self.engine.requests.clear()
        self.generated(args, PROMPTS[:2], evaluation=True)
        self.assertEqual(len(self.engine.requests), 2)
        self.assertLess(max(map(self.engine.listed, self.engine.requests)), self.LISTED)
        self.assertEqual(self.client.get_run(args.sis["run"]).sequences, 1)

    def test_without_a_server_rollouts_go_on(self):
        server = LiveServer()
        self.addCleanup(server.kill)
        args = self.args(server.address)
        self.generated(args, PROMPTS[:1])
        server.kill()
        with self.assertWarnsRegex(RuntimeWarning, "rollouts are not recorded, and training goes on"):
            self.assertEqual(len(self.generated(args, PROMPTS[:1])), 1)

    def test_what_is_refused(self):
        function = f"set it to the function of {self.module.__name__}"
        refused = (
            ({"use_rollout_logprobs": False}, "use_rollout_logprobs is False.*Set it to True"),
            ({"use_tis": True}, "corrects a second time. Set it to False"),
            ({"custom_generate_function_path": None}, function),
            ({"custom_megatron_before_train_step_hook_path": None}, function),
            ({"rollout_top_p": 0.9}, "top_p is 0.9"),
            ({"rollout_top_k": 50}, "top_k is 50"),
            ({"sis": {"damped_truncation": True}, "advantage_estimator": "gspo"}, "but damped_truncation.*set another"),
            ({"sis": {"soft_acceptance": True}, "use_unbiased_kl": True}, "soft_acceptance.*Set it to False"),
            ({"sis": {"run": "a run"}}, "run is 'a run'"),
            *self.REFUSED_OF_ENGINE,
            *self.REFUSED,
        )
        for changed, message in refused:
            with self.subTest(changed), self.assertRaisesRegex(ValueError, message):
                self.module._process.connected(self.args(**changed))
        args = self.args()
        del args.sis
        unknown = "custom_config_path names no file with sis"
        for wrong, message in ((args, unknown), (self.args(use_tis=True), "use_tis")):
            with self.assertRaisesRegex(ValueError, message):
                self.generated(wrong, PROMPTS[:1])
        # Before the engine was asked for anything.
        self.assertEqual(self.engine.requests, [])
        args = self.args()
        with self.assertRaisesRegex(ValueError, "before_train_step was not called"):
            self.module.loss(args, {}, None, None)

    def check_arguments(self, text, *others):
        """That the framework's own arguments, as `text` has them, are those that are read; the parallel sizes are
        Megatron's."""
        read = (*slime_family._NEEDED, *slime_family._CORRECTIONS, *self.module._process.framework.needed, *slime_family._HOOKS)
        for name in (*read, "use_unbiased_kl", "custom_config_path", *others):
            if not name.endswith("_parallel_size"):
                self.assertIn(f'"--{name.replace("_", "-")}"', text)


class SlimeCase(SlimeFamilyCase):
    """The tests of slime, and of vime, which has the same functions. A subclass has processed(args, held), which calls
    the framework's process_rollout_data, and METRICS, the module of reduce_train_step_metrics."""

    OWN = {
        "router_policy": None, "ci_test": False, "group_rm": False, "mask_offpolicy_in_partial_rollout": False,
        "rollout_stop": None, "rollout_stop_token_ids": None, "rollout_skip_special_tokens": False,
        "n_samples_per_prompt": 1, "eps_clip_c": None, "use_opd": False, "custom_advantage_function_path": None,
        "rollout_sample_hook_path": None, "gamma": 1.0,
    }  # fmt: skip

    @classmethod
    def of(cls, name):
        """A module of the framework."""
        return importlib.import_module(f"{cls.module._process.framework.name}.{name}")

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        parallel_state.initialize_model_parallel()
        cls.addClassCleanup(parallel_state.destroy_model_parallel)

    def generated(self, args, prompts=PROMPTS, evaluation=False, begun=()):
        """begun: samples to continue, instead of prompts."""
        rollout, clients, Sample = (
            self.of(f"rollout.{self.engine.name}_rollout"), self.of("utils.http_utils"), self.of("utils.types").Sample
        )  # fmt: skip
        clients._http_client = None
        clients.init_http_client(args)
        self.of("utils.misc").SingletonMeta._instances.pop(rollout.GenerateState, None)
        params = rollout.GenerateState(args).sampling_params

        async def all_of_them():
            samples = begun or [Sample(index=index, prompt=prompt) for index, prompt in enumerate(prompts)]
            asked = []
            for index, sample in enumerate(samples):
                sample.reward = 0.0
                wanted = {**params, "max_new_tokens": LONGEST - 3 * index}
                asked.append(rollout.generate_and_rm(args, sample, wanted, evaluation))
            made = await asyncio.gather(*asked)
            await clients._http_client.aclose()
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
            made = self.processed(args, [types.SimpleNamespace(inner=rollout)])
        self.of("backends.megatron_utils.loss").compute_advantages_and_returns(args, made)
        return made

    def on_cpu(self):
        return on_cpu()

    def micro_batches(self, args, rollout, size):
        data = self.of("backends.megatron_utils.data")
        loss_function = self.of("backends.megatron_utils.loss").loss_function
        samples = len(rollout["tokens"])
        count = samples // size
        iterator = data.DataIterator(rollout, [list(range(at * size, (at + 1) * size)) for at in range(count)])
        made = []
        for _ in range(count):
            with self.on_cpu():
                keys = [*KEYS, "rollout_mask_sums"]
                batch = data.get_batch(iterator, keys, args.data_pad_size_multiplier, args.allgather_cp)
            # Its scaling takes back Megatron's mean over micro-batches.
            made.append((batch, functools.partial(loss_function, args, batch, count, samples)))
        return made

    def reduced(self, args, logged):
        group = parallel_state.get_data_parallel_group(with_context_parallel=True)
        tokens = args.calculate_per_token_loss
        return self.of(self.METRICS).reduce_train_step_metrics(
            logged, calculate_per_token_loss=tokens, step_global_batch_size=4, cp_size=1, dp_with_cp_group=group
        )

    def test_what_was_aborted_begins_anew(self):
        """Fully asynchronous rollouts hand it in again; a record is of one request, and of one policy."""
        args = self.args()
        (whole,) = self.generated(args, PROMPTS[:1])
        begun = type(whole)(prompt=PROMPTS[0], status=whole.Status.ABORTED, tokens=whole.tokens[:-3], response="begun")
        begun.response_length, begun.weight_versions = whole.response_length - 3, ["0"]
        begun.rollout_log_probs, begun.loss_mask = whole.rollout_log_probs[:-3], [1] * begun.response_length
        (again,) = self.generated(args, begun=[begun])
        self.assertNotIn("0", again.weight_versions)
        prompt = self.tokenizer.encode(PROMPTS[0], add_special_tokens=False)
        self.assertEqual(self.engine.prompt(self.engine.requests[-1]), prompt)
        self.assertEqual(again.tokens[: len(prompt)], prompt)
        self.assertEqual(len(again.tokens), len(prompt) + again.response_length)
        self.assertEqual(len(again.rollout_log_probs), again.response_length)
        self.assertEqual(self.client.get_run(args.sis["run"]).sequences, 2)
        self.updated(args, self.trained_on(args, [whole, again]), self.current, 0)
        self.assertEqual(self.totals(args.sis["run"], 0).missing, 0)

    def test_what_is_aborted_is_not_recorded(self):
        args = self.args()
        self.engine.instead = self.engine.told([], "abort")
        (sample,) = self.generated(args, PROMPTS[:1])
        self.assertEqual(sample.status, sample.Status.ABORTED)
        self.assertEqual(self.client.get_run(args.sis["run"]).sequences, 0)

    def test_the_arguments_are_the_frameworks(self):
        self.check_arguments(pathlib.Path(self.of("utils").__file__).with_name("arguments.py").read_text())


@contextlib.contextmanager
def on_cpu():
    """Replaces the framework's uses of the GPU."""
    with (
        unittest.mock.patch("torch.cuda.current_device", lambda: torch.device("cpu")),
        unittest.mock.patch.object(torch.Tensor, "cuda", lambda self, *_args, **_kwargs: self),
    ):
        yield


def logits_of(model, args, batch):
    """[1, T, V], or with padded rows [B, S, V]: of a micro-batch's tokens, and 0 in its padding."""
    each = [model(tokens[None]).logits[0] for tokens in batch["unconcat_tokens"]]
    shape = batch["tokens"].shape
    pad = lambda values, rows: torch.nn.functional.pad(values, (0, 0, 0, rows - len(values)))
    if getattr(args, "qkv_format", "thd") == "bshd":
        return torch.stack([pad(values, shape[1]) for values in each])
    return pad(torch.cat(each), shape[1])[None]
