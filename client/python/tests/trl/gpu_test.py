"""TRL with model, rollouts and losses on a GPU: run by tools/rl-test. Skips itself where there is none."""

import unittest

import torch
from trainer_case import TrainerCase, tiny

from sis.integrations.trl import SisConfig


@unittest.skipUnless(torch.cuda.is_available(), "no GPU")
class GpuTest(TrainerCase):
    def trainer_there(self, **changed):
        """Four updates of two generations."""
        model = tiny("Qwen3", vocab_size=100, hidden_size=256, intermediate_size=512, num_hidden_layers=4,
            num_attention_heads=8, num_key_value_heads=4, initializer_range=0.15)  # fmt: skip
        config = SisConfig(self.server.address, top_k=100, mass=0.97)
        return self.of_a_hundred_words(
            config=config, model=model, max_steps=4, learning_rate=1e-4, use_cpu=False, **changed
        )

    def test_float32(self):
        for top_p in (1.0, 0.8):
            with self.subTest(top_p=top_p):
                trainer = self.trainer_there(top_p=top_p)
                self.check_in_float64(trainer)
                self.assertEqual(next(trainer.model.parameters()).device.type, "cuda")

    def test_bfloat16(self):
        """Autocast rounds both policies, each in its own shapes."""
        trainer = self.trainer_there(bf16=True)
        rows = self.train(trainer)
        self.check_logged(trainer, rows)
        self.assertLess(trainer.most, 0.1)
        self.assertTrue(0 < rows[0]["sis/d"] < 0.1)
        self.assertGreater(rows[0]["sis/accept_rate"], 0.3)


if __name__ == "__main__":
    unittest.main(verbosity=2)
