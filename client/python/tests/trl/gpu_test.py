"""TRL with model, rollouts and losses on a GPU: run by tools/rl-test. Skips itself where there is none."""

import unittest

import torch
from trainer_case import InFloat64, TrainerCase, hundred_words, tiny

from sis.integrations.trl import SisConfig


@unittest.skipUnless(torch.cuda.is_available(), "no GPU")
class GpuTest(TrainerCase):
    def trained(self, **changed):
        """A trainer after four updates of two generations, and what it logged."""
        model = tiny("Qwen3", vocab_size=100, hidden_size=256, intermediate_size=512, num_hidden_layers=4,
            num_attention_heads=8, num_key_value_heads=4, initializer_range=0.15)  # fmt: skip
        trainer = self.trainer(
            InFloat64, SisConfig(self.server.address, top_k=100, mass=0.97), model=model,
            processing_class=hundred_words(), prompts=[f"w{i} w5" for i in range(64)], loss_type="cispo",
            epsilon_high=InFloat64.limit, learning_rate=1e-4, use_cpu=False, **changed,
        )  # fmt: skip
        rows = self.train(trainer)
        self.check_logged(trainer, rows)
        self.assertEqual(next(trainer.model.parameters()).device.type, "cuda")
        self.assertEqual([row["sis/missing"] for row in rows], [0] * 4)
        self.assertEqual([row["sis/envelope_violations"] for row in rows], [0] * 4)
        self.assertGreater(trainer.compared, 100)
        print(
            f"{self.id()}: of {trainer.compared} tokens gradients differ from float64 by {trainer.most:.2g} of the"
            f" largest, acceptance probabilities by {trainer.most_acceptance:.2g};"
            f" d {[round(row['sis/d'], 6) for row in rows]}, accepted {[round(row['sis/accept_rate'], 3) for row in rows]}"
        )
        return trainer, rows

    def test_float32(self):
        for top_p in (1.0, 0.8):
            with self.subTest(top_p=top_p):
                trainer, rows = self.trained(top_p=top_p)
                self.assertLess(trainer.most, 1e-4)
                self.assertLess(trainer.most_acceptance, 1e-3)
                self.assertAlmostEqual(trainer.mean_ratios[0], 1, places=4)
                self.assertLess(rows[0]["sis/d"], 1e-5)
                self.assertGreater(rows[1]["sis/d"], rows[0]["sis/d"])

    def test_bfloat16(self):
        """Autocast rounds both policies, each in its own shapes."""
        trainer, rows = self.trained(bf16=True)
        self.assertLess(trainer.most, 0.1)
        self.assertGreater(rows[0]["sis/d"], 0)
        self.assertLess(rows[0]["sis/d"], 0.1)
        self.assertGreater(rows[0]["sis/accept_rate"], 0.3)


if __name__ == "__main__":
    unittest.main(verbosity=2)
