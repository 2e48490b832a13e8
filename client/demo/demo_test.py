"""The demonstration on a tiny scale: real server, worker processes and trainer processes, and what
must hold of them."""

import dataclasses
import html
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

import sis
from client.demo import arms, demo, results, trainer, worker
from client.demo.progress import Progress
from client.demo.server import Server
from client.demo.settings import Settings
from client.study.miniature import Miniature
from client.study.report.intervals import Difference
from tests.reference import numerics

SERVER = "server/main/sis_server"
TINY = Settings(
    seed=3,
    seeds=2,
    digits=1,
    warm_up_accuracy=0.15,
    rollouts=3,
    prompts=8,
    group=4,
    updates=4,
    learning_rate=3e-3,
    # Enough for both seeds on a machine that is busy otherwise.
    seconds=150,
)


def reference_accepted(run, records, draw, log_probs, sampled_log_probs):
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
            numerics.Gathered(sampled_log_probs[rows], log_probs[rows]),
            run.config.top_k,
            numerics.uniforms(key, positions, draw),
        )  # fmt: skip
        accepted.append(evaluation.decisions == numerics.Decision.ACCEPTED)
    return np.concatenate(accepted)


class MiniatureTest(unittest.TestCase):
    def setUp(self):
        self.miniature = Miniature(3)
        self.prompts = self.miniature.prompts(1, 200)

    def answers(self):
        """Lists of tokens, worked out from the prompts."""
        found = []
        for prompt in self.prompts:
            left, right = "".join(Miniature.SYMBOLS[token] for token in prompt)[:-1].split("+")
            total = int(left[::-1], 16) + int(right[::-1], 16)
            found.append([Miniature.SYMBOLS.index(symbol) for symbol in f"{total:03X}"[::-1] + "."])
        return found

    def test_a_reward_is_for_the_whole_sum_and_nothing_else(self):
        answers = self.answers()
        responses = np.full((200, self.miniature.response_length), Miniature.STOP, np.int32)
        for response, answer in zip(responses, answers):
            response[: len(answer)] = answer
        due = np.array([len(answer) for answer in answers])
        self.assertEqual(self.miniature.rewards(1, 200, responses).tolist(), [1.0] * 200)
        for place in range(self.miniature.response_length):
            wrong = responses.copy()
            wrong[:, place] = (wrong[:, place] + 1) % 16
            # What follows the stop does not count.
            self.assertEqual(self.miniature.rewards(1, 200, wrong).tolist(), (due <= place).astype(float).tolist())

    def test_only_an_engine_of_few_bits_records_something_else_than_a_pass_gives(self):
        parameters = Miniature(3).warm_up(1, 0.01)
        prompts = np.repeat(self.prompts[:16], 4, axis=0)
        for bits, same in ((0, True), (5, False)):
            responses, lengths, recorded = self.miniature.generate(parameters, bits, 1, 16, 4, 7)
            generated = np.arange(self.miniature.response_length) < lengths[:, None]
            computed = self.miniature.log_probs(parameters, prompts, responses)
            self.assertEqual(np.array_equal(recorded[generated], computed[generated]), same)
            np.testing.assert_allclose(np.exp(recorded).sum(axis=2), 1.0, atol=1e-5)

    def test_a_step_goes_down_the_gradient(self):
        parameters = self.miniature.warm_up(1, 0.01)
        responses, _, _ = self.miniature.generate(parameters, 0, 1, 16, 1, 7)
        mean = []
        for _ in range(5):
            log_probs = self.miniature.log_probs(parameters, self.prompts[:16], responses)
            chosen = responses[:, :, None]
            mean.append(np.take_along_axis(log_probs, chosen, 2).mean())
            d_logits = np.exp(log_probs)
            np.put_along_axis(d_logits, chosen, np.take_along_axis(d_logits, chosen, 2) - 1, 2)
            self.miniature.step(parameters, d_logits, 1e-3)
        self.assertEqual(mean, sorted(mean))
        self.assertGreater(mean[-1], mean[0] + 0.01)


class WordsTest(unittest.TestCase):
    def test_they_say_what_the_interval_says(self):
        base, arm, *_ = arms.SAME_ENGINE.arms
        for mean, half, words in (
            (0.03, 0.02, "GRPO + SIS is higher than GRPO: +0.030, 95% interval +0.010 to +0.050."),
            (-0.03, 0.02, "GRPO + SIS is lower than GRPO: -0.030, 95% interval -0.050 to -0.010."),
            (0.03, 0.04, "GRPO + SIS can't be told apart from GRPO: +0.030, 95% interval -0.010 to +0.070."),
            (0.0, 0.0, "GRPO + SIS can't be told apart from GRPO: +0.000, 95% interval +0.000 to +0.000."),
            (0.03, float("nan"), "GRPO + SIS less GRPO: +0.030; one seed can't tell that from chance."),
        ):
            self.assertEqual(results.verdict(Difference(mean, half, 8), arm, base), words)

    def test_panels_are_compared_with_what_people_do_without(self):
        names = [(panel, arm.name, base.name) for panel, arm, base in results.comparisons()]
        self.assertEqual(len(names), 7)
        for arm in ("GRPO + SIS", "soft acceptance"):
            for panel in arms.PANELS:
                self.assertIn((panel.name, arm, "GRPO"), names)
            self.assertIn((arms.ROUNDED.name, arm, "GRPO recomputed"), names)


class TrainerTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        # GRPO learns nothing from a policy that is never right.
        cls.start = Miniature(TINY.digits).warm_up(1, TINY.warm_up_accuracy)

    def setUp(self):
        self.server = Server(SERVER)
        self.addCleanup(self.server.__exit__)
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.checkpoint = os.path.join(self.folder, "checkpoint.npy")
        np.save(self.checkpoint, self.start)

    def train(self, arm):
        """Trains in this process, with the worker in another one, in a run called by the arm's
        slug; returns it, and the trainer.Learned."""
        with sis.Client(self.server.address) as client:
            vocabulary = Miniature(TINY.digits).vocabulary_size
            run = client.create_run(arm.slug, seed=7, vocabulary_size=vocabulary, top_k=TINY.top_k)
        context = multiprocessing.get_context("spawn")
        for_trainer, for_worker = context.Pipe()
        received, sent = context.Pipe(duplex=False)
        process = context.Process(target=worker.work, args=(self.server.address, run.id, arm.bits, TINY, for_worker))
        process.start()
        for_worker.close()
        try:
            trainer.train(
                self.server.address, run.id, arm, TINY, 1, self.checkpoint, self.folder,
                time.monotonic() + 50, for_trainer, sent,
            )  # fmt: skip
        finally:
            for_trainer.close()
            process.join()
        return run, list(iter(received.recv, None))

    def test_decisions_are_those_of_the_numpy_reference_and_make_the_coefficients(self):
        decided = []
        real = sis.Client.evaluate

        def checked(client, run, records, *, draw, log_probs, sampled_log_probs, options, **others):
            evaluation = real(
                client, run, records, draw=draw, log_probs=log_probs, sampled_log_probs=sampled_log_probs,
                options=options, **others
            )  # fmt: skip
            expected = reference_accepted(run, records, draw, log_probs, sampled_log_probs)
            np.testing.assert_array_equal(evaluation.accepted, expected)
            self.assertEqual(evaluation.totals.accepted, evaluation.accepted.sum())
            self.assertEqual(evaluation.totals.scored, len(records))
            self.assertEqual(evaluation.newly_counted, len(records))
            # The one line: old_logp = where(accepted, logp.detach(), old_logp).
            old_log_probs = np.where(evaluation.accepted, sampled_log_probs, records.sampled_log_probs)
            by_hand = trainer.clipped(np.exp(sampled_log_probs - old_log_probs), options.advantages)
            np.testing.assert_allclose(evaluation.coefficients, by_hand, rtol=1e-6)
            decided.append(evaluation.accepted)
            return evaluation

        with mock.patch.object(sis.Client, "evaluate", checked):
            run, learned = self.train(arms.SAME_ENGINE.arms[1])
        self.assertEqual(len(learned), TINY.rollouts)
        self.assertEqual(len(decided), TINY.rollouts * TINY.updates)
        self.assertGreater(np.concatenate(decided).mean(), 0.0)
        self.assertLess(np.concatenate(decided).mean(), 1.0)
        with sis.Client(self.server.address) as client:
            for item in learned:
                for update, totals in enumerate(item.updates):
                    self.assertLessEqual(totals.d_sis, totals.d)
                    self.assertEqual(totals.missing, 0)
                    step = client.get_step(run, item.rollout * TINY.updates + update)
                    self.assertEqual(step.totals, totals)
                residual = [point.residual_mass for point in item.by_top_k]
                self.assertEqual(residual, sorted(residual, reverse=True))
                self.assertAlmostEqual(residual[-1], item.updates[-1].residual_mass, places=6)
            status = client.get_run(run.id)
            self.assertEqual(status.policy_version, TINY.rollouts * TINY.updates)
            self.assertEqual((status.sequences, status.leases), (0, 0))

    def test_the_arms_of_a_panel_differ_by_their_rule_alone(self):
        learned = {arm.name: self.train(arm)[1] for arm in arms.SAME_ENGINE.arms}
        for items in learned.values():
            # The first update of a rollout is made with the very weights that generated it.
            for item in items:
                self.assertEqual((item.updates[0].d, item.updates[0].rejected), (0.0, 0))
        self.assertEqual(len({str(items[0].updates[0]) for items in learned.values()}), 1)
        self.assertEqual(len({str(items[-1].updates[-1]) for items in learned.values()}), len(learned))

    def test_of_a_rounded_worker_only_recomputed_log_probs_begin_with_ratios_of_1(self):
        plain, *_, recomputed = arms.ROUNDED.arms
        for arm, begins_with_1 in ((plain, False), (recomputed, True)):
            ratios = []
            real = trainer.clipped
            with mock.patch.object(trainer, "clipped", lambda *given: ratios.append(given[0]) or real(*given)):
                _, learned = self.train(arm)
            for rollout in range(TINY.rollouts):
                self.assertEqual(bool((ratios[rollout * TINY.updates] == 1).all()), begins_with_1)
                # The service sees what the worker did, whatever the trainer makes of it.
                self.assertGreater(learned[rollout].updates[0].mean_d, 0.01)


class DemoTest(unittest.TestCase):
    def test_runs_and_reports(self):
        output = io.StringIO()
        with tempfile.TemporaryDirectory() as folder:
            measured = demo.run(TINY, SERVER, folder, Progress(output))
            with open(os.path.join(folder, "report.html"), encoding="utf-8") as file:
                page = file.read()
        self.assertEqual([[len(run) for run in seed] for seed in measured.learned], [[TINY.rollouts] * len(arms.ARMS)] * 2)
        for seed in measured.learned:
            for run in seed:
                for item in run:
                    self.assertLessEqual(measured_total(item, "d_sis"), measured_total(item, "d"))
        counted = dict(line.rsplit(" ", 1) for line in measured.metrics)
        # However stale they were.
        shown = arms.ROUNDED.arms[1]
        series = 'sis_tokens_total{decision="accepted",run="%s",' % arms.run_id(shown, TINY.seed)
        self.assertEqual(
            sum(float(value) for name, value in counted.items() if name.startswith(series)),
            sum(measured_total(item, "accepted") for item in measured.learned[0][arms.ARMS.index(shown)]),
        )
        self.assertNotIn("\r", output.getvalue())
        self.assertIn("less GRPO in thousandths: GRPO + SIS", output.getvalue())
        sentences = [sentence for panel in results.verdicts(measured).values() for sentence in panel]
        self.assertEqual(len(sentences), len(results.comparisons()))
        for sentence in sentences:
            self.assertIn("95% interval", sentence)
            self.assertIn(sentence, demo.summary(measured))
            self.assertIn(html.escape(sentence), page)

        for figure in ("differences", "reward", "accept-rate", "deviation", "top-k", "staleness"):
            self.assertIn(f'<figure id="{figure}">', page)
        charts = re.findall(r"<svg xmlns:xlink=.*?</svg>", page, re.DOTALL)
        self.assertEqual(len(charts), 1 + 5 * len(arms.PANELS))
        for chart in charts:
            xml.dom.minidom.parseString(chart)
            self.assertNotIn("nan", chart)
            self.assertIn("<title>soft acceptance", chart)
            self.assertEqual("<title>GRPO recomputed" in chart, arms.ROUNDED.name in chart)
            self.assertIn("var(--third)", chart)
        # Nothing but what the page itself holds.
        self.assertIsNone(re.search(r'(src|href)\s*=\s*"(?!#)|url\((?!#)|@import|<script', page))

    def test_stops_when_the_time_is_up(self):
        hurried = dataclasses.replace(TINY, warm_up_accuracy=0.0, seconds=0)
        with tempfile.TemporaryDirectory() as folder:
            with self.assertRaisesRegex(RuntimeError, "before there was a rollout"):
                demo.run(hurried, SERVER, folder, Progress(io.StringIO()))

    def test_a_trainer_that_fails_ends_it(self):
        broken = dataclasses.replace(TINY, warm_up_accuracy=0.0, group=0)
        before = threading.active_count()
        with tempfile.TemporaryDirectory() as folder:
            with self.assertRaisesRegex(RuntimeError, "trainer of addition-"):
                demo.run(broken, SERVER, folder, Progress(io.StringIO()))
        self.assertEqual(multiprocessing.active_children(), [])
        self.assertLessEqual(threading.active_count(), before + 1)


def measured_total(item, name):
    return sum(getattr(totals, name) for totals in item.updates)


if __name__ == "__main__":
    unittest.main()
