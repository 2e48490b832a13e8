"""The demonstration on a tiny scale: real server, worker processes and trainer processes, and what
must hold of them."""

import dataclasses
import io
import multiprocessing
import os
import re
import tempfile
import threading
import time
import unittest
import xml.dom.minidom
from unittest import mock

import numpy as np
import torch

import sis
from client.demo import arms, demo, model, task, trainer, warm_up, worker
from client.demo.progress import Progress
from client.demo.server import Server
from client.demo.settings import Settings
from tests.reference import numerics

SERVER = "server/main/sis_server"
TINY = Settings(
    seed=3,
    seeds=2,
    digits=1,
    warm_up_accuracy=0.15,
    warm_up_seconds=10,
    rollouts=3,
    prompts=8,
    group=4,
    updates=4,
    learning_rate=3e-3,
    # Enough for both seeds on a machine that is busy otherwise.
    seconds=150,
)


def reference_accepted(run, records, draw, log_probs, sampled_log_probs, top_k):
    """bool [N], by the numpy implementation of docs/numerics.md."""
    accepted = []
    for index, part in enumerate(records.slices):
        rows = records.rows(index)
        positions = np.arange(part.first_position, part.first_position + part.length, dtype=np.uint32)
        key = numerics.sequence_key(run.config.seed, part.attempt, part.sequence)
        evaluation = numerics.decide_gathered(
            numerics.Records(
                positions, records.sampled_ids[rows], records.sampled_log_probs[rows],
                records.ids[rows], records.log_probs[rows],
            ),
            numerics.Gathered(sampled_log_probs[rows].numpy(), log_probs[rows].numpy()),
            top_k or run.config.top_k,
            numerics.uniforms(key, positions, draw),
        )  # fmt: skip
        accepted.append(evaluation.decisions == numerics.Decision.ACCEPTED)
    return np.concatenate(accepted)


class TaskTest(unittest.TestCase):
    def test_answers_are_the_sums(self):
        addition = task.Addition(3)
        prompts, answers = addition.problems(200, torch.Generator().manual_seed(1))
        for prompt, answer, length in zip(prompts, answers, addition.lengths(answers)):
            left, right = task.text(prompt)[:-1].split("+")
            total = int(left[::-1], 16) + int(right[::-1], 16)
            self.assertEqual(task.text(answer[:length]), f"{total:03X}"[::-1] + ".")

    def test_a_reward_needs_the_whole_answer(self):
        addition = task.Addition(2)
        _, answers = addition.problems(64, torch.Generator().manual_seed(1))
        self.assertEqual(addition.rewards(answers, answers).tolist(), [1.0] * 64)
        due = addition.lengths(answers)
        for place in range(addition.response_length):
            wrong = answers.clone()
            wrong[:, place] = (wrong[:, place] + 1) % task.BASE
            # What follows the stop token does not count.
            self.assertEqual(addition.rewards(wrong, answers).tolist(), (due <= place).float().tolist())


class ModelTest(unittest.TestCase):
    def test_sampling_with_a_cache_records_what_a_pass_over_all_gives(self):
        addition = task.Addition(3)
        torch.manual_seed(1)
        policy = model.of_task(addition)
        generator = torch.Generator().manual_seed(1)
        prompts, _ = addition.problems(16, generator)
        responses, recorded = model.sample(policy, prompts, addition.response_length, generator)
        computed = policy.response_log_probs(prompts, responses).detach()
        self.assertTrue(torch.allclose(recorded, computed, atol=1e-5, rtol=0))


class TrainerTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        # GRPO learns nothing from a policy that is never right.
        addition = task.Addition(TINY.digits)
        torch.manual_seed(1)
        cls.policy = model.of_task(addition)
        warm_up.warm_up(cls.policy, addition, TINY, lambda state: None)

    def setUp(self):
        self.server = Server(SERVER)
        self.addCleanup(self.server.__exit__)
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.checkpoint = os.path.join(self.folder, "checkpoint")
        torch.save(self.policy.state_dict(), self.checkpoint)

    def train(self, run_id, use_sis):
        """Trains in this process, with the worker in another one; returns the trainer.Learned."""
        context = multiprocessing.get_context("spawn")
        for_trainer, for_worker = context.Pipe()
        received, sent = context.Pipe(duplex=False)
        process = context.Process(target=worker.work, args=(self.server.address, run_id, TINY, 1, for_worker))
        process.start()
        for_worker.close()
        try:
            trainer.train(
                self.server.address, run_id, use_sis, TINY, 1, self.checkpoint, self.folder,
                time.monotonic() + 50, for_trainer, sent,
            )  # fmt: skip
        finally:
            for_trainer.close()
            process.join()
        return list(iter(received.recv, None))

    def test_masks_are_those_of_the_numpy_reference(self):
        decided = []
        real = sis.Client.evaluate

        def checked(client, run, records, *, draw, log_probs, sampled_log_probs, top_k=0):
            evaluation = real(
                client, run, records, draw=draw, log_probs=log_probs, sampled_log_probs=sampled_log_probs, top_k=top_k
            )
            expected = reference_accepted(run, records, draw, log_probs, sampled_log_probs, top_k)
            np.testing.assert_array_equal(evaluation.accepted, expected)
            self.assertEqual(evaluation.totals.accepted, evaluation.accepted.sum())
            self.assertEqual(evaluation.totals.scored, len(records))
            # A sweep over k repeats the draw: nothing may be counted again.
            self.assertEqual(evaluation.newly_counted, 0 if top_k else len(records))
            decided.append(evaluation.accepted)
            return evaluation

        with sis.Client(self.server.address) as client:
            run = client.create_run("run", seed=7, vocabulary_size=task.VOCABULARY_SIZE, top_k=TINY.top_k)
            with mock.patch.object(sis.Client, "evaluate", checked):
                learned = self.train("run", use_sis=True)
            self.assertEqual(len(learned), TINY.rollouts)
            self.assertEqual(len(decided), TINY.rollouts * (TINY.updates + TINY.top_k))
            self.assertGreater(np.concatenate(decided).mean(), 0.0)
            self.assertLess(np.concatenate(decided).mean(), 1.0)
            for item in learned:
                for update, totals in enumerate(item.updates):
                    self.assertLessEqual(totals.d_sis, totals.d)
                    self.assertEqual(totals.missing, 0)
                    step = client.get_step(run, item.rollout * TINY.updates + update)
                    self.assertEqual(step.totals, totals)
                residual = [totals.residual_mass for totals in item.by_top_k]
                self.assertEqual(residual, sorted(residual, reverse=True))
                self.assertEqual(item.by_top_k[-1], item.updates[-1])
            status = client.get_run("run")
            self.assertEqual(status.policy_version, TINY.rollouts * TINY.updates)
            self.assertEqual((status.sequences, status.leases), (0, 0))

    def test_the_arms_differ_only_by_the_substitution(self):
        learned = {}
        for name, use_sis in (("with", True), ("without", False)):
            with sis.Client(self.server.address) as client:
                client.create_run(name, seed=7, vocabulary_size=task.VOCABULARY_SIZE, top_k=TINY.top_k)
            learned[name] = self.train(name, use_sis)
            # The first update of a rollout is made with the very weights that generated it.
            for item in learned[name]:
                self.assertLess(item.updates[0].d / item.updates[0].scored, 1e-5)
                self.assertEqual(item.updates[0].rejected, 0)
        self.assertEqual(learned["with"][0].updates[0], learned["without"][0].updates[0])
        self.assertNotEqual(learned["with"][-1].updates[-1], learned["without"][-1].updates[-1])


class DemoTest(unittest.TestCase):
    def test_runs_and_reports(self):
        output = io.StringIO()
        with tempfile.TemporaryDirectory() as folder:
            results = demo.run(TINY, SERVER, folder, Progress(output))
            with open(os.path.join(folder, "report.html"), encoding="utf-8") as file:
                page = file.read()
        self.assertEqual([[len(run) for run in seed] for seed in results.learned], [[3, 3], [3, 3]])
        for seed in results.learned:
            for run in seed:
                for item in run:
                    self.assertLessEqual(measured_total(item, "d_sis"), measured_total(item, "d"))
        counted = dict(line.rsplit(" ", 1) for line in results.metrics)
        # However stale they were.
        series = 'sis_tokens_total{decision="accepted",run="%s",' % arms.run_id(arms.ARMS[1], TINY.seed)
        self.assertEqual(
            sum(float(value) for name, value in counted.items() if name.startswith(series)),
            sum(measured_total(item, "accepted") for item in results.learned[0][1]),
        )
        self.assertNotIn("\r", output.getvalue())
        self.assertIn("95 % interval", demo.summary(results))

        for figure in ("accept-rate", "deviation", "reward", "top-k", "staleness"):
            self.assertIn(f'<figure id="{figure}">', page)
        charts = re.findall(r"<svg xmlns:xlink=.*?</svg>", page, re.DOTALL)
        self.assertEqual(len(charts), 7)
        for chart in charts:
            xml.dom.minidom.parseString(chart)
            self.assertNotIn("nan", chart)
            self.assertIn("<title>GRPO" if "D and D_SIS" not in chart else "<title>D_SIS", chart)
            self.assertIn("var(--first)" if "GRPO+SIS" not in chart else "var(--second)", chart)
        # Nothing but what the page itself holds.
        self.assertIsNone(re.search(r'(src|href)\s*=\s*"(?!#)|url\((?!#)|@import|<script', page))

    def test_stops_when_the_time_is_up(self):
        hurried = dataclasses.replace(TINY, warm_up_seconds=0, seconds=0)
        with tempfile.TemporaryDirectory() as folder:
            with self.assertRaisesRegex(RuntimeError, "before there was a rollout"):
                demo.run(hurried, SERVER, folder, Progress(io.StringIO()))

    def test_a_trainer_that_fails_ends_it(self):
        broken = dataclasses.replace(TINY, warm_up_seconds=0, learning_rate=-1.0)
        before = threading.active_count()
        with tempfile.TemporaryDirectory() as folder:
            with self.assertRaisesRegex(RuntimeError, "trainer of GRPO"):
                demo.run(broken, SERVER, folder, Progress(io.StringIO()))
        self.assertEqual(multiprocessing.active_children(), [])
        self.assertLessEqual(threading.active_count(), before + 1)


def measured_total(item, name):
    return sum(getattr(totals, name) for totals in item.updates)


if __name__ == "__main__":
    unittest.main()
