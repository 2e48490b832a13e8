"""Sets that TRL's trainer records of itself, before the first update."""

from trainer_case import VOCABULARY, OfAnotherEngine, TrainerCase

from sis.integrations.trl import SisConfig


class TrlOwnSetsTest(TrainerCase):
    def test_sets_of_the_trainer(self):
        """With any engine, tokens count as drawn from the policy before the first update. Only tokens that TRL does not
        mask are recorded."""
        filters = {"top_p": 0.8, "top_k": 5, "beta": 0.1}
        halves = {"num_iterations": 1, "steps_per_generation": 4}
        for changed in ({}, {"bf16": True}, filters, {"mask_truncated_completions": True}, halves):
            with self.subTest(**changed):
                config = SisConfig(self.server.address, sets="trainer")
                trainer = self.trainer(OfAnotherEngine, config, **changed)
                # Makes some responses end, so that lengths differ.
                trainer.eos_token_ids = trainer.generation_config.eos_token_id = list(range(2, VOCABULARY, 24))
                rows = self.train(trainer)
                self.check_logged(trainer, rows)
                self.assertLess(rows[0]["sis/d"], 1e-2 if "bf16" in changed else 1e-5)
                self.assertLess(rows[2]["sis/d"], 1e-2 if "bf16" in changed else 1e-5)
                self.assertGreater(rows[1]["sis/d"], 1e-3)
                self.assertEqual([row["sis/staleness"] for row in rows], [0, 1, 0, 1])
                status = trainer.sis_client.get_run(trainer.sis_run.id)
                self.assertEqual((status.sequences, status.policy_version), (0, 3))
