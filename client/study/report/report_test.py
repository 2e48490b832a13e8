"""The report of the study, from made-up results."""

import pathlib
import random
import tempfile
import unittest

from client.study.report import advice, comparisons, design, intervals, report, results

CELLS = pathlib.Path("client/study/cells.txt")


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
        for degrees, confidence, quantile in ((1, 0.95, 12.706), (7, 0.95, 2.365), (15, 0.95, 2.131), (15, 0.99, 2.947)):
            self.assertAlmostEqual(intervals.student_quantile(degrees, confidence), quantile, places=3)
        runs = [results.Run({"final_reward": value}, None) for value in (0.1, 0.2, 0.4)]
        found = {"a": {"x": dict(enumerate(runs)), "y": {0: runs[0], 1: runs[0], 2: runs[0], 3: runs[2]}}}
        difference = intervals.paired(found, "a", "x", "a", "y")
        self.assertEqual(difference.pairs, 3)
        self.assertAlmostEqual(difference.mean, 0.4 / 3)
        self.assertAlmostEqual(difference.half, 4.3027 * 0.152753 / 3**0.5, places=4)
        self.assertEqual((difference.sign, difference.verdict), (0, "not to be told from chance"))

    def test_every_arm_of_every_cell_is_there(self) -> None:
        make_results(self.results, 16)
        plan = design.read(CELLS)
        report.write(CELLS, self.results, self.folder)
        text = (self.folder / "study.md").read_text()
        self.assertIn(f"All {plan.runs} runs of the design are in", text)
        for cell in plan.cells.values():
            for arm, seeds in cell.arms.items():
                self.assertIn(f"| {cell.name} | {comparisons.name(arm)} | {seeds} |", text)
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

    def test_advice_names_a_rule_only_where_intervals_do(self) -> None:
        make_results(self.results, 16)
        rows = {line.split("|")[1].strip(): line.split("|")[2].strip() for line in advice.table(results.read(self.results))}
        self.assertEqual(rows["Right answers are rare"], "clipped GRPO: nothing was shown to be better")
        situation = advice.Situation("one", ("int5",))
        self.assertEqual(advice._use(results.read(self.results), situation), "soft acceptance")


if __name__ == "__main__":
    unittest.main()
