"""TRL and vLLM themselves, on a tiny random model: run by tools/rl-test."""

import dataclasses
import functools
import os
import pathlib
import sys
import tempfile
import unittest
import unittest.mock

from client.study.language_model import engine  # Before vLLM and TRL.

import tiny_model
import torch
import trl.generation.vllm_generation
import vllm
from client.study.language_model import arms, evaluation, int4, study, task
from client.study.language_model.settings import Settings
from client.study.language_model.stale import ENGINES, Engine
from client.study.runs import design
from client.study.runs.design import Run
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig

import sis
from sis.trl import SisConfig

WORKSPACE = pathlib.Path(__file__).parents[3]
SERVER = WORKSPACE / "server/main/sis_server"
SUMS = Settings(operation="+", smallest=1, largest=9, held_out=49)
PLANS = [design.read(WORKSPACE / f"client/study/language_model/{name}.txt") for name in ("sums", "differences")]


def odd_tokens(completion_ids, **_):
    """A reward that a random model gets in part."""
    return [float(sum(token % 2 for token in tokens)) for tokens in completion_ids]


class TrainingTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.model = tiny_model.make_for(cls)
        os.environ["PATH"] = f"{SERVER.parent}{os.pathsep}{os.environ['PATH']}"

    def test_every_arm_goes_through(self):
        """As the study makes them. No answer of a random model is right, so only engines differ."""
        settings = Settings(rollouts=2, prompts=2, group=2, updates=2, held_out=20, evaluated=1)
        self.assertEqual({arm for plan in PLANS for cell in plan.cells.values() for arm in cell.arms}, set(arms.ARMS))
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        pathlib.Path(folder.name, "SmolLM2-135M-Instruct").symlink_to(self.model)
        trainings = study.Trainings(sys.executable, pathlib.Path(folder.name))
        self.addCleanup(trainings.stop)
        server = sis.local_server()
        self.addCleanup(server.close)
        made = {}
        for cell, arm in [("bfloat16", arm) for arm in arms.ARMS] + [("int4", "grpo")]:
            with self.subTest(cell=cell, arm=arm):
                updates = []
                made[cell, arm] = trainings.make(
                    Run(cell, arm, 1), {"weights": cell}, settings, server.address, updates.append
                )
                self.assertEqual(len(updates), 4)
                rollouts = made[cell, arm]["rollouts"]
                self.assertEqual({len(values) for values in rollouts.values()}, {2})
                # Of the weights that sets are of: the engine's, or the trainer's before the first update.
                own = arms.ARMS[arm].sis.get("sets") == "trainer"
                self.assertEqual(rollouts["staleness"], [0.5, 0.5 if own else 2.5])
                self.assertEqual(set(made[cell, arm]["evaluations"]), {"1", "2"})
        # As the demonstration has it.
        with_vllm = dataclasses.replace(settings, engine="vllm")
        result = trainings.make(Run("vllm", "grpo+sampled", 1), {}, with_vllm, server.address)
        self.assertEqual(result["rollouts"]["staleness"], [0.5, 2.5])
        first = {arm: made["bfloat16", arm]["rollouts"]["expected_accept_rate"][0] for arm in arms.ARMS}
        # To the trainer's own weights, before and after one update.
        self.assertGreater(first.pop("soft_acceptance+expected"), max(first.values()))
        self.assertEqual(len(set(first.values())), 1, first)
        d = [made[cell, "grpo"]["rollouts"]["d"][0] for cell in ("bfloat16", "int4")]
        self.assertGreater(d[0], 1e-4)
        self.assertGreater(d[1], 3 * d[0])

    def test_rollouts_are_of_the_rounded_weights_of_the_rollout_before(self):
        """By every engine, of as many rollouts before as the design says, at first of the first."""
        for name, lag in (("transformers", 1), ("transformers", 2), ("vllm", 1)):
            with self.subTest(engine=name, lag=lag):
                self.check_rollouts(name, lag)

    def check_rollouts(self, name, lag):
        engine.prepare()
        if name == "vllm":
            engine.prepare_vllm()
        tokenizer = AutoTokenizer.from_pretrained(self.model, padding_side="left")
        model = engine.model(self.model, tokenizer)
        of_rollouts, furthest = [], []

        class Kept(arms.Sampled, ENGINES[name]):
            def _generate_and_score_completions(self, inputs):
                of_rollouts.append({name: value.clone() for name, value in self.model.state_dict().items()})
                output = super()._generate_and_score_completions(inputs)
                furthest.append([self.distance(output, weights) for weights in of_rollouts])
                return output

            def distance(self, output, weights):
                """Of sampled log-probs from those by these weights, rounded."""
                now = {name: value.clone() for name, value in self.model.state_dict().items()}
                self.model.load_state_dict(
                    {name: int4.rounded(w) if int4.is_linear_of_decoder(name) else w for name, w in weights.items()}
                )
                ids = torch.cat([output["prompt_ids"], output["completion_ids"]], dim=1)
                mask = torch.cat([output["prompt_mask"], output["completion_mask"]], dim=1)
                length = output["completion_ids"].shape[1]
                with torch.no_grad():
                    logits = self.model(input_ids=ids, attention_mask=mask).logits[:, -length - 1 : -1]
                log_probs = logits.log_softmax(-1).gather(2, output["completion_ids"][..., None])[..., 0]
                self.model.load_state_dict(now)
                difference = (log_probs - output["sampling_per_token_logps"]).abs()
                return (difference * output["completion_mask"]).max().item()

        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        made = functools.partial(vllm.LLM, dtype="float32", enforce_eager=True)
        with unittest.mock.patch.object(trl.generation.vllm_generation, "LLM", made):
            trainer = Kept(
                model=model,
                reward_funcs=odd_tokens,
                args=GRPOConfig(
                    output_dir=folder.name, max_steps=6, per_device_train_batch_size=4, steps_per_generation=2,
                    num_generations=4, max_completion_length=8, learning_rate=1e-2, lr_scheduler_type="constant",
                    use_vllm=name == "vllm", vllm_mode="colocate", vllm_importance_sampling_correction=False,
                    vllm_max_model_length=64, use_cpu=True, bf16=False, gradient_checkpointing=False, report_to=[],
                    save_strategy="no", disable_tqdm=True,
                ),
                train_dataset=Dataset.from_list(task.split(SUMS, seed=1)[0]),
                processing_class=tokenizer,
                sis_config=SisConfig(),
                engine=Engine("int4", lag),
                seed=1,
            )  # fmt: skip
        self.addCleanup(trainer._sis_server.close)
        self.addCleanup(trainer.sis_client.close)
        with unittest.mock.patch.object(torch.Tensor, "bfloat16", lambda tensor: tensor.float().clone()):
            trainer.train()
        # By rollout, from the weights of each rollout until then: those of `lag` before, at first of the first.
        self.assertEqual([len(row) for row in furthest], [1, 2, 3])
        for rollout, row in enumerate(furthest):
            for version, distance in enumerate(row):
                if version == max(rollout - lag, 0):
                    self.assertLess(distance, 1e-3, furthest)
                else:
                    self.assertGreater(distance, 1e-2, furthest)

    def test_expected_reward_is_the_probability_of_the_right_response(self):
        """Token by token, one problem at a time."""
        model = AutoModelForCausalLM.from_pretrained(self.model, dtype=torch.float32)
        tokenizer = AutoTokenizer.from_pretrained(self.model, padding_side="left")
        problems = [task.problem(1, "+", 2), task.problem(18, "-", 9)]
        found = evaluation.evaluate(model, tokenizer, problems)
        expected = []
        for problem in problems:
            tokens = tokenizer.encode(problem["prompt"])
            probability = 1.0
            for token in tokenizer.encode(task.response(problem["answer"])):
                # One at a time, without a batch.
                with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
                    probability *= model(torch.tensor([tokens])).logits[0, -1].float().softmax(-1)[token].item()
                tokens.append(token)
            expected.append(probability)
        self.assertGreater(sum(expected), 0)
        self.assertAlmostEqual(found.reward / (sum(expected) / 2), 1, delta=0.05)


if __name__ == "__main__":
    unittest.main()
