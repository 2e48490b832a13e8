"""The report of the study, from made-up results."""

import pathlib
import random
import tempfile
import unittest

import numpy as np

from client.study.report import advice, comparisons, confirmation, intervals, report
from client.study.runs import design, results

CELLS = pathlib.Path("client/study/cells.txt")
CONFIRMATION = CELLS.with_name("confirmation.txt")


def make_results(path: pathlib.Path, seeds: int) -> None:
    """Every run of the design on its first seeds. Soft acceptance is better by 0.1 in the cell int5, and GRPO
    collapses in the cell int4."""
    lines = []
    for cell in design.read(CELLS).cells.values():
        for arm, count in cell.arms.items():
            for seed in range(min(count, seeds)):
                final = 0.5 + random.Random(f"{cell.name} {arm} {seed}").uniform(-0.01, 0.01)
                if cell.name == "int5" and arm.startswith("soft_acceptance"):
                    final += 0.1
                last = 0.1 if (cell.name, arm) == ("int4", "grpo") else final
                lines.append(f"{cell.name} {arm} {5001 + seed} {final:.5f} 0.6 0.4 0.8 0.3 0.2 0.2 0.07 23 0.3,0.5,{last:.5f}")
    path.write_text("# heading\n" + "\n".join(lines) + "\n")


class ReportTest(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.results = self.folder / "results.txt"

    def test_intervals_are_students(self) -> None:
        # From tables of the distribution.
        for pairs, confidence, quantile in (
            (2, 0.95, 12.706), (8, 0.95, 2.365), (16, 0.95, 2.131), (16, 0.99, 2.947),
        ):  # fmt: skip
            differences = np.arange(pairs)
            half = intervals.of_differences(differences, confidence).half
            error = differences.std(ddof=1) / pairs**0.5
            self.assertAlmostEqual(half / error, quantile, places=3)
        runs = [results.Outcome({"final_reward": value}, None) for value in (0.1, 0.2, 0.4)]
        found = {"a": {"x": dict(enumerate(runs)), "y": {0: runs[0], 1: runs[0], 2: runs[0], 3: runs[2]}}}
        difference = intervals.paired(found, "a", "x", "a", "y")
        self.assertEqual(difference.pairs, 3)
        self.assertAlmostEqual(difference.mean, 0.4 / 3)
        self.assertAlmostEqual(difference.half, 4.3027 * 0.152753 / 3**0.5, places=4)
        self.assertEqual((difference.sign, difference.verdict()), (0, "not to be told from chance"))

    def test_arms_are_called_by_all_their_words(self) -> None:
        for arm, called in (
            ("grpo+tis2", "GRPO + TIS to 2"),
            ("soft_acceptance+sampled", "soft acceptance"),
            ("soft_acceptance+expected+tis2", "soft acceptance + SIS, EXPECTED + TIS to 2"),
            ("damped_truncation+without_sets", "damped truncation + min(w, 1/w) for a"),
        ):
            self.assertEqual(comparisons.name(arm), called)

    def test_verdicts_say_what_the_interval_says(self) -> None:
        for mean, half, pairs, verdict, text in (
            (0.03, 0.02, 8, "higher", "+30 ± 20 *"),
            (-0.03, 0.02, 8, "lower", "-30 ± 20 *"),
            (0.03, 0.04, 8, "not to be told from chance", "+30 ± 40"),
            (0.0, 0.0, 8, "not to be told from chance", "+0 ± 0"),
            (0.03, float("nan"), 1, "of one pair", "+30"),
        ):
            difference = intervals.Difference(mean, half, pairs)
            self.assertEqual((difference.verdict(), difference.text()), (verdict, text))

    def test_equivalence_needs_the_whole_interval_within_the_margin(self) -> None:
        for mean, half, pairs, verdict in (
            (0.004, 0.015, 8, "as good as"),
            (-0.004, 0.015, 8, "as good as"),
            (0.006, 0.015, 8, "not to be told apart"),
            (-0.006, 0.015, 8, "not to be told apart"),
            (0.01, 0.005, 8, "higher"),
            (-0.03, 0.02, 8, "lower"),
            (0.0, float("nan"), 1, "of one pair"),
        ):
            self.assertEqual(intervals.Difference(mean, half, pairs).verdict(0.02), verdict)

    # Where the truth lies at the margin it is claimed at most as often as the level allows, where it
    # lies at 0 nearly always, if there are pairs enough.
    def test_equivalence_is_claimed_wrongly_no_more_often_than_it_may_be(self) -> None:
        draws = np.random.default_rng(3).normal(size=(4000, 48))

        def claimed(truth: float, deviation: float) -> float:
            pairs = truth + deviation * draws
            verdicts = [intervals.of_differences(of_study).verdict(0.02) for of_study in pairs]
            return verdicts.count("as good as") / len(verdicts)

        # 2.5% is the level of each of the two tests; five standard errors of 4000 draws.
        most = 0.025 + 5 * (0.025 * 0.975 / 4000) ** 0.5
        for truth in (0.02, -0.02):
            self.assertLessEqual(claimed(truth, 0.06), most)
        self.assertGreater(claimed(0.0, 0.02), 0.9)

    def test_every_arm_of_every_cell_is_there(self) -> None:
        make_results(self.results, 16)
        plan = design.read(CELLS)
        report.write(CELLS, self.results, self.folder)
        text = (self.folder / "study.md").read_text()
        self.assertIn(f"All {len(plan.runs)} runs of the design are in", text)
        cells = (self.folder / "study" / "cells.tsv").read_text()
        self.assertEqual({line.count("\t") for line in cells.splitlines()}, {14})
        for cell in plan.cells.values():
            for arm, seeds in cell.arms.items():
                self.assertIn(f"\n{cell.name}\t{comparisons.name(arm)}\t{seeds}\t", cells)
        for cell, arm, base_cell, base_arm in comparisons.all_of(plan):
            self.assertIn(base_arm, plan.cells[base_cell].arms, f"{cell} {arm}")
        self.assertRegex(text, r"\| int5: soft acceptance less GRPO \| 16 \| \+\d+ ± \d+ \* \| \+\d+ ± \d+ \* \| higher \|")
        self.assertIn("| same: GRPO + SIS less GRPO | 16 |", text)
        self.assertIn("| int4 | 16 of 16 | 0 of 16 | 0 of 16 | 0 of 16 |", text)
        for picture in ("forest.svg", "forest_others.svg", "curves.svg"):
            self.assertIn("</svg>", (self.folder / "study" / picture).read_text())

    def test_part_of_the_results_says_so(self) -> None:
        make_results(self.results, 1)
        report.write(CELLS, self.results, self.folder)
        self.assertIn("Not complete", (self.folder / "study.md").read_text())

    def test_the_second_study_says_of_each_rule_what_its_interval_says(self) -> None:
        plan = design.read(CONFIRMATION)
        lines = []
        for run in plan.runs:
            noise = random.Random(f"{run}").uniform(-0.01, 0.01)
            best = 0.1 if run.cell == "int5" and run.arm == "damped_truncation" else 0.0
            lines.append(f"{run} {0.5 + best + noise:.5f} 0.6 0.4 0.8 0.3 0.2 0.2 0.07 23 0.3,0.5,0.5")
        page = self.folder / "study_confirmation.md"
        self.results.write_text("\n".join(lines) + "\n")
        confirmation.write(CONFIRMATION, self.results, self.folder)
        text = page.read_text()
        self.assertIn(f"All {len(plan.runs)} runs", text)
        self.assertIn("within ±20,", text)
        self.assertRegex(text, r"\| int5 \| [^|]*, as good as \| \+\d+ ± \d+ \*, higher \|")
        self.assertNotIn("pairs)", text)
        written = (self.folder / "study" / "confirmation.tsv").read_text().splitlines()
        self.assertEqual(len(written), 1 + sum(len(cell.arms) for cell in plan.cells.values()))
        self.results.write_text("\n".join(lines[: len(lines) // 2]) + "\n")
        confirmation.write(CONFIRMATION, self.results, self.folder)
        self.assertIn(f"{len(lines) // 2} of {len(lines)} runs are in: nothing", page.read_text())
        self.assertNotIn("±", page.read_text().split("Not all of them are in")[1])

    def test_advice_names_a_rule_only_where_intervals_do(self) -> None:
        make_results(self.results, 16)
        found = results.by_arm(results.read(self.results))
        rows = {line.split("|")[1].strip(): line.split("|")[2].strip() for line in advice.advice(found).splitlines()}
        self.assertEqual(rows["Right answers are rare"], "clipped GRPO: nothing was shown to be better")
        self.assertEqual(advice.use(found, ("int5",)), "soft acceptance")

    def test_the_committed_page_is_of_the_committed_results(self) -> None:
        report.write(CELLS, pathlib.Path("docs/study/results.txt"), self.folder)
        for name in ("study.md", "study/cells.tsv", "study/paper.tsv"):
            self.assertEqual((self.folder / name).read_text(), pathlib.Path("docs", name).read_text())
        confirmation.write(CONFIRMATION, pathlib.Path("docs/study/confirmation_results.txt"), self.folder)
        for name in ("study_confirmation.md", "study/confirmation.tsv"):
            self.assertEqual((self.folder / name).read_text(), pathlib.Path("docs", name).read_text())


if __name__ == "__main__":
    unittest.main()
