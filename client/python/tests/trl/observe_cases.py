"""While SIS only observes, TRL trains the same as without SIS."""

import torch
from datasets import Dataset
from server.testing.live_server import LiveServer
from trainer_case import MIB, TrainerCase, reward, settings, vllm_on_cpus
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOTrainer

from sis.integrations.trl import SisConfig, SisGRPOTrainer

WAYS = {
    "transformers": {},
    "filters and a reference model": {"top_p": 0.9, "beta": 0.1},
    "one update per rollout": {"num_iterations": 1, "steps_per_generation": 2, "gradient_accumulation_steps": 2},
    "TRL's correction of vLLM": {"use_vllm": True, "vllm_mode": "colocate", "vllm_gpu_memory_utilization": 0.1},
}


class TrlObserveTest(TrainerCase):
    def trained(self, kind, changed, **more):
        """The trainer, and the losses and weights of a training from the same seeds."""
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_pretrained(self.path, dtype=torch.float32)
        trainer = kind(
            model=model, reward_funcs=reward, args=settings(self.folder / "out", **changed),
            train_dataset=Dataset.from_list([{"prompt": f"tokens {number}"} for number in range(64)]),
            processing_class=AutoTokenizer.from_pretrained(self.path, padding_side="left"), **more,
        )  # fmt: skip
        trainer.train()
        rows = [row for row in trainer.state.log_history if "loss" in row]
        return trainer, rows, [row["loss"] for row in rows], [value.detach().clone() for value in model.parameters()]

    def test_the_training_is_the_same_bit_for_bit(self):
        for name, changed in WAYS.items():
            with self.subTest(name), vllm_on_cpus():
                _, _, losses, weights = self.trained(GRPOTrainer, changed)
                config = SisConfig(self.server.address, observe=True)
                trainer, rows, ours, own = self.trained(SisGRPOTrainer, changed, sis_config=config)
                self.addCleanup(trainer.sis_client.close)
                self.assertEqual(ours, losses)
                self.assertTrue(all(map(torch.equal, own, weights)))
                self.check_logged(trainer, rows)
                for row in rows:
                    self.assertAlmostEqual(row["sis/sis/d"], row["sis/d_sis"], places=6)
                    self.assertLessEqual(row["sis/sis_expected/d"], row["sis/d"] + 1e-9)
                    self.assertGreaterEqual(row["sis/damped_truncation/effective"], 0)
                if changed.get("num_iterations") != 1:
                    # After an update there is something to correct.
                    self.assertGreater(rows[1]["sis/soft_acceptance/touched"], 0)
                    self.assertGreater(rows[1]["sis/tis/touched"] + rows[1]["sis/icepop/zeroed"], 0)

    def test_without_a_server_too(self):
        server = LiveServer(cache_bytes=16 * MIB)
        self.addCleanup(server.kill)
        _, _, losses, weights = self.trained(GRPOTrainer, {})

        class Killed(SisGRPOTrainer):
            def train(self):
                server.kill()
                return super().train()

        trainer, rows, ours, own = self.trained(Killed, {}, sis_config=SisConfig(server.address, observe=True))
        self.addCleanup(trainer.sis_client.close)
        self.assertEqual(ours, losses)
        self.assertTrue(all(map(torch.equal, own, weights)))
        self.assertEqual([row["sis/missing"] for row in rows], [1] * 4)
