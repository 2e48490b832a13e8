"""Models whose logits are more than hidden states times the head."""

import re
import unittest.mock

import torch
from trainer_case import VOCABULARY, TrainerCase, Watched, tiny


class Scaled(Watched):
    """A trainer whose log-probs are not those of hidden states times head, although no setting says so."""

    def _get_per_token_logps_and_entropies(self, *args, **kwargs):
        with unittest.mock.patch.object(self, "temperature", 2.0):
            return super()._get_per_token_logps_and_entropies(*args, **kwargs)


class TrlHeadTest(TrainerCase):
    def test_truncated_completions_are_masked(self):
        """All completions of the first rollout are truncated. The head is checked at the first tokens."""

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
        steps = [trainer.sis_client.list_steps(trainer.sis_run, draws=[step])[step].totals for step in range(4)]
        self.assertEqual([totals.scored > 0 for totals in steps], [False, False, True, True])
        self.assertEqual([totals.missing for totals in steps], [0] * 4)
        self.assertLess(steps[2].mean_d, 1e-5)
        scaled = made(ScaledEndsLater)
        with self.assertRaisesRegex(ValueError, "scale or cap"):
            self.train(scaled)
        self.assertEqual(scaled.state.global_step, 2)

    def test_log_probs_that_are_not_of_the_head(self):
        """Log-probs of a model that scales its logits after the head, and log-probs shifted by a position."""

        class Shifted(Watched):
            def _sis_decided(self, inputs, hidden, log_probs):
                return super()._sis_decided(inputs, hidden.roll(1, dims=1), log_probs)

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
                self.check_in_float64(self.of_a_hundred_words(model=tiny(kind, vocab_size=100, **changed)))

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
