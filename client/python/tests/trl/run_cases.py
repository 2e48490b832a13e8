"""TRL's trainer and its run on the server: named, resumed, trained again."""

import os
import re
import unittest.mock

from server.testing import live_server
from trainer_case import DATASET, TrainerCase, reward, settings
from transformers import AutoModelForCausalLM

from sis.integrations.trl import SisConfig, SisGRPOTrainer


class TrlRunTest(TrainerCase):
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
            totals = trainer.sis_client.list_steps(trainer.sis_run, draws=[step])[step].totals
            self.assertAlmostEqual(row["sis/d"], totals.mean_d, places=9)
            self.assertEqual(row["sis/missing"], 0)
        self.assertEqual([row["sis/staleness"] for row in again[-2:]], [0, 1])
        self.assertEqual(trainer.sis_client.get_run(trainer.sis_run.id).policy_version, 4)
