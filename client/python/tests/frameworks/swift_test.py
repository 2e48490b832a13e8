"""`swift rlhf --rlhf_type grpo` itself on a CPU, with a real server."""

import copy
import itertools
import json
import types
import unittest
import unittest.mock
import uuid

import tiny_model
import torch
from client.python.tests import snippets
from in_float64 import decided, distance
from server.testing.live_server import LiveServer
from swift import RLHFArguments
from swift.pipelines import rlhf_main
from swift.rewards import orms
from transformers import AutoTokenizer

import sis
import sis.integrations.ms_swift
from sis.integrations import SisConfig

SEED, K, TEMPERATURE = 5, 20, 0.9
PLUGIN = """
import sis.integrations.ms_swift
sis.integrations.ms_swift.use(address={address!r}, run={run!r}, seed=%d, log_prob_encoding="float32", **{weights!r})
""" % SEED


class ByLength:
    def __init__(self, *_args, **_kwargs):
        pass

    def __call__(self, completions, **_kwargs):
        return [sum(map(ord, text)) % 7 / 7.0 for text in completions]


class Watched(sis.integrations.ms_swift.SisGRPOTrainer):
    """Compares each loss with one computed in float64."""

    behaviour = None
    compared = []

    def _prepare_batch_inputs(self, samples):
        Watched.behaviour = copy.deepcopy(self.accelerator.unwrap_model(self.model)).double().eval()
        return super()._prepare_batch_inputs(samples)

    def _compute_loss_and_metrics(self, model, model_inputs, grpo_batch):
        old = grpo_batch.old_per_token_logps.clone()
        inputs = {name: value.clone() for name, value in model_inputs.items() if isinstance(value, torch.Tensor)}
        loss, metrics = super()._compute_loss_and_metrics(model, model_inputs, grpo_batch)
        assert torch.equal(grpo_batch.old_per_token_logps, old), "the trainer's own batch has changed"
        parameters = [value for value in model.parameters() if value.requires_grad]
        gradients = torch.autograd.grad(loss, parameters, retain_graph=True)
        exact = copy.deepcopy(self.accelerator.unwrap_model(self.model)).double()
        value, share = self.in_float64(exact, inputs, grpo_batch)
        of_float64 = torch.autograd.grad(value, [each for each in exact.parameters() if each.requires_grad])
        self.compared.append((loss.item() - value.item(), distance(gradients, of_float64), share))
        return loss, metrics

    def in_float64(self, exact, inputs, grpo_batch):
        kept, mask = grpo_batch.logits_to_keep, grpo_batch.completion_mask.bool()
        tokens = inputs["input_ids"][:, -kept:]
        arguments = {name: inputs[name] for name in ("input_ids", "attention_mask")}
        before, logits = (
            model(**arguments).logits[:, -kept - 1 : -1] / TEMPERATURE for model in (self.behaviour, exact)
        )
        starts = mask.int().argmax(dim=1).tolist()
        log_ratios, advantages, taken = decided(
            grpo_batch.sis_names, starts, mask, tokens, before, logits, SEED, self.state.global_step, K,
            grpo_batch.advantages.double(), self.sis_config.rule,
        )  # fmt: skip
        ratio = log_ratios.exp()
        clipped = ratio.clamp(1 - self.epsilon_low, 1 + self.epsilon_high)
        each = -torch.minimum(ratio * advantages, clipped * advantages) * mask
        return (each.sum(1) / mask.sum(1)).mean(), taken.sum().item() / mask.sum().item()


class SwiftTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        torch.set_num_threads(1)
        model = tiny_model.make_for(cls)
        cls.folder, cls.path = model.parent, str(model)
        tokenizer = AutoTokenizer.from_pretrained(model)
        tokenizer.chat_template = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
        tokenizer.save_pretrained(model)
        rows = [{"messages": [{"role": "user", "content": f"the tokens of {number}"}]} for number in range(16)]
        (cls.folder / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        orms["by_length"] = ByLength
        cls.server = LiveServer()
        cls.addClassCleanup(cls.server.close)
        cls.client = sis.Client(cls.server.address)
        cls.addClassCleanup(cls.client.close)

    def train(self, run, weights={}, **changed):
        plugin = self.folder / f"{run}.py"
        plugin.write_text(PLUGIN.format(address=self.server.address, run=run, weights=weights))
        return rlhf_main(
            RLHFArguments(
                **{
                    "rlhf_type": "grpo", "model": self.path, "model_type": "qwen3", "template": "dummy",
                    "dataset": [str(self.folder / "prompts.jsonl")], "reward_funcs": ["by_length"],
                    "external_plugins": [str(plugin)], "output_dir": str(self.folder / "out"), "use_vllm": False,
                    "tuner_type": "full", "torch_dtype": "float32", "bf16": False, "fp16": False, "max_steps": 4,
                    "num_generations": 4, "per_device_train_batch_size": 4, "gradient_accumulation_steps": 1,
                    "num_iterations": 2, "max_completion_length": 12, "temperature": TEMPERATURE,
                    "learning_rate": 1e-3, "lr_scheduler_type": "constant", "warmup_ratio": 0.0, "beta": 0.0,
                    "top_p": 1.0, "top_k": -1, "logging_steps": 1, "save_strategy": "no", "eval_strategy": "no",
                    "split_dataset_ratio": 0.0, "report_to": [], "dataloader_num_workers": 0, "seed": 1,
                    "gradient_checkpointing": False, "load_from_cache_file": False, "use_hf": True,
                    "loss_type": "grpo", "attn_impl": "eager", "add_version": False, "check_model": False, **changed,
                }
            )
        )  # fmt: skip

    def test_the_page(self):
        snippets.run("frameworks", 2, {})
        self.assertEqual(sis.integrations.ms_swift.SisTrainerMixin.sis_config, SisConfig("localhost:50051", run="my-training"))

    def watched(self, run, **weights):
        Watched.compared = []
        # Decisions depend on names.
        number = itertools.count()
        names = types.SimpleNamespace(uuid4=lambda: uuid.UUID(int=next(number)))
        with unittest.mock.patch.multiple(sis.integrations.ms_swift, SisGRPOTrainer=Watched, uuid=names):
            self.train(run, weights)
        self.assertEqual(len(Watched.compared), 4)

    def test_every_loss_is_that_of_float64(self):
        """With decisions, and with the rules in their place."""
        for weights in ({}, {"damped_truncation": True}, {"soft_acceptance": True, "weight": "expected"}):
            run = next(iter(weights), "decisions")
            self.watched(run, **weights)
            for number, (difference, of_gradient, share) in enumerate(Watched.compared):
                # Before an update rounding alone tells which token a rule damps.
                if weights and number % 2 == 0:
                    continue
                with self.subTest(run, update=number):
                    self.assertLess(abs(difference), 1e-5)
                    self.assertLess(of_gradient, 1e-4)
                    self.assertTrue(0.1 < share < 0.95, share)
                    totals = self.client.list_steps(self.client.get_run(run).run, draws=[number])[number].totals
                    self.assertAlmostEqual(totals.accept_rate, share, places=9)
                    self.assertEqual((totals.missing, totals.envelope_violations), (0, 0))
            self.assertEqual(self.client.get_run(run).policy_version, 4)

    def test_what_is_refused(self):
        fits = {
            "loss_type": "grpo", "epsilon": 0.2, "epsilon_high": None, "rollout_importance_sampling_mode": None,
            "off_policy_sequence_mask_delta": None, "log_rollout_offpolicy_metrics": False, "use_liger_kernel": False,
        }  # fmt: skip
        template = {"padding_free": False, "sequence_parallel_size": 1}
        check = lambda changed, **weights: sis.integrations.ms_swift._check_arguments(
            types.SimpleNamespace(**{**fits, **changed}), types.SimpleNamespace(**{**template, **changed}),
            SisConfig(**weights),
        )  # fmt: skip
        check({})
        check({"importance_sampling_level": "sequence"})
        with self.assertRaisesRegex(ValueError, "level is 'sequence': damped_truncation.*Set it to 'token'"):
            check({"importance_sampling_level": "sequence"}, damped_truncation=True)
        for changed, message in (
            ({"loss_type": "real"}, "loss_type is 'real', must be one of grpo"),
            ({"loss_type": "cispo"}, "epsilon_high is 0.2"),
            ({"off_policy_sequence_mask_delta": 0.1}, "Set it to None"),
            ({"use_liger_kernel": True}, "Set it to False"),
            ({"padding_free": True}, "rows of responses. Set it to False"),
            ({"sequence_parallel_size": 2}, "Set it to 1"),
        ):
            with self.subTest(changed), self.assertRaisesRegex(ValueError, message):
                check(changed)

    def test_it_refuses_before_an_engine_starts(self):
        with unittest.mock.patch.object(sis.integrations.ms_swift.GRPOTrainer, "prepare_rollout") as started:
            with self.assertRaisesRegex(ValueError, "loss_type is 'real'"):
                self.train("refused", loss_type="real")
        started.assert_not_called()


if __name__ == "__main__":
    unittest.main()
