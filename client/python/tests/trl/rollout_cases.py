"""TRL's trainer on rollouts of transformers and vLLM, in several types, with adapters and tools."""

import functools
import pathlib
import unittest.mock

import torch
import trl
from trainer_case import VOCABULARY, TrainerCase, Watched, vllm_on_cpus
from transformers import AutoModelForCausalLM, AutoTokenizer

from sis.integrations.trl import SisConfig


class TrlRolloutTest(TrainerCase):
    def test_transformers(self):
        """Accumulation, two iterations of two generations; K below the vocabulary."""
        trainer = self.trainer()
        rows = self.train(trainer)
        self.check_logged(trainer, rows)
        self.assertEqual([row["sis/staleness"] for row in rows], [0, 1, 0, 1])
        self.assertLess(rows[0]["sis/d"], 1e-5)
        self.assertGreater(rows[1]["sis/d"], 1e-3)
        self.assertLess(rows[1]["sis/d_sis"], rows[1]["sis/d"])
        status = trainer.sis_client.get_run(trainer.sis_run.id)
        self.assertEqual((status.sequences, status.kept_sequences, status.policy_version), (0, 0, 3))

    def test_bfloat16(self):
        """The head rounds logits, each by up to some hundredths."""
        in_bfloat16 = functools.partial(AutoModelForCausalLM.from_pretrained, self.path, dtype=torch.bfloat16)
        for name, changed in (
            ("model", {"model": in_bfloat16()}),
            ("autocast", {"bf16": True}),
            ("head in float32", {"model": in_bfloat16(), "cast_lm_head_to_fp32": True}),
        ):
            with self.subTest(name):
                trainer = self.trainer(max_steps=2, learning_rate=1e-5, **changed)
                rows = self.train(trainer)
                self.check_logged(trainer, rows)
                self.assertGreater(rows[0]["sis/d"], 1e-4)
                self.assertLess(rows[0]["sis/d"], 0.1)
                self.assertGreater(rows[0]["sis/accept_rate"], 0.3)

    def test_lora(self):
        from peft import LoraConfig

        adapters = LoraConfig(task_type="CAUSAL_LM", r=4, target_modules=["q_proj", "v_proj"])
        trainer = self.trainer(peft_config=adapters, beta=0.1, learning_rate=1e-2)
        rows = self.train(trainer)
        self.check_logged(trainer, rows)
        self.assertLess(rows[0]["sis/d"], 1e-5)
        self.assertGreater(rows[3]["sis/d"], 0)

    def test_tools(self):
        """Two turns: TRL's own loop runs a tool, whose tokens are no rollout."""
        tokenizer = AutoTokenizer.from_pretrained(self.path, padding_side="left")
        tokenizer.chat_template = (pathlib.Path(trl.__file__).parent / "chat_templates/qwen3.jinja").read_text()

        def lookup(key: int) -> str:
            """Looks up.

            Args:
                key: Of what.
            """
            return f"value {key}"

        calls = []

        def parse(_tokenizer, ids, **_):
            calls.append(ids)
            message = {"role": "assistant", "content": "looking"}
            # The first response of two calls a tool, once.
            if len(calls) % 12 in range(1, 9, 2):
                message["tool_calls"] = [{"type": "function", "function": {"name": "lookup", "arguments": {"key": 1}}}]
            return message

        class WithTools(Watched):
            masked = 0

            def watch(self, inputs, decided):
                self.masked += int(((1 - inputs["tool_mask"]) * inputs["completion_mask"]).sum())

        with unittest.mock.patch("trl.trainer.grpo_trainer.parse_response", parse):
            trainer = self.trainer(
                WithTools, tools=[lookup], processing_class=tokenizer, max_completion_length=200, max_steps=2,
                prompts=[[{"role": "user", "content": f"tokens {i}"}] for i in range(64)],
            )  # fmt: skip
            # Makes turns end, which a random model hardly ever does.
            trainer.eos_token_ids = trainer.generation_config.eos_token_id = list(range(2, VOCABULARY, 12))
            trainer.model.config.max_position_embeddings = 4096
            rows = self.train(trainer)
        self.check_logged(trainer, rows)
        self.assertLess(rows[0]["sis/d"], 1e-5)
        self.assertGreater(trainer.masked, 20)
        steps = trainer.sis_client.list_steps(trainer.sis_run, draws=[0, 1])
        self.assertEqual(trainer.masked, steps[0].totals.masked + steps[1].totals.masked)

    def test_vllm(self):
        """K above vLLM's own limit; float32 on both sides; filters, after which its log-probs are."""
        with vllm_on_cpus():
            config = SisConfig(self.server.address, run=self.id(), top_k=64)
            trainer = self.trainer(config=config, use_vllm=True, vllm_mode="colocate", top_k=40, top_p=0.8)
            self.assertEqual(trainer.vllm_generation.llm.llm_engine.model_config.max_logprobs, 64)
            rows = self.train(trainer)
            self.check_logged(trainer, rows)
            # Updated weights are used in the same way as the first.
            self.assertLess(rows[0]["sis/d"], 1e-5)
            self.assertLess(rows[2]["sis/d"], 1e-5)
            self.assertEqual([row["sis/incomplete"] for row in rows], [0] * 4)

            trainer.vllm_generation.llm.llm_engine.model_config.logprobs_mode = "raw_logprobs"
            with self.assertRaisesRegex(ValueError, "temperature is 0.9.*processed_logprobs"):
                trainer.train()
            trainer.temperature = trainer.vllm_generation.temperature = 1.0
            trainer.vllm_generation.top_p, trainer.vllm_generation.top_k = 0.9, 0
            with self.assertRaisesRegex(ValueError, "top_p is 0.9"):
                trainer.train()
