"""TRL itself, with vLLM and with transformers, and the real server: run by tools/rl-test."""

import collections
import functools
import inspect
import math
import os
import pathlib
import re
import socket
import textwrap
import time
import types
import unittest
import unittest.mock
import warnings

import numpy as np
import recorded_ratios
import torch
import trl
from server.testing import live_server
from server.testing.live_server import LiveServer
from trainer_case import (
    DATASET, MIB, VOCABULARY, InFloat64, OfAnotherEngine, TrainerCase, Watched, hundred_words, largest, reward,
    settings, tiny,
)  # fmt: skip
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

import sis
from sis.trl import SisConfig, SisGRPOTrainer, capture, refusals


class Stock:
    """Compares gradients of each micro-batch with those of TRL alone on the sampling log-probs."""

    compared = 0

    def _compute_loss(self, model, inputs):
        loss = super()._compute_loss(model, inputs)
        parameters = [value for value in model.parameters() if value.requires_grad]
        ours = torch.autograd.grad(loss, parameters, retain_graph=True)
        with_sampling = {**inputs, "old_per_token_logps": inputs["sampling_per_token_logps"]}
        theirs = torch.autograd.grad(GRPOTrainer._compute_loss(self, model, with_sampling), parameters)
        self.compared += all(torch.equal(a, b) for a, b in zip(ours, theirs))
        return loss


class LostIsStock(Stock, Watched):
    pass


class OfOwnLogits(Watched):
    """Compares the log-probs at recorded tokens with those of the model's own logits."""

    compared, most = 0, 0.0

    def _sis_acceptance(self, inputs, *arguments):
        evaluate = self._sis_rollouts.evaluate

        def compare(records, draw, outputs, options, gathered):
            ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], dim=1)
            mask = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], dim=1)
            length = inputs["completion_ids"].shape[1]
            logits = self.model(ids, attention_mask=mask).logits[:, -length - 1 : -1].float()
            every = (logits / self.temperature).log_softmax(-1)
            rows = torch.cat([every[row, : part.length] for row, part in enumerate(records.slices)])
            slots = torch.from_numpy(records.ids).long()
            difference = (rows.gather(1, slots.clamp(min=0)) - gathered["log_probs"]).abs()[slots >= 0]
            self.compared += len(difference)
            self.most = largest(self.most, difference)
            return evaluate(records, draw=draw, outputs=outputs, options=options, gathered=gathered)

        with unittest.mock.patch.object(self._sis_rollouts, "evaluate", compare):
            return super()._sis_acceptance(inputs, *arguments)


class Scaled(Watched):
    """Whose log-probs are not those of hidden states times head, and no setting says so."""

    def _get_per_token_logps_and_entropies(self, *args, **kwargs):
        with unittest.mock.patch.object(self, "temperature", 2.0):
            return super()._get_per_token_logps_and_entropies(*args, **kwargs)


def importance_of(behaviour, current, mask, cap):
    """What TRL makes of a batch's mismatch with its default mode, sequence_mask, by its own lines."""
    source = inspect.getsource(GRPOTrainer._generate_and_score_completions)
    begin = source.index("            if self.use_vllm and self.vllm_importance_sampling_correction:\n")
    end = source.index("            # Compute the per-token log probabilities for the reference model\n")
    self = types.SimpleNamespace(
        use_vllm=True,
        vllm_importance_sampling_correction=True,
        vllm_importance_sampling_mode=GRPOConfig(use_cpu=True).vllm_importance_sampling_mode,
        vllm_importance_sampling_clip_min=None,
        vllm_importance_sampling_clip_max=cap,
    )
    names = {
        "self": self, "torch": torch, "math": math, "tool_mask": None,
        "completion_mask": torch.tensor(mask).int(), "old_per_token_logps": torch.tensor(current),
        "sampling_per_token_logps": torch.tensor(behaviour),
    }  # fmt: skip
    exec(textwrap.dedent(source[begin:end]), names)
    return names["vllm_importance_sampling_ratio"][:, 0].numpy()


class SequenceMaskTest(unittest.TestCase):
    """TRL's own mask of sequences, in the service."""

    def test_sequences_are_left_out_that_trl_leaves_out(self):
        server = LiveServer()
        self.addCleanup(server.close)
        client = sis.Client(server.address)
        self.addCleanup(client.close)
        # The other way around, as only large ratios are masked.
        current, behaviour, mask = recorded_ratios.tensors(2)
        # Its sums have no limit on a token's ratio, ours has one of 20 nats.
        behaviour = np.maximum(behaviour, current - 15)
        for cap in (1.5, 3.0):
            region = sis.SequenceTrustRegion("k1", "sum", lower=-math.log(cap))
            got = recorded_ratios.evaluate(client, f"cap{cap}", behaviour, current, mask, [region])
            want = importance_of(behaviour, current, mask, cap)
            self.assertGreater(np.abs(np.log(want[want > 0]) - math.log(cap)).min(), 1e-5)
            self.assertTrue(4 < (want == 0).sum() < 32, (want == 0).sum())
            np.testing.assert_array_equal(got.outside_trust_regions, want == 0)
            np.testing.assert_allclose(np.exp(-got.divergences[want > 0, 0]), want[want > 0], rtol=1e-5)


class TrlTest(TrainerCase):
    def test_transformers(self):
        """Accumulation, two iterations of two generations; K below the vocabulary."""
        trainer = self.trainer()
        rows = self.train(trainer)
        self.check_logged(trainer, rows)
        self.assertEqual([row["sis/staleness"] for row in rows], [0, 1, 0, 1])
        self.assertLess(rows[0]["sis/d"], 1e-5)
        self.assertGreater(rows[1]["sis/d"], 1e-3)
        self.assertLess(rows[1]["sis/d_sis"], rows[1]["sis/d"])
        self.assertEqual([row["sis/missing"] for row in rows], [0] * 4)
        self.assertEqual([row["sis/envelope_violations"] for row in rows], [0] * 4)
        status = trainer.sis_client.get_run(trainer.sis_run.id)
        self.assertEqual((status.sequences, status.leases, status.policy_version), (0, 0, 3))

    def test_bfloat16(self):
        """The head rounds logits, each by up to some hundredths."""
        in_bfloat16 = functools.partial(AutoModelForCausalLM.from_pretrained, self.path, dtype=torch.bfloat16)
        for name, changed in (
            ("model", {"model": in_bfloat16()}),
            ("autocast", {"bf16": True}),
            ("head in float32", {"model": in_bfloat16(), "cast_lm_head_to_fp32": True}),
        ):
            with self.subTest(name):
                rows = self.train(self.trainer(max_steps=2, learning_rate=1e-5, **changed))
                self.assertEqual([row["sis/missing"] for row in rows], [0, 0])
                self.assertEqual([row["sis/envelope_violations"] for row in rows], [0, 0])
                self.assertGreater(rows[0]["sis/d"], 1e-4)
                self.assertLess(rows[0]["sis/d"], 0.1)
                self.assertGreater(rows[0]["sis/accept_rate"], 0.3)

    def test_nothing_but_the_line(self):
        """A server of its own, and evaluation in between."""
        with unittest.mock.patch.dict(os.environ, PATH=f"{live_server.BINARY.parent}:{os.environ['PATH']}"):
            trainer = SisGRPOTrainer(
                model=self.path,
                reward_funcs=reward,
                args=settings(self.folder / "line", eval_strategy="steps", eval_steps=1, max_steps=2),
                train_dataset=DATASET,
                eval_dataset=DATASET.select(range(4)),
            )
        self.addCleanup(trainer._sis_server.close)
        self.addCleanup(trainer.sis_client.close)
        rows = self.train(trainer)
        self.check_logged(trainer, rows)
        self.assertEqual(trainer.sis_run.config.top_k, 20)
        self.assertEqual(sum("eval_reward" in row for row in trainer.state.log_history), 2)

    def test_a_resumed_run_begins_anew(self):
        first = self.trainer(max_steps=1)
        self.train(first)
        second = self.trainer(max_steps=1)
        self.train(second)
        self.assertEqual(second.sis_run.id, first.sis_run.id)
        self.assertGreater(second.sis_run.incarnation, first.sis_run.incarnation)

    def test_equal_policies_have_ratios_1(self):
        class AllAccepted(Watched):
            seen = []

            def watch(self, inputs, log_probs, old):
                mask = inputs["completion_mask"].bool()
                self.seen.append(torch.equal(old[mask], log_probs[mask]))

        # A vocabulary that is recorded as a whole. One update per rollout: the policies are the same but for the
        # rounding of matrices of other shapes.
        config = SisConfig(self.server.address, run=self.id(), top_k=100)
        model = AutoModelForCausalLM.from_pretrained(self.path, dtype=torch.float32)
        model.resize_token_embeddings(100)
        trainer = self.trainer(
            AllAccepted, config, prompts=[f"w{i} w5" for i in range(64)], model=model, processing_class=hundred_words(),
            num_iterations=1, max_steps=2,
        )  # fmt: skip
        rows = self.train(trainer)
        self.assertEqual([row["sis/accept_rate"] for row in rows], [1, 1])
        self.assertEqual(trainer.seen, [True] * 4)

    def test_every_record_lost(self):
        server = LiveServer(cache_bytes=16 * MIB)
        self.addCleanup(server.kill)
        trainer = self.trainer(LostIsStock, SisConfig(server.address))
        server.kill()
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            rows = self.train(trainer)
        self.assertEqual(sum("training goes on" in str(warning.message) for warning in seen), 1)
        self.assertEqual([row["sis/missing"] for row in rows], [1] * 4)
        self.assertEqual(trainer.compared, 8)

    def test_decisions_change_gradients(self):
        """So that the law above can fail."""
        trainer = self.trainer(LostIsStock)
        self.train(trainer)
        self.assertLess(trainer.compared, 8)

    def test_killed_server_comes_back(self):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        servers = [LiveServer(listen=f"127.0.0.1:{port}", cache_bytes=16 * MIB)]

        class Killing(Watched):
            def training_step(self, *args, **kwargs):
                step = self.state.global_step
                # In the middle of a generation's two updates: at 1 another is there at once, at 3 for a generation none.
                if step in (1, 3) and len(servers) == step // 2 + 1 and servers[-1].process.poll() is None:
                    servers[-1].kill()
                if step in (1, 6) and servers[-1].process.poll() is not None:
                    servers.append(LiveServer(listen=f"127.0.0.1:{port}", cache_bytes=16 * MIB))
                if step in (2, 6):
                    # For so long a server that gave no answer is left alone.
                    time.sleep(1.5)
                return super().training_step(*args, **kwargs)

        self.addCleanup(lambda: servers[-1].close())
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            trainer = self.trainer(Killing, SisConfig(f"127.0.0.1:{port}"), max_steps=8)
            rows = self.train(trainer)
        self.assertEqual([row["sis/missing"] for row in rows], [0, 1, 0, 1, 1, 1, 0, 0])
        self.assertGreater(rows[7]["sis/accept_rate"], 0.1)

    def test_weights(self):
        """Every token weighs what the formula says of its acceptance probability."""

        class Weighed(Watched):
            most = 0.0

            def _sis_acceptance(self, *args):
                self.acceptance = super()._sis_acceptance(*args)
                return self.acceptance

            def watch(self, inputs, log_probs, old):
                a = self.acceptance.probabilities.double()
                ratio = (log_probs - inputs["sampling_per_token_logps"]).double().exp()
                made = (log_probs.double() - old.double()).exp()
                difference = made - (a + (1 - a) * ratio)
                self.most = largest(self.most, difference[inputs["completion_mask"].bool()])

        config = SisConfig(self.server.address, weight="expected")
        trainer = self.trainer(Weighed, config, max_steps=2, loss_type="cispo", epsilon_high=1e4)
        self.train(trainer)
        self.assertLess(trainer.most, 1e-5)

    def test_a_rule_takes_the_place_of_the_clip(self):
        """Losses and gradients beside float64, at the second of a generation's two updates: at the first, of equal
        policies, rounding alone tells which token is outward."""

        class Ruled(InFloat64):
            lost = (3,)

            def __init__(self, *args, **kwargs):
                super().__init__(*args, **kwargs)
                self.seen, append_many = collections.Counter(), self.sis_client.append_many

                def lose(run, recorded, **settings):
                    return append_many(run, [one for one in recorded if not one.sequence.endswith("/3")], **settings)

                self.sis_client.append_many = lose

            def _compute_loss(self, model, inputs):
                if self.state.global_step % 2:
                    return super()._compute_loss(model, inputs)
                advantages = torch.linspace(-1.0, 1.0, len(inputs["advantages"]))
                return Watched._compute_loss(self, model, {**inputs, "advantages": advantages})

            def weights(self, ratio, a, advantages):
                outward = ((ratio > 1) & (advantages > 0)) | ((ratio < 1) & (advantages < 0))
                if self._sis_config.damped_truncation:
                    weight = torch.where(ratio > 1, 1.0, ratio)
                elif self._sis_config.weight == "expected":
                    weight = a + (1 - a) * ratio
                else:
                    weight = torch.where(self.accepted, 1.0, ratio)
                clipped = outward & ((ratio > 1.2) | (ratio < 0.8))
                self.seen.update(kept=int((~outward).sum()), damped=int((outward & (a > 0)).sum()))
                self.seen.update(none=int((outward & (a == 0)).sum()), clip=int(clipped.sum()))
                return torch.where(outward, weight * a, weight)

        class OnOwnSets(Ruled, OfAnotherEngine):
            pass

        for loss_type, rule in (
            ("dapo", {"damped_truncation": True}), ("cispo", {"damped_truncation": True}), ("dapo", {"soft_acceptance": True}),
            ("dapo", {"soft_acceptance": True, "weight": "expected"}),
            ("dapo", {"soft_acceptance": True, "weight": "expected", "sets": "trainer"}),
        ):  # fmt: skip
            with self.subTest(loss_type, **rule):
                trainer = self.trainer(
                    OnOwnSets if "sets" in rule else Ruled, SisConfig(self.server.address, **rule),
                    model=tiny("Qwen3", vocab_size=100),
                    processing_class=hundred_words(), prompts=[f"w{i} w5" for i in range(64)], max_steps=2,
                    loss_type=loss_type, epsilon_high=1.0 if loss_type == "cispo" else 0.2, learning_rate=1e-2,
                )  # fmt: skip
                rows = self.train(trainer)
                self.assertGreater(rows[1]["sis/missing_never_arrived"], 0)
                self.assertLess(trainer.most_acceptance, 1e-3)
                self.assertLess(trainer.most_loss, 1e-5)
                self.assertLess(trainer.most, 1e-4)
                for name in ("kept", "damped", "none", "clip"):
                    self.assertGreater(trainer.seen[name], 5, name)

    def test_sets_of_the_trainer(self):
        """Whatever engine generates, the policy before the first update is what tokens count as drawn from; records
        are of what TRL masks not."""
        filters = {"top_p": 0.8, "top_k": 5, "beta": 0.1}
        halves = {"num_iterations": 1, "steps_per_generation": 4}
        for changed in ({}, {"bf16": True}, filters, {"mask_truncated_completions": True}, halves):
            with self.subTest(**changed):
                config = SisConfig(self.server.address, sets="trainer")
                trainer = self.trainer(OfAnotherEngine, config, **changed)
                # So that some end, and are of other lengths.
                trainer.eos_token_ids = trainer.generation_config.eos_token_id = list(range(2, VOCABULARY, 24))
                rows = self.train(trainer)
                self.check_logged(trainer, rows)
                self.assertEqual([row["sis/missing"] + row["sis/envelope_violations"] for row in rows], [0] * 4)
                self.assertLess(rows[0]["sis/d"], 1e-2 if "bf16" in changed else 1e-5)
                self.assertLess(rows[2]["sis/d"], 1e-2 if "bf16" in changed else 1e-5)
                self.assertGreater(rows[1]["sis/d"], 1e-3)
                self.assertEqual([row["sis/staleness"] for row in rows], [0, 1, 0, 1])
                status = trainer.sis_client.get_run(trainer.sis_run.id)
                self.assertEqual((status.sequences, status.policy_version), (0, 3))

    def test_lora(self):
        from peft import LoraConfig

        adapters = LoraConfig(task_type="CAUSAL_LM", r=4, target_modules=["q_proj", "v_proj"])
        trainer = self.trainer(peft_config=adapters, beta=0.1, learning_rate=1e-2)
        rows = self.train(trainer)
        self.check_logged(trainer, rows)
        self.assertLess(rows[0]["sis/d"], 1e-5)
        self.assertGreater(rows[3]["sis/d"], 0)
        self.assertEqual([row["sis/envelope_violations"] for row in rows], [0] * 4)

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

            def watch(self, inputs, log_probs, old):
                self.masked += int(((1 - inputs["tool_mask"]) * inputs["completion_mask"]).sum())

        with unittest.mock.patch("trl.trainer.grpo_trainer.parse_response", parse):
            trainer = self.trainer(
                WithTools, tools=[lookup], processing_class=tokenizer, max_completion_length=200, max_steps=2,
                prompts=[[{"role": "user", "content": f"tokens {i}"}] for i in range(64)],
            )  # fmt: skip
            # So that turns end: a random model hardly ever does.
            trainer.eos_token_ids = trainer.generation_config.eos_token_id = list(range(2, VOCABULARY, 12))
            trainer.model.config.max_position_embeddings = 4096
            rows = self.train(trainer)
        self.check_logged(trainer, rows)
        self.assertEqual([row["sis/missing"] for row in rows], [0, 0])
        self.assertLess(rows[0]["sis/d"], 1e-5)
        self.assertGreater(trainer.masked, 20)
        self.assertEqual(
            trainer.masked, sum(trainer.sis_client.get_step(trainer.sis_run, draw).totals.masked for draw in (0, 1))
        )

    def test_vllm(self):
        """K above vLLM's own limit; float32 on both sides; filters, after which its log-probs are."""
        import vllm._custom_ops

        # TRL passes no dtype on, and oneDNN's packed weights can't be loaded again, as TRL does after each step.
        made = functools.partial(vllm.LLM, dtype="float32", enforce_eager=True)
        with (
            unittest.mock.patch.object(vllm._custom_ops, "_supports_onednn", False),
            unittest.mock.patch("trl.generation.vllm_generation.LLM", made),
        ):
            config = SisConfig(self.server.address, run=self.id(), top_k=64)
            trainer = self.trainer(config=config, use_vllm=True, vllm_mode="colocate", top_k=40, top_p=0.8)
            self.assertEqual(trainer.vllm_generation.llm.llm_engine.model_config.max_logprobs, 64)
            rows = self.train(trainer)
            self.check_logged(trainer, rows)
            # Of updated weights as of the first.
            self.assertLess(rows[0]["sis/d"], 1e-5)
            self.assertLess(rows[2]["sis/d"], 1e-5)
            self.assertEqual([(row["sis/missing"], row["sis/incomplete"]) for row in rows], [(0, 0)] * 4)

            trainer.vllm_generation.llm.llm_engine.model_config.logprobs_mode = "raw_logprobs"
            with self.assertRaisesRegex(ValueError, "temperature is 0.9.*processed_logprobs"):
                trainer.train()
            trainer.temperature = trainer.vllm_generation.temperature = 1.0
            trainer.vllm_generation.top_p, trainer.vllm_generation.top_k = 0.9, 0
            with self.assertRaisesRegex(ValueError, "top_p is 0.9"):
                trainer.train()

    def test_two_ranks(self):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        # Where one fails, the other is ended.
        torch.multiprocessing.spawn(_rank, (port, self.path, self.server.address, str(self.folder)), nprocs=2)
        rows, run, parts = [torch.load(self.folder / name, weights_only=False) for name in ("rows", "run", "parts")]
        self.assertEqual(len(rows), 2)
        with sis.Client(self.server.address) as client:
            run = client.get_run(run).run
            for draw, row in enumerate(rows):
                totals = client.get_step(run, draw).totals
                self.assertEqual((totals.missing, row["sis/incomplete"]), (0, 0))
                self.assertAlmostEqual(row["sis/accept_rate"], totals.accept_rate, places=9)
                self.assertAlmostEqual(row["sis/d"], totals.mean_d, places=9)
        # As one process sees them that evaluates both ranks' sequences in one call.
        apart, together = parts
        self.assertGreater(len(together), 50)
        self.assertEqual(apart, together)

    def test_refused(self):
        wrong = {
            "corrected twice": {"use_vllm": True, "vllm_importance_sampling_correction": True},
            "generate_batch": {"use_transformers_continuous_batching": True},
            "n is 2": {"generation_kwargs": {"n": 2}},
            "num_return_sequences is 2": {"generation_kwargs": {"num_return_sequences": 2}},
            "prompt_lookup_num_tokens": {"generation_kwargs": {"prompt_lookup_num_tokens": 3}},
            "assistant_model": {"generation_kwargs": {"assistant_model": object()}},
            "assistant_early_exit": {"generation_kwargs": {"assistant_early_exit": 2}},
            "loss_type is 'vespo'.* soft_acceptance gives each token.*take 'dapo'": {
                "config": SisConfig(soft_acceptance=True), "loss_type": "vespo",
            },
            "importance_sampling_level is 'sequence', but damped_truncation.*set it to 'token'": {
                "config": SisConfig(damped_truncation=True), "importance_sampling_level": "sequence",
            },
            "gradient_accumulation_steps is 2, so a rollout .* by one update.*Set num_iterations": {
                "config": SisConfig(sets="trainer"), "num_iterations": 1,
            },
            "beta is 0.1.*by damped_truncation that is 1. Set use_bias_correction_kl to False": {
                "config": SisConfig(damped_truncation=True), "beta": 0.1,
            },
        }  # fmt: skip
        for message, changed in wrong.items():
            config = changed.pop("config", None)
            arguments = settings(self.folder / "out")
            for name, value in changed.items():
                # Not in the constructor, which asks for Liger, and for vLLM's server.
                setattr(arguments, name, value)
            with self.subTest(message), self.assertRaisesRegex(ValueError, message):
                SisGRPOTrainer(args=arguments, sis_config=config)
        # Of transformers 4, which have no fsdp_plugin_args.
        refusals.check_sharding(types.SimpleNamespace(deepspeed_plugin=None))
        config = types.SimpleNamespace(
            model_config=types.SimpleNamespace(logprobs_mode="processed_logprobs"),
            speculative_config=types.SimpleNamespace(method="ngram"),
        )
        llm = types.SimpleNamespace(llm_engine=types.SimpleNamespace(vllm_config=config, **vars(config)))
        with self.assertRaisesRegex(ValueError, "speculative_config is set"):
            capture.vllm(types.SimpleNamespace(llm=llm), top_k=20, process_index=0)
        for given, message in (
            ({"beta": 0.1, "top_p": 0.9}, "beta is 0.1.*top_p"),
            ({"beta": 0.1, "generation_kwargs": {"min_p": 0.1}}, "beta is 0.1.*min_p"),
        ):
            with self.subTest(given), self.assertRaisesRegex(ValueError, message):
                SisGRPOTrainer(args=settings(self.folder / "out", **given))
        centering = {"loss_type": "cispo", "epsilon_high": 5.0}
        for given, message in (
            ({"loss_type": "dapo"}, "loss_type is 'dapo'.*set it to 'cispo'"),
            ({"importance_sampling_level": "sequence"}, "importance_sampling_level is 'sequence'"),
            ({"beta": 0.1}, "beta is 0.1.*set it to 0.0"),
        ):
            with self.subTest(given), self.assertRaisesRegex(ValueError, message):
                args = settings(self.folder / "out", **{**centering, **given})
                SisGRPOTrainer(args=args, sis_config=SisConfig(score_centering=True))
        for rule in ("soft_acceptance", "damped_truncation"):
            both = SisConfig(score_centering=True, **{rule: True})
            with self.subTest(rule), self.assertRaisesRegex(ValueError, f"SisConfig.{rule} is True"):
                SisGRPOTrainer(args=settings(self.folder / "out", **centering), sis_config=both)
        for wrong, message in (
            ({"weight": "mean"}, "weight is 'mean'"),
            ({"damped_truncation": True, "weight": "expected"}, "weight is 'expected', but damped_truncation"),
            ({"sets": "vllm"}, "sets is 'vllm', must be 'engine' or 'trainer'"),
            ({"sets": "trainer", "score_centering": True}, "sets is 'trainer': set it to 'engine', or score_centering"),
        ):
            with self.subTest(wrong), self.assertRaisesRegex(ValueError, message):
                SisConfig(**wrong)

    def test_token_table(self):
        """What TensorBoard reads back is what the server says of the tokens that were trained on."""
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        class Counted(Watched):
            seen = collections.Counter()

            def watch(self, inputs, log_probs, old):
                accepted, mask = old == log_probs, inputs["completion_mask"].bool()
                self.seen.update(zip(inputs["completion_ids"][mask].tolist(), accepted[mask].tolist()))

        folder, told = str(self.folder / "tables"), []
        with unittest.mock.patch.dict(os.environ, TENSORBOARD_LOGGING_DIR=folder):
            config = SisConfig(self.server.address, run=self.id(), token_table_steps=2)
            trainer = self.trainer(Counted, config, report_to=["tensorboard"])
            inspect_run = trainer.sis_client.inspect_run

            def noted(run):
                told.append(inspect_run(run))
                return told[-1]

            with unittest.mock.patch.object(trainer.sis_client, "inspect_run", noted):
                self.train(trainer)
        events = EventAccumulator(folder).Reload().Tensors("sis/tokens/text_summary")
        self.assertEqual([event.step for event in events], [2, 4])
        for event, inspection in zip(events, told, strict=True):
            lines = event.tensor_proto.string_val[0].decode().split("\n")[2:]
            numbers = [[int(line.split(" | ")[0][2:]), *map(int, line[:-2].split(" | ")[-3:])] for line in lines]
            self.assertEqual(numbers, [[one.token_id, one.accepted, one.rejected, one.max_error] for one in inspection.tokens])
            self.assertGreater(len(numbers), 5)
        for token, accepted, rejected, error in numbers:
            self.assertLessEqual(accepted, trainer.seen[token, True] + error)
            self.assertLessEqual(rejected, trainer.seen[token, False] + error)
            text = trainer.processing_class.decode([token])
            self.assertTrue(not text.isalpha() or f"| {token} | {text} |" in "\n".join(lines), text)
        for steps, message in ((2, "token_table_steps is 2, but report_to is .*add wandb"), (-1, "must be 0")):
            with self.subTest(steps), self.assertRaisesRegex(ValueError, message):
                SisGRPOTrainer(args=settings(folder), sis_config=SisConfig(token_table_steps=steps))

    def test_weights_that_cispo_would_limit(self):
        """An accepted token weighs 1: a limit below that changes the weights, whichever setting made it."""
        soft, hard = SisConfig(soft_acceptance=True), SisConfig()

        def cispo(**changed):
            return settings(self.folder / "out", loss_type="cispo", **changed)

        for config in (soft, hard, SisConfig(weight="expected")):
            for changed in (
                {}, {"epsilon": 0.999}, {"epsilon_high": 0.999},
                {"epsilon": 5.0, "epsilon_high": 0.28},
            ):  # fmt: skip
                message = "epsilon_high is 0.*[Ss]et epsilon_high"
                with self.subTest(changed), self.assertRaisesRegex(ValueError, message):
                    refusals.check_arguments(cispo(**changed), config)
            for changed in ({"epsilon": 1.0}, {"epsilon_high": 1.0}, {"epsilon_high": 1e4}):
                refusals.check_arguments(cispo(**changed), config)
        refusals.check_arguments(settings(self.folder / "out", epsilon_high=0.28), hard)

    def test_names_of_runs(self):
        """A server takes [A-Za-z0-9._-], at most 256 of them."""
        plain = re.compile(r"[A-Za-z0-9._-]{1,256}")
        for changed in (
            {"run_name": "lr=1e-5 (second try)"}, {"output_dir": str(self.folder / "a b=c(d)")},
            {"run_name": "\u00fcber/alles"}, {"run_name": "n" * 300},
        ):  # fmt: skip
            with self.subTest(changed):
                made = self.trainer(config=SisConfig(self.server.address), **changed)
                self.assertRegex(made.sis_run.id, plain)
                self.assertEqual(made.sis_client.get_run(made.sis_run.id).run.id, made.sis_run.id)
        for name in ("a b", "lr=1", "(x)", "\u00fc", "", "n" * 257, "a\n"):
            with self.subTest(name), self.assertRaisesRegex(ValueError, r"run is .*A-Za-z0-9"):
                SisConfig(run=name)

    def test_a_model_whose_name_is_longer_than_a_label(self):
        for name in ("/models/" + "long/" * 60 + "last", "/\u00fc" * 200, "/\udcff" * 200):
            with self.subTest(name):
                model = AutoModelForCausalLM.from_pretrained(self.path)
                model.config._name_or_path = name
                made = self.trainer(config=SisConfig(self.server.address), model=model)
                label = made.sis_client.get_run(made.sis_run.id).run.config.model
                self.assertTrue(250 < len(label.encode()) <= 256)
                self.assertTrue(name.endswith(label) or "?" in label)

    def test_trains_again(self):
        """Each training's steps are the server's own, whether the one before ended or broke off."""
        trainer = self.trainer(max_steps=2)
        rows = self.train(trainer)
        with (
            unittest.mock.patch.object(trainer, "_sis_log", side_effect=[None, InterruptedError]),
            self.assertRaises(InterruptedError),
        ):
            trainer.train()
        again = self.train(trainer)
        self.assertEqual(sorted(trainer.sis_client.list_steps(trainer.sis_run)), [0, 1, 2, 3, 4])
        for step, row in zip([0, 1, 3, 4], rows + again[-2:], strict=True):
            totals = trainer.sis_client.get_step(trainer.sis_run, step).totals
            self.assertAlmostEqual(row["sis/d"], totals.mean_d, places=9)
            self.assertEqual(row["sis/missing"], 0)
        self.assertEqual([row["sis/staleness"] for row in again[-2:]], [0, 1])
        self.assertEqual(trainer.sis_client.get_run(trainer.sis_run.id).policy_version, 4)

    def test_truncated_completions_are_masked(self):
        """All of the first rollout. What the head makes is checked once there are tokens."""

        class EndsLater(Watched):
            def training_step(self, *args, **kwargs):
                if self.state.global_step == 2:
                    self.eos_token_ids = self.generation_config.eos_token_id = list(range(2, VOCABULARY, 4))
                return super().training_step(*args, **kwargs)

        class ScaledEndsLater(EndsLater, Scaled):
            pass

        def made(kind):
            return self.trainer(kind, mask_truncated_completions=True, max_completion_length=8)

        trainer = made(EndsLater)
        self.train(trainer)
        steps = [trainer.sis_client.get_step(trainer.sis_run, step).totals for step in range(4)]
        self.assertEqual([totals.scored > 0 for totals in steps], [False, False, True, True])
        self.assertEqual([totals.missing for totals in steps], [0] * 4)
        self.assertLess(steps[2].mean_d, 1e-5)
        scaled = made(ScaledEndsLater)
        with self.assertRaisesRegex(ValueError, "scale or cap"):
            self.train(scaled)
        self.assertEqual(scaled.state.global_step, 2)

    def test_log_probs_that_are_not_of_the_head(self):
        """Of a model that scales its logits after it, and shifted by a position."""

        class Shifted(Watched):
            def _sis_acceptance(self, inputs, hidden, log_probs):
                return super()._sis_acceptance(inputs, hidden.roll(1, dims=1), log_probs)

        for kind in (Scaled, Shifted):
            with self.subTest(kind.__name__), self.assertRaisesRegex(ValueError, "scale or cap"):
                self.train(self.trainer(kind))

    def test_models_that_scale_or_cap_their_logits(self):
        """By each of the settings that TRL's head reads."""
        for kind, changed in (
            ("Qwen3", {}),
            ("Gemma2", {"final_logit_softcapping": 30.0}),
            ("Gemma2", {"final_logit_softcapping": 2.0}),
            ("Cohere", {"logit_scale": 0.5}),
            ("Granite", {"logits_scaling": 8.0}),
            ("HyperCLOVAX", {"logits_scaling": 0.5}),
            ("FalconH1", {"lm_head_multiplier": 0.3}),
        ):
            with self.subTest(kind, **changed):
                trainer = self.trainer(
                    OfOwnLogits, SisConfig(self.server.address), model=tiny(kind, **changed), max_steps=2
                )
                self.train(trainer)
                self.assertGreater(trainer.compared, 1000)
                self.assertLess(trainer.most, 2e-5)

    def test_a_cap_that_no_setting_tells(self):
        """It changes log-probs by some hundredths, which rounding does not."""
        for dtype in (torch.float32, torch.bfloat16):
            with self.subTest(dtype):
                trainer = self.trainer(model=tiny("Gemma2", final_logit_softcapping=30.0).to(dtype))
                # TRL's head has read it.
                trainer.model.config.final_logit_softcapping = None
                with self.assertRaisesRegex(ValueError, "scale or cap") as raised:
                    self.train(trainer)
                self.assertLess(float(re.search(r"are (\S+) nats", str(raised.exception))[1]), 0.1)


def _rank(rank, port, path, address, folder):
    """One of two processes, as a launcher starts them."""
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2", LOCAL_WORLD_SIZE="2")
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)

    class Kept(Watched):
        """Keeps what it evaluated."""

        calls = []

        def _sis_acceptance(self, *args):
            evaluate = self._sis_rollouts.evaluate

            def keep(records, draw, outputs, options, gathered):
                evaluation = evaluate(records, draw=draw, outputs=outputs, options=options, gathered=gathered)
                self.calls.append((draw, records.slices, gathered, options.mask, evaluation.accepted))
                return evaluation

            with unittest.mock.patch.object(self._sis_rollouts, "evaluate", keep):
                return super()._sis_acceptance(*args)

    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    trainer = Kept(
        model=model,
        reward_funcs=reward,
        args=settings(pathlib.Path(folder) / "ranks", max_steps=2, per_device_train_batch_size=4, top_k=20),
        train_dataset=DATASET,
        processing_class=AutoTokenizer.from_pretrained(path, padding_side="left"),
        sis_config=SisConfig(address, run="two-ranks"),
    )
    release = trainer._sis_rollouts.release

    def compare():
        # At the end, before the records go.
        if trainer.state.global_step == 2:
            gathered = [None, None]
            torch.distributed.all_gather_object(gathered, trainer.calls)
            if rank == 0:
                last = [call for calls in gathered for call in calls if call[0] == 1]
                slices = [part for call in last for part in call[1]]
                together = trainer.sis_client.evaluate(
                    trainer.sis_run,
                    slices,
                    draw=1,
                    log_probs=torch.cat([call[2]["log_probs"] for call in last]),
                    sampled_log_probs=torch.cat([call[2]["sampled_log_probs"] for call in last]),
                    options=sis.EvaluateOptions(mask=torch.cat([call[3] for call in last])),
                )
                apart = [bool(bit) for call in last for bit in call[4]]
                torch.save((apart, together.accepted.tolist()), f"{folder}/parts")
            torch.distributed.barrier()
        release()

    trainer._sis_rollouts.release = compare
    trainer.train()
    if rank == 0:
        torch.save([row for row in trainer.state.log_history if "sis/d" in row], f"{folder}/rows")
        torch.save(trainer.sis_run.id, f"{folder}/run")
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    unittest.main()
