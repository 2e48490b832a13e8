"""The table of tokens in TensorBoard."""

import os
import unittest.mock

from trainer_case import TrainerCase, settings

from sis.integrations.trl import SisConfig, SisGRPOTrainer


class TrlTableTest(TrainerCase):
    def test_token_table(self):
        """In TensorBoard, every so many steps; tracking_test reads all of a table."""
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        folder = str(self.folder / "tables")
        with unittest.mock.patch.dict(os.environ, TENSORBOARD_LOGGING_DIR=folder):
            config = SisConfig(self.server.address, run=self.id(), token_table_steps=2)
            trainer = self.trainer(config=config, report_to=["tensorboard"])
            self.train(trainer)
        read = EventAccumulator(folder).Reload()
        steps = trainer.sis_client.list_steps(trainer.sis_run)
        for draw in (1, 3):
            for age in steps[draw].ages:
                rates = {event.step: event.value for event in read.Scalars(f"sis/age_{age.name}/accept_rate")}
                self.assertAlmostEqual(rates[draw + 1], age.accept_rate, 6)
        events = read.Tensors("sis/tokens/text_summary")
        self.assertEqual([event.step for event in events], [2, 4])
        lines = events[-1].tensor_proto.string_val[0].decode().split("\n")[2:]
        tokens = trainer.sis_client.inspect_run(trainer.sis_run).tokens
        self.assertEqual([int(line.split(" | ")[0][2:]) for line in lines], [one.token_id for one in tokens])
        for line, one in zip(lines, tokens):
            text = trainer.processing_class.decode([one.token_id])
            self.assertTrue(not text.isalpha() or f" | {text} | " in line, text)
        for steps, message in ((2, "token_table_steps is 2, but report_to is .*add wandb"), (-1, "must be 0")):
            with self.subTest(steps), self.assertRaisesRegex(ValueError, message):
                SisGRPOTrainer(args=settings(folder), sis_config=SisConfig(token_table_steps=steps))
