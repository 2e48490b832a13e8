"""The demonstration on a tiny scale, with a real server."""

import contextlib
import dataclasses
import io
import os
import pathlib
import re
import tempfile
import threading
import unittest
import xml.dom.minidom
from unittest import mock

import numpy as np
import torch

import sis
from client.demo import ages, demo, trainer
from client.demo.progress import Progress

os.environ["PATH"] = f"{pathlib.Path('server/main').resolve()}{os.pathsep}{os.environ['PATH']}"

SETTINGS = trainer.Settings(accuracy=0.15, rollouts=12, prompts=16, updates=4, learning_rate=1e-3)
TINY = trainer.Settings(accuracy=0.1, rollouts=2, prompts=4, updates=2)


class TrainerTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        torch.set_num_threads(1)
        cls.start = trainer.warmed_up(SETTINGS, 1)
        cls.server = cls.enterClassContext(sis.local_server())

    def train(self, arm, settings=SETTINGS, seed=7):
        name = f"{self.id().rpartition('.')[2]}-{arm}-{settings.bits}-{settings.rollouts}"[:120]
        return name, trainer.train(self.server.address, name, arm, seed, settings, self.start)

    def test_the_service_has_what_the_trainer_measured(self):
        name, measured = self.train("sis")
        self.assertEqual([rollout.number for rollout in measured], list(range(12)))
        with sis.Client(self.server.address) as client:
            status = client.get_run(name)
            steps = client.list_steps(status.run)
        for rollout in measured:
            for update, totals in enumerate(rollout.updates):
                self.assertLessEqual(totals.d_sis, totals.d)
                self.assertEqual(totals.missing, 0)
                self.assertEqual(steps[rollout.number * 4 + update].totals, totals)
        self.assertEqual(status.policy_version, 48)
        self.assertEqual(status.sequences, 0)

    def test_without_rounding_the_first_update_of_a_rollout_is_on_policy(self):
        exact = dataclasses.replace(SETTINGS, bits=0, rollouts=3)
        for arm in trainer.ARMS:
            _, measured = self.train(arm, exact)
            for rollout in measured:
                self.assertLess(rollout.updates[0].mean_d, 1e-6)
                self.assertGreater(rollout.updates[-1].mean_d, 1e-4)
        _, measured = self.train("sis", dataclasses.replace(SETTINGS, rollouts=3))
        for rollout in measured:
            self.assertGreater(rollout.updates[0].mean_d, 1e-3)

    def test_the_same_seed_trains_the_same(self):
        short = dataclasses.replace(SETTINGS, rollouts=3)
        self.assertEqual(self.train("damped", short)[1], trainer.train(self.server.address, "again", "damped", 7, short, self.start))

    def test_arms_differ_after_the_first_update(self):
        measured = {arm: self.train(arm, dataclasses.replace(SETTINGS, rollouts=2))[1] for arm in trainer.ARMS}
        self.assertEqual(len({str(rollouts[0].updates[0]) for rollouts in measured.values()}), 1)
        self.assertEqual(len({str(rollouts[-1].updates[-1]) for rollouts in measured.values()}), len(trainer.ARMS))

    def test_it_learns(self):
        _, measured = self.train("damped", trainer.Settings(rollouts=20), seed=1)
        rewards = [rollout.reward for rollout in measured]
        self.assertGreater(np.mean(rewards[-4:]), np.mean(rewards[:4]) + 0.15)


class RewardTest(unittest.TestCase):
    def test_only_the_whole_answer_counts(self):
        stop = trainer.STOP
        # 5 + 8 = 13, written 3 1; 2 + 2 = 4.
        answers = torch.tensor([[3, 1, stop]] * 5 + [[4, stop, stop]] * 2)
        responses = torch.tensor(
            [[3, 1, stop], [3, 2, stop], [3, stop, 1], [3, 1, 0], [stop, 3, 1], [4, stop, 7], [4, 0, stop]]
        )
        self.assertEqual(trainer.rewards(responses, answers).tolist(), [1, 0, 0, 0, 0, 1, 0])
        # All stopped earlier than the longest answer does.
        self.assertEqual(trainer.rewards(torch.tensor([[4, stop]]), answers[-1:]).tolist(), [1])


class DemoTest(unittest.TestCase):
    def run_demo(self):
        said = io.StringIO()
        with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(said):
            found = demo.run(TINY, 3, pathlib.Path(folder), Progress(said))
            page = (pathlib.Path(folder) / "report.html").read_text(encoding="utf-8")
        return found, page, said.getvalue()

    def test_runs_and_reports(self):
        found, page, said = self.run_demo()
        self.assertEqual({arm: list(runs) for arm, runs in found.items()}, dict.fromkeys(trainer.ARMS.values(), [3, 4]))
        for arm, runs in found.items():
            self.assertEqual({len(curve) for run in runs.values() for curve in run}, {2})
            self.assertRegex(said, rf"(?m)^{arm} +0\.\d+ +0\.\d+ +0\.\d+, 0\.\d+ +\d+\.\d% +0\.\d+ +0\.\d+$")
            self.assertIn(f"<td>{arm}</td>", page)
        self.assertRegex(said, r"sisctl web --open --server=127.0.0.1:\d+\n")
        chart, = re.findall(r"<svg .*?</svg>", page, re.DOTALL)
        xml.dom.minidom.parseString(chart)
        self.assertNotIn("nan", chart)
        # The page needs no other file.
        outside = r'(src|href)\s*=\s*"(?!#|http://www.w3.org)|url\((?!#)|@import|<script'
        self.assertIsNone(re.search(outside, page))

    def test_a_training_that_fails_ends_it(self):
        before = threading.active_count()
        with mock.patch.object(trainer, "_update", side_effect=RuntimeError("it broke")):
            with self.assertRaisesRegex(RuntimeError, "it broke"):
                self.run_demo()
        self.assertLessEqual(threading.active_count(), before + 1)


class AgesTest(unittest.TestCase):
    def test_trains_with_the_advised_limit(self):
        settings = dataclasses.replace(
            ages.SETTINGS, accuracy=0.1, rollouts=16, prompts=8, updates=8, learning_rate=1e-2
        )
        said = io.StringIO()
        with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(said):
            found = ages.run(settings, 3, 1, pathlib.Path(folder), Progress(said))
        (advised,) = re.findall(r"Seed 3: At age .* max_staleness (\d) would leave out", said.getvalue())
        _, without, limited, dropping = (runs[3] for runs in found.values())
        # Until then no token is older.
        first = int(advised) + 1
        for curves in (limited, dropping):
            self.assertEqual(curves.d[:first], without.d[:first])
        # Whether older tokens are dropped has no effect before the update that would use them.
        self.assertEqual(limited.d[first], dropping.d[first])
        self.assertNotEqual(limited.d[first], without.d[first])
        self.assertNotEqual(limited.d[first + 1], dropping.d[first + 1])


if __name__ == "__main__":
    unittest.main()
