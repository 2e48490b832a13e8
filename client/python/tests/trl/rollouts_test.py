"""TRL's trainers with filters and with a rollout_func. Run by tools/rl-test."""

import unittest

import numpy as np
import torch
from trainer_case import TrainerCase, Watched, reward, tiny

import sis
from sis.engines.transformers import TransformersAdapter
from sis.integrations.trl import SisConfig


class RolloutsTest(TrainerCase):
    def test_sampling_support(self):
        """Beside float64: the first of a generation's two updates is of equal policies."""
        for top_p in (0.8, 1.0):
            with self.subTest(top_p=top_p):
                config = SisConfig(self.server.address, top_k=100, mass=0.97)
                trainer = self.of_a_hundred_words(config=config, top_p=top_p)
                # Recorded as a whole, whatever the mass, where that is needed.
                whole = top_p < 1
                self.assertEqual(trainer.sis_run.config.log_prob_encoding, "float32")
                self.assertEqual(trainer.sis_run.config.mass, 0 if whole else 0.97)
                rows = self.check_in_float64(trainer)
                # With equal policies all recorded tokens are accepted.
                accepted = rows[0]["sis/accept_rate"]
                self.assertTrue(accepted == 1 if whole else 0.9 < accepted < 1, accepted)
                self.assertGreater(rows[1]["sis/d"], 1e-3)
                self.assertEqual([row.get("sis/incomplete") for row in rows], [0, 0] if whole else [None] * 2)

    def test_a_support_that_is_longer_than_top_k(self):
        """It is said, and counted; all that fits is renormalised."""

        class Counting(Watched):
            longer = 0

            def watch(self, inputs, decided):
                mask = inputs["completion_mask"].bool()
                # With equal policies log-probs are lower without the filter, by the excluded mass.
                self.longer += int(((decided.log_probs - decided.sampling)[mask] < -1e-5).sum())

        config = SisConfig(self.server.address, top_k=20)
        trainer = self.trainer(
            Counting, config, model=tiny("Qwen3"), max_steps=2, num_iterations=1, top_p=0.8, learning_rate=1e-9
        )
        with self.assertWarnsRegex(RuntimeWarning, r"of \d+ of \d+ positions the 20 recorded tokens.*Record more"):
            rows = self.train(trainer)
        counted = sum(row["sis/incomplete"] for row in rows)
        steps = trainer.sis_client.list_steps(trainer.sis_run, draws=[0, 1])
        scored = steps[0].totals.scored + steps[1].totals.scored
        self.assertTrue(0 < counted < scored, (counted, scored))
        self.assertEqual(trainer.longer, counted)

    def test_rollout_func(self):
        """Two turns of its own, between which the environment speaks."""
        told = [5, 6, 7]

        def rollouts(prompts, trainer):
            adapter = TransformersAdapter(trainer.generation_config)
            made = {name: [] for name in ("prompt_ids", "completion_ids", "logprobs", "env_mask", "sis_records")}
            for prompt in prompts:
                ids = trainer.processing_class(prompt)["input_ids"]
                tokens, mask, records = [], [], []
                for turn in range(2):
                    before = torch.tensor([ids + tokens])
                    output = trainer.model.generate(
                        before, attention_mask=torch.ones_like(before), generation_config=trainer.generation_config,
                        output_scores=True, return_dict_in_generate=True,
                    )  # fmt: skip
                    record = adapter.rows(output, 20)[0].record(20)
                    records.append(record)
                    tokens += record.sampled_ids.tolist() + told * (1 - turn)
                    mask += [1] * len(record.sampled_ids) + [0] * len(told) * (1 - turn)
                row = (ids, tokens, [0.0] * len(tokens), mask, sis.TopK(*map(np.concatenate, zip(*records))))
                for name, value in zip(made, row):
                    made[name].append(value)
            return {**made, "sis_sampling": adapter.sampling}

        def of_the_trainer(prompts, trainer):
            ids = [trainer.processing_class(prompt)["input_ids"] for prompt in prompts]
            completions, log_probs = trainer._generate_single_turn(ids, None, {}, trainer.num_generations)
            return {"prompt_ids": ids, "completion_ids": completions, "logprobs": log_probs}

        for made, masked in ((rollouts, 2 * 8 * len(told)), (of_the_trainer, 0)):
            with self.subTest(made.__name__):
                trainer = self.trainer(
                    rollout_func=made, config=SisConfig(self.server.address), max_completion_length=6, max_steps=2,
                )  # fmt: skip
                fields = set()
                trainer.reward_funcs = [lambda completions, **given: fields.update(given) or reward(completions)]
                rows = self.train(trainer)
                self.check_logged(trainer, rows)
                self.assertLess(rows[0]["sis/d"], 1e-5)
                steps = trainer.sis_client.list_steps(trainer.sis_run, draws=[0, 1])
                self.assertEqual(steps[0].totals.masked + steps[1].totals.masked, masked)
                self.assertFalse({"sis_records", "sis_sampling"} & fields)

        for change, message in (
            (lambda made: made.pop("sis_records"), "no rollout_func returned sis_records"),
            (lambda made: made.pop("sis_sampling"), "but no sis_sampling"),
            (lambda made: made.update(sis_sampling=sis.Sampling("processed", top_p=0.9)), "SisConfig.mass is 0.97: a cut set"),
            (
                lambda made: made.update(sis_records=[sis.TopK(*(a[:-1] for a in one)) for one in made["sis_records"]]),
                r"sis_records\[0\] has \d+ positions",
            ),
        ):

            def changed(prompts, trainer):
                change(made := rollouts(prompts, trainer))
                return made

            with self.subTest(message), self.assertRaisesRegex(ValueError, message):
                config = SisConfig(self.server.address, mass=0.97)
                self.trainer(rollout_func=changed, config=config, max_completion_length=3).train()


if __name__ == "__main__":
    unittest.main()
