"""Miles's own functions from the request to the loss, on a CPU, with a real server. In SGLang's place
an HTTP server answers as it does, with a tiny model's log-probs; in Megatron's a tiny model of
transformers makes the logits of Miles's packed micro-batches."""

import asyncio
import contextlib
import copy
import http.server
import importlib.util
import json
import os
import pathlib
import socket
import threading
import types
import unittest
import unittest.mock
import warnings

# Megatron compiles its cross entropy, which takes longer than all else.
os.environ["TORCHDYNAMO_DISABLE"] = "1"

import tiny_model
import torch
from in_float64 import acceptance, accepted, of_rule
from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler
from miles.backends.training_utils import data
from miles.backends.training_utils.log_utils import aggregate_train_losses
from miles.backends.training_utils.loss import compute_advantages_and_returns, loss_function
from miles.backends.training_utils.parallel import GroupInfo, ParallelState, set_parallel_state
from miles.rollout.base_types import GenerateFnInput
from miles.rollout.inference_rollout.compatibility import load_generate_function
from miles.utils import http_utils
from miles.utils.types import Sample
from server.testing.live_server import LiveServer
from transformers import AutoModelForCausalLM, AutoTokenizer

import sis
import sis.miles
from sis.verl import name_of

SEED, K, TEMPERATURE = 3, 20, 0.8
PROMPTS = ["the tokens of a model", "one", "it is there for as long as", "a folder"]
REWARDS = [1.0, -0.5, 0.25, -1.0]
LONGEST = 24
CLIP = (0.1, 0.15)
# As train_one_step in miles/backends/megatron_utils/model.py asks for.
KEYS = [
    "tokens", "multimodal_train_inputs", "packed_seq_params", "total_lengths", "response_lengths", "loss_masks",
    "log_probs", "ref_log_probs", "values", "advantages", "returns", "rollout_log_probs", "max_seq_lens",
]  # fmt: skip


class Engine(http.server.ThreadingHTTPServer):
    """SGLang's /generate, in so far as Miles asks for it."""

    def __init__(self, model):
        super().__init__(("127.0.0.1", 0), Handler)
        self.model, self.lock = model, threading.Lock()
        self.generator = torch.Generator().manual_seed(2)
        self.weight_version = "1"
        self.requests = []
        self.thread = threading.Thread(target=self.serve_forever)
        self.thread.start()

    def close(self):
        self.shutdown()
        self.thread.join()
        self.server_close()

    @torch.no_grad()
    def answer(self, request):
        params, tokens = request["sampling_params"], list(request["input_ids"])
        sampled, listed = [], []
        while len(sampled) < params["max_new_tokens"] and (not sampled or sampled[-1][1] != 2):
            logits = self.model(torch.tensor([tokens])).logits[0, -1]
            log_probs = (logits / params["temperature"]).log_softmax(0)
            token = log_probs.exp().multinomial(1, generator=self.generator).item()
            sampled.append([log_probs[token].item(), token, None])
            tops = log_probs.topk(request["top_logprobs_num"])
            listed.append([[value, token, None] for value, token in zip(tops.values.tolist(), tops.indices.tolist())])
            tokens.append(token)
        kind = "stop" if sampled[-1][1] == 2 else "length"
        meta = {
            "finish_reason": {"type": kind}, "prompt_tokens": len(request["input_ids"]), "cached_tokens": 0,
            "weight_version": self.weight_version, "output_token_logprobs": sampled, "output_top_logprobs": listed,
        }  # fmt: skip
        return {"text": " ".join(str(token) for _, token, _ in sampled), "meta_info": meta}


class Handler(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with self.server.lock:
            self.server.requests.append(request)
            answer = json.dumps(self.server.answer(request)).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_args):
        pass


class MilesTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        torch.set_num_threads(1)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        torch.distributed.init_process_group("gloo", f"tcp://127.0.0.1:{port}", rank=0, world_size=1)
        cls.addClassCleanup(torch.distributed.destroy_process_group)
        alone = GroupInfo(0, 1, torch.distributed.group.WORLD)
        set_parallel_state(ParallelState(*[alone] * 7))
        cls.folder = tiny_model.make_for(cls)
        cls.tokenizer = AutoTokenizer.from_pretrained(cls.folder)
        cls.behaviour = AutoModelForCausalLM.from_pretrained(cls.folder, dtype=torch.float32).eval()
        torch.manual_seed(1)
        cls.current = copy.deepcopy(cls.behaviour)
        with torch.no_grad():
            for parameter in cls.current.parameters():
                parameter += 0.02 * parameter.std(correction=0) * torch.randn_like(parameter)
        cls.engine = Engine(cls.behaviour)
        cls.addClassCleanup(cls.engine.close)
        cls.server = LiveServer()
        cls.addClassCleanup(cls.server.close)
        cls.client = sis.Client(cls.server.address)
        cls.addClassCleanup(cls.client.close)

    def setUp(self):
        sis.miles._connection = sis.miles._step = None
        self.engine.weight_version = "1"
        self.engine.requests.clear()

    def args(self, address=None, **changed):
        host, port = self.engine.server_address
        settings = {
            "address": address or self.server.address, "run": self.id().rpartition(".")[2], "seed": SEED, "top_k": K,
            "log_prob_encoding": "float32", **changed.pop("sis", {}),
        }  # fmt: skip
        return types.SimpleNamespace(
            **{
                "sis": settings, "hf_checkpoint": str(self.folder), "sglang_router_ip": host,
                "sglang_router_port": port, "sglang_router_policy": None,
                "rollout_temperature": TEMPERATURE, "rollout_top_p": 1.0, "rollout_top_k": -1,
                "rollout_max_response_len": LONGEST, "rollout_max_context_len": None,
                "use_rollout_routing_replay": False,
                "use_miles_router": False, "miles_router_middleware_paths": "", "sglang_speculative_algorithm": None,
                "rollout_num_gpus": 1, "rollout_num_gpus_per_engine": 1, "sglang_server_concurrency": 8,
                "use_distributed_post": False, "partial_rollout": False, "true_on_policy_mode": False,
                "loss_type": "custom_loss", "custom_loss_function_path": "sis.miles.loss",
                "custom_generate_function_path": "sis.miles.generate",
                "custom_megatron_before_train_step_hook_path": "sis.miles.before_train_step",
                "use_rollout_logprobs": True, "get_mismatch_metrics": False, "use_tis": False, "use_opsm": False,
                "tensor_model_parallel_size": 1, "context_parallel_size": 1, "lora_rank": 0, "lora_adapter_path": None,
                "advantage_estimator": "grpo", "kl_coef": 0.0, "normalize_advantages": False, "use_kl_loss": False,
                "use_unbiased_kl": False, "entropy_coef": 0.0, "eps_clip": CLIP[0], "eps_clip_high": CLIP[1],
                "qkv_format": "thd", "allgather_cp": False, "log_probs_chunk_size": -1,
                "recompute_loss_function": False,
                "calculate_per_token_loss": False, "use_dynamic_global_batch_size": False, "global_batch_size": 4,
                "data_pad_size_multiplier": 16, **changed,
            }
        )  # fmt: skip

    def generated(self, args, prompts=PROMPTS, evaluation=False):
        """By Miles's own way to its generate functions."""
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

    def rollout(self, args, samples):
        """What Miles's training processes make of samples, before the first update."""
        masks = [[1] * sample.response_length for sample in samples]
        masks[0][2:4] = [0, 0]
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

    def updated(self, args, rollout, model, step, micro_batch_size=2):
        """Gradients and metrics of one update, by Miles's functions, as train_one_step calls them."""
        model.zero_grad()
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        scheduler = OptimizerParamScheduler(
            optimizer, init_lr=0.0, max_lr=1.0, min_lr=0.0, lr_warmup_steps=0, lr_decay_steps=100,
            lr_decay_style="constant", start_wd=0.0, end_wd=0.0, wd_incr_steps=100, wd_incr_style="constant",
        )  # fmt: skip
        scheduler.step(increment=step * args.global_batch_size)
        sis.miles.before_train_step(args, 0, 0, [model], optimizer, scheduler)
        iterator = data.DataIterator(rollout, micro_batch_size)
        total, logged = 0.0, []
        micro_batches = len(rollout["tokens"]) // micro_batch_size
        for _ in range(micro_batches):
            with on_cpu():
                batch = data.get_batch(iterator, KEYS, args.data_pad_size_multiplier, args.qkv_format)
            value, _, log = loss_function(args, batch, micro_batches, logits_of(model, args, batch), True)
            value = value / micro_batches
            value.backward()
            total += value.item()
            logged.append(log)
        return total, [parameter.grad.clone() for parameter in model.parameters()], aggregate_train_losses(logged)

    def in_float64(self, samples, draw, rule=None, gspo=False):
        """The same, from the formulas alone: loss, gradients, and the share of tokens that are accepted."""
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
            taken = accepted([name], [0], mask, tokens, before, logits.detach(), SEED, draw, K)
            own, old = (values.log_softmax(-1).gather(-1, tokens[..., None])[..., 0] for values in (logits, before))
            advantage = torch.full_like(own, REWARDS[index])
            log_ratio = own - torch.where(taken, own.detach(), old)
            if rule is not None:
                a = acceptance(mask, tokens, before, logits.detach(), K)
                advantage = advantage * of_rule(rule, (own - old).detach().exp(), a, advantage)
                log_ratio = own - own.detach()
            if gspo:
                log_ratio = ((log_ratio * mask).sum() / mask.sum()).expand_as(own)
            ratio = log_ratio.exp()
            each = torch.minimum(ratio * advantage, ratio.clamp(1 - CLIP[0], 1 + CLIP[1]) * advantage)
            total = total - (each * mask).sum() / mask.sum()
            count += mask.sum().item()
            taken_of_all += taken.sum().item()
        value = total / len(samples)
        value.backward()
        return value.item(), [parameter.grad for parameter in current.parameters()], taken_of_all / count

    def assert_same(self, found, wanted):
        self.assertAlmostEqual(found[0], wanted[0], delta=1e-5)
        self.assertLess(self.distance(found[1], wanted[1]), 2**-8)

    def distance(self, gradients, exact):
        """Relative. Megatron's cross entropy rounds the gradient of a logit to bfloat16."""
        largest = max(gradient.abs().max().item() for gradient in exact)
        return max((a - b).abs().max().item() for a, b in zip(gradients, exact)) / largest

    def test_the_loss_is_that_of_float64(self):
        args = self.args()
        samples = self.generated(args)
        self.assertTrue(all(request["top_logprobs_num"] == K for request in self.engine.requests))
        self.assertEqual(self.client.get_run(args.sis["run"]).sequences, 4)
        self.assertEqual(self.client.get_run(args.sis["run"]).policy_version, 1)
        changes = {
            "packed": {}, "padded": {"qkv_format": "bshd"}, "recomputed": {"recompute_loss_function": True},
            "chunks": {"log_probs_chunk_size": 5}, "gspo": {"advantage_estimator": "gspo"},
        }  # fmt: skip
        for step, (name, changed) in enumerate(changes.items(), start=5):
            with self.subTest(name):
                vars(args).update({**vars(self.args()), **changed})
                rollout = self.rollout(args, samples)
                before = [values.clone() for values in rollout["rollout_log_probs"]]
                *found, metrics = self.updated(args, rollout, self.current, step)
                *wanted, share = self.in_float64(samples, step, gspo=name == "gspo")
                self.assert_same(found, wanted)
                # So that it can fail: of another draw, which under gspo changes a mean over the response only.
                other = self.distance(self.in_float64(samples, 0, gspo=name == "gspo")[1], wanted[1])
                self.assertGreater(other, 2**-8 if name == "gspo" else 2**-6)
                # What Miles holds stays as it was.
                self.assertTrue(all(map(torch.equal, rollout["rollout_log_probs"], before)))
                totals = self.client.get_step(sis.miles._connection.run, step).totals
                self.assertAlmostEqual(totals.accept_rate, share, places=9)
                self.assertTrue(0.1 < share < 0.9, share)
                self.assertEqual((totals.missing, totals.envelope_violations, totals.masked), (0, 0, 2))
                self.assertEqual((metrics["sis/missing"], metrics["sis/envelope_violations"]), (0, 0))
                self.assertAlmostEqual(metrics["loss"], found[0], places=5)

    def test_metrics_are_means_over_micro_batches(self):
        args = self.args()
        rollout = self.rollout(args, self.generated(args))
        _, _, metrics = self.updated(args, rollout, self.current, 0, micro_batch_size=4)
        totals = self.client.get_step(sis.miles._connection.run, 0).totals
        self.assertAlmostEqual(metrics["sis/accept_rate"], totals.accept_rate, places=6)
        self.assertAlmostEqual(metrics["sis/d"], totals.mean_d, places=6)
        vars(args).update(calculate_per_token_loss=True)
        _, _, of_tokens = self.updated(args, rollout, self.current, 0, micro_batch_size=4)
        self.assertAlmostEqual(of_tokens["sis/accept_rate"], totals.accept_rate, places=6)

    def test_rules_are_those_of_float64(self):
        for weights in ({"damped_truncation": True}, {"soft_acceptance": True, "weight": "expected"}):
            with self.subTest(**weights):
                rule, *_ = weights
                self.setUp()
                args = self.args(sis={"run": rule, **weights})
                samples = self.generated(args)
                *found, _ = self.updated(args, self.rollout(args, samples), self.current, 0)
                wanted = self.in_float64(samples, 0, rule)
                self.assert_same(found, wanted)
                # So that it can fail.
                self.assertGreater(abs(self.in_float64(samples, 0)[0] - wanted[0]), 1e-3)

    def test_equal_policies_accept_all(self):
        args = self.args()
        samples = self.generated(args)
        self.updated(args, self.rollout(args, samples), self.behaviour, 0)
        totals = self.client.get_step(sis.miles._connection.run, 0).totals
        self.assertEqual((totals.rejected, totals.missing), (0, 0))
        self.assertLess(totals.d / totals.scored, 1e-5)

    def test_a_sample_that_was_drawn_twice_has_one_record(self):
        args = self.args()
        (sample,) = self.generated(args, PROMPTS[:1])
        sampled = zip(sample.rollout_log_probs, sample.tokens[-sample.response_length :])
        own = [[value, token, None] for value, token in sampled]
        # Tops that differ, as those of another batch of the engine may.
        tops = [[[value - 0.25, token, None]] for value, token, _ in own]
        again = {"finish_reason": {"type": "length"}, "output_token_logprobs": own, "output_top_logprobs": tops}
        sis.miles._connection.record(sample, {"temperature": TEMPERATURE}, {"meta_info": again})
        self.assertEqual(self.client.get_run(args.sis["run"]).sequences, 1)
        rollout = self.rollout(args, [sample, copy.deepcopy(sample)])
        self.updated(args, rollout, self.current, 0)
        totals = self.client.get_step(sis.miles._connection.run, 0).totals
        self.assertEqual((totals.missing, totals.masked), (0, 2))
        self.assertGreater(totals.accepted, 0)

    def test_weight_updates_are_policy_versions(self):
        args = self.args()
        run = lambda: self.client.get_run(args.sis["run"])
        for told, version in (("default", 0), ("2", 2), ("2", 2), ("3", 3)):
            self.engine.weight_version = told
            self.generated(args, PROMPTS[:1])
            self.assertEqual(run().policy_version, version)

    def test_evaluations_are_not_recorded(self):
        args = self.args()
        self.generated(args, PROMPTS[:1])
        self.engine.requests.clear()
        nothing = {"text": "", "meta_info": {"finish_reason": {"type": "stop"}}}
        with unittest.mock.patch.object(Engine, "answer", lambda *_: nothing):
            self.generated(args, PROMPTS[:2], evaluation=True)
        self.assertNotIn("top_logprobs_num", self.engine.requests[0])
        self.assertEqual(self.client.get_run(args.sis["run"]).sequences, 1)

    def test_without_a_server_it_is_miless_own_loss(self):
        server = LiveServer()
        self.addCleanup(server.kill)
        args = self.args(server.address)
        rollout = self.rollout(args, self.generated(args))
        with_decisions = self.updated(args, rollout, self.current, 0)
        server.kill()
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            lost = self.updated(args, rollout, self.current, 1)
            self.assertEqual(len(self.generated(args, PROMPTS[:1])), 1)
        messages = [str(warning.message) for warning in seen]
        self.assertEqual(sum("no records, and training goes on" in message for message in messages), 1)
        self.assertEqual(sum("not told, and training goes on" in message for message in messages), 0)
        self.assertEqual(sum("rollouts are not recorded" in message for message in messages), 1)
        self.assertEqual(lost[2]["sis/missing"], 1)
        vars(args).update(loss_type="policy_loss")
        own = self.updated(args, rollout, self.current, 1)
        self.assertEqual(lost[0], own[0])
        self.assertTrue(all(map(torch.equal, lost[1], own[1])))
        self.assertNotEqual(with_decisions[0], own[0])

    def test_what_is_refused(self):
        refused = (
            ({"loss_type": "policy_loss"}, "Set it to 'custom_loss'"),
            ({"use_rollout_logprobs": False}, "use_rollout_logprobs is False.*Set it to True"),
            ({"tensor_model_parallel_size": 2}, "whole rows of logits. Set it to 1"),
            ({"context_parallel_size": 2}, "whole sequences. Set it to 1"),
            ({"partial_rollout": True}, "Set it to False"),
            ({"true_on_policy_mode": True}, "Set it to False"),
            ({"get_mismatch_metrics": True}, "Set it to False"),
            ({"use_tis": True}, "corrects a second time. Set it to False"),
            ({"use_opsm": True}, "Set it to False"),
            ({"lora_rank": 8}, "Set it to 0"),
            ({"lora_adapter_path": "there"}, "Set it to None"),
            ({"custom_generate_function_path": None}, "set it to the function of sis.miles"),
            ({"custom_megatron_before_train_step_hook_path": None}, "set it to the function of sis.miles"),
            ({"miles_router_middleware_paths": ["miles.RadixTreeMiddleware"]}, "leave it out"),
            ({"rollout_top_p": 0.9}, "top_p is 0.9"),
            ({"rollout_top_k": 50}, "top_k is 50"),
            ({"sglang_speculative_algorithm": "EAGLE"}, "speculative_algorithm is 'EAGLE'"),
            ({"sis": {"damped_truncation": True}, "advantage_estimator": "gspo"}, "but damped_truncation.*set another"),
            ({"sis": {"soft_acceptance": True}, "use_unbiased_kl": True}, "soft_acceptance.*set it to False"),
            ({"sis": {"run": "a run"}}, "run is 'a run'"),
        )
        for changed, message in refused:
            with self.subTest(changed), self.assertRaisesRegex(ValueError, message):
                sis.miles._connected(self.args(**changed))
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
            sis.miles.loss(args, {}, None, None)

    def test_the_arguments_are_miless(self):
        """Of Miles itself; the parallel sizes are Megatron's."""
        package = importlib.util.find_spec("miles").submodule_search_locations[0]
        text = (pathlib.Path(package) / "utils/arguments.py").read_text()
        others = ("miles_router_middleware_paths", "use_unbiased_kl", "custom_config_path")
        for name in (*sis.miles._NEEDED, *sis.miles._HOOKS, *others):
            if not name.endswith("_parallel_size"):
                self.assertIn(f'"--{name.replace("_", "-")}"', text)


@contextlib.contextmanager
def on_cpu():
    """Where Miles names the GPU."""
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
    if args.qkv_format == "bshd":
        return torch.stack([pad(values, shape[1]) for values in each])
    return pad(torch.cat(each), shape[1])[None]


if __name__ == "__main__":
    unittest.main()
