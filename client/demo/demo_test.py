"""The demonstration on a tiny scale, with a real server, and what must hold of it."""

import contextlib
import html
import io
import os
import pathlib
import re
import tempfile
import threading
import time
import unittest
import xml.dom.minidom
from unittest import mock

import numpy as np

import sis
from client.demo import demo, trainer
from client.study import miniature
from client.study.runs import design
from client.study.runs.program import Progress
from client.study.study import Runs
from tests.reference import numerics

os.environ["PATH"] = f"{pathlib.Path('server/main').resolve()}{os.pathsep}{os.environ['PATH']}"

START = {"digits": 1, "accuracy": 0.15}
# Twelve rollouts: a point of the study's curve each.
CELL = {
    "prompts": 4, "updates": 4, "rollouts": 12, "learning_rate": 3e-3, "encoding": "12bit",
}  # fmt: skip
ARMS = ("grpo", "grpo+sampled", "soft_acceptance+sampled")


def tiny(cells):
    """The design on a tiny scale."""
    plan = design.read(demo.CELLS)
    plan.starts["skill"].update(digits="1", accuracy="0.15")
    for cell in plan.cells.values():
        cell.settings.update(prompts="4", updates="4", rollouts="3", learning_rate="3e-3")
        cell.arms = dict.fromkeys(cell.arms, 2)
    plan.cells = {name: plan.cells[name] for name in cells or plan.cells}
    return plan


def reference_accepted(run, records, draw, log_probs, sampled_log_probs):
    """bool [N], by the numpy implementation of docs/numerics.md."""
    accepted = []
    for index, part in enumerate(records.slices):
        rows = records.rows(index)
        positions = part.first_position + np.arange(part.length, dtype=np.uint32)
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


class TrainerTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        # GRPO learns nothing from a policy that is never right.
        cls.start = miniature.warm_up(START, 1)
        cls.server = sis.local_server()
        cls.addClassCleanup(cls.server.close)

    def train(self, arm, cell=CELL):
        name = f"{self.id().rpartition('.')[2][:100]}-{arm.replace('+', '-')}-{len(cell)}"
        return name, trainer.train(
            self.server.address, name, START, {**cell, "arm": arm}, 7, self.start
        )

    def test_decisions_are_those_of_the_numpy_reference_and_make_the_coefficients(self):
        decided = []
        real = sis.Client.evaluate

        def checked(client, run, records, *, draw, log_probs, sampled_log_probs, options, **others):
            evaluation = real(
                client, run, records, draw=draw, log_probs=log_probs,
                sampled_log_probs=sampled_log_probs, options=options, **others
            )  # fmt: skip
            expected = reference_accepted(run, records, draw, log_probs, sampled_log_probs)
            np.testing.assert_array_equal(evaluation.accepted, expected)
            self.assertEqual(evaluation.totals.accepted, evaluation.accepted.sum())
            self.assertEqual(evaluation.totals.scored, len(records))
            self.assertEqual(evaluation.newly_counted, len(records))
            # The one line: old_logp = where(accepted, logp.detach(), old_logp).
            recorded = records.sampled_log_probs
            old_log_probs = np.where(evaluation.accepted, sampled_log_probs, recorded)
            by_hand = trainer.clipped(np.exp(sampled_log_probs - old_log_probs), options.advantages)
            np.testing.assert_allclose(evaluation.coefficients, by_hand, rtol=1e-6)
            decided.append(evaluation.accepted)
            return evaluation

        with mock.patch.object(sis.Client, "evaluate", checked):
            name, learned = self.train("grpo+sampled")
        self.assertEqual((len(learned), len(decided)), (12, 48))
        self.assertGreater(np.concatenate(decided).mean(), 0.0)
        self.assertLess(np.concatenate(decided).mean(), 1.0)
        with sis.Client(self.server.address) as client:
            status = client.get_run(name)
            steps = client.list_steps(status.run)
            for item in learned:
                for update, totals in enumerate(item.updates):
                    self.assertLessEqual(totals.d_sis, totals.d)
                    self.assertEqual(totals.missing, 0)
                    self.assertEqual(steps[item.rollout * 4 + update].totals, totals)
                residual = [point.residual_mass for point in item.by_top_k]
                self.assertEqual(residual, sorted(residual, reverse=True))
                self.assertAlmostEqual(residual[-1], item.updates[-1].residual_mass, places=6)
            self.assertEqual(status.policy_version, 48)
            self.assertEqual((status.sequences, status.leases), (0, 0))

    def test_a_service_trains_as_the_studys_kernels_do(self):
        for arm in ARMS[1:]:
            _, learned = self.train(arm)
            by_kernels = miniature.train(START, {**CELL, "arm": arm}, 7, self.start)
            self.assertEqual([item.reward for item in learned], by_kernels.curve.tolist())
            totals = sum((update for item in learned for update in item.updates), sis.Totals())
            self.assertAlmostEqual(totals.accept_rate, by_kernels.values["accept_rate"], places=12)

    def test_what_the_generator_writes_in_place_trains_alike(self):
        in_place = []
        real = sis.client.Client.append_many

        def append_many(client, run, entries, **others):
            segment, = client._segments
            for entry in entries:
                if isinstance(entry, sis.Block):
                    in_place.append(segment.refer_all(entry[3:7]) is not None)
            return real(client, run, entries, **others)

        _, travelled = self.train(ARMS[1])
        shared = sis.local_server(shared_memory_bytes=64 << 20)
        self.addCleanup(shared.close)
        with mock.patch.object(type(self), "server", shared), mock.patch.object(sis.Client, "append_many", append_many):
            _, learned = self.train(ARMS[1])
        self.assertEqual(learned, travelled)
        self.assertEqual(set(in_place), {True})

    def test_arms_differ_by_their_rule_alone(self):
        learned = {arm: self.train(arm)[1] for arm in ARMS}
        for items in learned.values():
            # The first update of a rollout is made with the very weights that generated it.
            for item in items:
                self.assertEqual(item.updates[0].d, 0.0)
                # By 12 bits the envelope is a little above 1.
                self.assertLess(item.updates[0].rejected, 3)
        self.assertEqual(len({str(items[0].updates[0]) for items in learned.values()}), 1)
        self.assertEqual(len({str(items[-1].updates[-1]) for items in learned.values()}), len(ARMS))

    def test_of_an_engine_of_5_bits_only_recomputed_log_probs_begin_with_ratios_of_1(self):
        for recomputed in ({}, {"recomputed": "true"}):
            with mock.patch.object(trainer, "clipped", side_effect=trainer.clipped) as clipped:
                self.train("grpo", {**CELL, "engine": "int5", **recomputed})
            for first, _ in [call.args for call in clipped.call_args_list][::4]:
                self.assertEqual(bool((first == 1).all()), bool(recomputed))


class DemoTest(unittest.TestCase):
    def run_demo(self, plan, seconds):
        said = io.StringIO()
        with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(said):
            found = demo.run(plan, pathlib.Path(folder), seconds, Progress(said))
            page = (pathlib.Path(folder) / "report.html").read_text(encoding="utf-8")
        return found, page, said.getvalue()

    def test_runs_and_reports(self):
        plan = tiny(None)
        found, page, said = self.run_demo(plan, 150)
        for cell in plan.cells.values():
            made = {arm: len(runs) for arm, runs in found[cell.name].items()}
            self.assertEqual(made, dict.fromkeys(cell.arms, 2))
        for runs in found["int5"].values():
            for run in runs.values():
                self.assertLess(run.values["d_sis"], run.values["d"])
                self.assertGreater(run.values["first_d"], 0.01)
        self.assertIn('sis_tokens_total{decision="accepted",run="int5-grpo-sampled-1",', said)
        self.assertNotIn("\r", said)
        lines = [line for line in said.splitlines() if line.startswith("|")]
        self.assertEqual(len(lines), 2 + 7 + 2 + len(plan.primary))
        for line in lines:
            for cell in line.strip("| ").split(" | "):
                self.assertTrue(set(cell) <= set("-|") or f">{html.escape(cell)}</t" in page, cell)
        charts = re.findall(r"<svg .*?</svg>", page, re.DOTALL)
        self.assertEqual(len(charts), 6)
        for number, chart in enumerate(charts):
            xml.dom.minidom.parseString(chart)
            self.assertNotIn("nan", chart)
            self.assertIn("var(--soft-acceptance)", chart)
            # The forest's intervals have no tooltips.
            for name in ("soft acceptance", "GRPO recomputed"):
                self.assertEqual(f"<title>{name}, " in chart, number > 0)
        # Nothing but what the page itself holds.
        outside = r'(src|href)\s*=\s*"(?!#|http://www.w3.org)|url\((?!#)|@import|<script'
        self.assertIsNone(re.search(outside, page))

    def test_seeds_that_are_not_done_in_time_are_left_out(self):
        plan = tiny(["same"])
        for arm in plan.cells["same"].arms:
            plan.cells["same"].arms[arm] = 9
        runs = Runs(plan)
        point = sis.PrefixPoint(1, 0.1, 0.9, positions=1)
        learned = trainer.Learned(0, 0.5, [sis.Totals(accepted=1)], [point])

        def train(address, run_id, start, cell, seed, parameters, show):
            # Those of later seeds never end by themselves, but for one.
            while seed > done and (seed, cell["arm"]) != (done + 1, "grpo"):
                show(learned)
                time.sleep(0.01)
            return [learned]

        with mock.patch.object(trainer, "train", train), mock.patch.object(Runs, "start"):
            done = 2
            found = demo.train_all(runs, plan, "", 3, Progress(io.StringIO()))
            for by_seed in found["same"].values():
                self.assertEqual(list(by_seed), [1, 2])
            done = -1
            with self.assertRaisesRegex(RuntimeError, "before a seed was done"):
                demo.train_all(runs, plan, "", 0.1, Progress(io.StringIO()))

    def test_a_trainer_that_fails_ends_it(self):
        before = threading.active_count()
        with mock.patch.object(trainer, "_record", side_effect=RuntimeError("it broke")):
            with self.assertRaisesRegex(RuntimeError, "it broke"):
                self.run_demo(tiny(None), 100)
        self.assertLessEqual(threading.active_count(), before + 1)


if __name__ == "__main__":
    unittest.main()
