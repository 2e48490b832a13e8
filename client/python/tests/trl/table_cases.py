"""The table of tokens in TensorBoard."""

import collections
import os
import unittest.mock

from trainer_case import TrainerCase, Watched, settings

from sis.integrations.trl import SisConfig, SisGRPOTrainer


class TrlTableTest(TrainerCase):
    def test_token_table(self):
        """TensorBoard reads back the server's counts of the trained tokens."""
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
        read = EventAccumulator(folder).Reload()
        steps = trainer.sis_client.list_steps(trainer.sis_run)
        for draw in (1, 3):
            for age in steps[draw].ages:
                rates = {event.step: event.value for event in read.Scalars(f"sis/age_{age.name}/accept_rate")}
                self.assertAlmostEqual(rates[draw + 1], age.accept_rate, 6)
        events = read.Tensors("sis/tokens/text_summary")
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
