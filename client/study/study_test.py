"""The study's program: what it reads, what it makes, and that it makes committed results again."""

import concurrent.futures
import contextlib
import io
import os
import pathlib
import signal
import tempfile
import unittest
import unittest.mock

from client.study import study
from client.study.runs import design, make, results
from client.study.runs.design import Run
from client.study.runs.program import Progress

CELLS = pathlib.Path("client/study/cells.txt")
CONFIRMATION = CELLS.with_name("confirmation.txt")
COMMITTED = pathlib.Path("docs/study/results.txt")
SMALL = """\
first_seed 9
start easy digits=1 base=4 accuracy=0.2
arms both grpo soft_acceptance+sampled  # a comment

cell a start=easy arms=both seeds=2 engine=int5 lag=3 prompts=8 updates=4 rollouts=4 top_k=4
cell b start=easy arms=both seeds=1 recomputed=true prompts=8 updates=4 rollouts=4 top_k=4
arms third tis
more b arms=third seeds=2
primary a soft_acceptance+sampled b grpo
"""


class InFolder(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.path = self.folder / "results.txt"

    def read(self, text):
        path = self.folder / "design.txt"
        path.write_text(text)
        return design.read(path)


class DesignTest(InFolder):
    def test_is_read_line_by_line(self):
        plan = self.read(SMALL)
        self.assertEqual(plan.cells["a"].settings["engine"], "int5")
        self.assertIsNone(plan.margin)
        self.assertEqual(self.read("margin 0.02").margin, 0.02)
        self.assertEqual(plan.starts["easy"], {"digits": "1", "base": "4", "accuracy": "0.2"})
        self.assertEqual(plan.primary, [("a", "soft_acceptance+sampled", "b", "grpo")])
        self.assertEqual(
            [str(run) for run in plan.runs],
            [
                "a grpo 9", "a soft_acceptance+sampled 9",
                "b grpo 9", "b soft_acceptance+sampled 9", "b tis 9",
                "a grpo 10", "a soft_acceptance+sampled 10", "b tis 10",
            ],
        )  # fmt: skip

    def test_errors_name_the_line(self):
        for line, said in (
            ("cell c start=easy arms=bath seeds=1", "bath"),
            ("cell c start=easy arms=both", "seeds"),
            ("cell c start=easy arms=both seeds", "seeds"),
            ("more c arms=both seeds=1", "'c'"),
            ("more b arms=both seeds=1 lag=2", "only arms and seeds"),
            ("primary a grpo a tis", "tis is no arm of a"),
            ("primary a grpo a", "primary a grpo a"),
            ("nonsense 3", "no such line"),
            ("margin small", "small"),
            ("nonsense", "nonsense"),
        ):
            with self.subTest(line):
                with self.assertRaisesRegex(ValueError, f"design.txt, line 10: .*{said}"):
                    self.read(SMALL + line)

    def test_settings_and_arms_are_those_that_there_are(self):
        study.Runs(design.read(CELLS))
        study.Runs(design.read(CELLS.with_name("exploration.txt")))
        study.Runs(design.read(CELLS.with_name("mass.txt")))
        study.Runs(design.read(CELLS.with_name("more_rules.txt")))
        study.Runs(design.read(CONFIRMATION))
        for line, said in (
            ("cell c start=easy arms=both seeds=1 engine=int99", "cell c: engine=int99"),
            ("cell c start=easy arms=both seeds=1 top_k=8", "cell c: .*top_k at most 7"),
            ("cell c start=hard arms=both seeds=1", "cell c: 'hard'"),
            ("cell c arms=both seeds=1", "cell c: 'start'"),
            ("start odd digits=x\ncell c start=odd arms=both seeds=1", "cell c: digits=x"),
            ("arms odd grpo+wishes\ncell c start=easy arms=odd seeds=1", "cell c: .*wishes"),
        ):
            with self.subTest(line), self.assertRaisesRegex(ValueError, said):
                study.Runs(self.read(SMALL + line))

    def test_of_the_study_uses_seeds_that_nobody_has_used(self):
        # The seeds 1 to 316 were used while it was made.
        self.assertGreater(design.read(CELLS).first_seed, 316)


class StudyTest(InFolder):
    def make(self, plan, made, threads=2):
        said = io.StringIO()
        make.make_missing(
            plan, results.read(self.path), made, str, Progress(said), threads,
            lambda there: results.write(self.path, there),
        )  # fmt: skip
        return said.getvalue()

    def test_goes_on_after_a_line_that_was_cut_off(self):
        plan = self.read(SMALL)
        runs = study.Runs(plan)
        first = {run: runs.make(run) for run in reversed(plan.runs[1:4])}
        results.write(self.path, first)
        with self.path.open("a") as file:
            file.write("b grpo 10 0.1")
        others = []
        said = self.make(plan, lambda run: others.append(run) or runs.make(run))
        self.assertIn("5 of 8 runs are to be made", said)
        self.assertEqual(set(others), set(plan.runs) - set(first))
        at_once = {run: runs.make(run) for run in plan.runs}
        another = self.folder / "another.txt"
        results.write(another, at_once)
        # The same bytes whichever run ended first.
        self.assertEqual(self.path.read_text(), another.read_text())
        self.assertGreater(len({outcome.values["d"] for outcome in at_once.values()}), 6)
        self.assertIn("0 of 8 runs", self.make(plan, self.fail))

    def test_results_of_other_runs_are_refused(self):
        plan = self.read(SMALL)
        outcome = study.Runs(plan).make(plan.runs[0])
        results.write(self.path, {Run("c", "grpo", 9): outcome})
        with self.assertRaisesRegex(ValueError, '"c grpo 9" is no run of this design'):
            self.make(plan, self.fail)

    def test_interrupted_it_keeps_what_is_finished(self):
        (self.folder / "design.txt").write_text(SMALL)
        real = study.Runs.make
        for ending in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            self.addCleanup(signal.signal, ending, signal.getsignal(ending))

        def one_then_none(runs, run):
            if run.arm != "grpo":
                # The one before is written meanwhile.
                while not self.path.exists():
                    pass
                os.kill(os.getpid(), signal.SIGINT)
            return real(runs, run)

        arguments = [f"--design={self.folder}/design.txt", f"--results={self.path}", "--threads=1"]
        with unittest.mock.patch("sys.argv", ["study", *arguments]), \
                unittest.mock.patch.object(study.Runs, "make", one_then_none), \
                contextlib.redirect_stdout(io.StringIO()) as said:
            self.assertEqual(study.main(), 130)
        self.assertEqual(len(results.read(self.path)), 1)
        self.assertIn("Interrupted", said.getvalue())

    def test_committed_results_are_made_again(self):
        plan = design.read(CELLS)
        runs = study.Runs(plan)
        some = [
            Run("router0.5_recomputed", "soft_acceptance+sampled", 5001),
            Run("12bit", "grpo+sampled", 5001),
            Run("e5m2", "grpo+expected", 5001),
        ]
        with concurrent.futures.ThreadPoolExecutor(2) as executor:
            results.write(self.path, dict(zip(some, executor.map(runs.make, some))))
        committed = COMMITTED.read_text().splitlines()
        made = self.path.read_text().splitlines()
        self.assertEqual(made[0], committed[0])
        for line in made:
            self.assertIn(line, committed)
        self.assertEqual(list(results.read(COMMITTED)), plan.runs)

    def test_what_is_in_of_the_second_study_is_made_again(self):
        plan = design.read(CONFIRMATION)
        committed = COMMITTED.with_name("confirmation_results.txt").read_text().splitlines()
        some = [
            Run("two_engines", "damped_truncation", 8101),
            Run("mixed_ages_proximal", "grpo+tis2", 8101),
        ]
        runs = study.Runs(plan)
        results.write(self.path, {run: runs.make(run) for run in some})
        for line in self.path.read_text().splitlines():
            self.assertIn(line, committed)
        there = set(results.read(COMMITTED.with_name("confirmation_results.txt")))
        self.assertEqual(there - set(plan.runs), set())


if __name__ == "__main__":
    unittest.main()
