"""The report of the study, from made-up results."""

import pathlib
import random
import re
import tempfile
import unittest
from typing import Dict, Tuple

import numpy as np

from client.study.report import comparisons, confirmation, intervals, recommendation, report
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
            ("damped_truncation+without_sets", "damped truncation without sets"),
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

    def write_second_study(self, means: Dict[Tuple[str, str], float], parts: int = 1) -> str:
        """The page, where arms of cells have these final rewards and all others 0.5; only the first
        of so many parts is in."""
        lines = []
        for run in design.read(CONFIRMATION).runs:
            noise = random.Random(f"{run}").uniform(-0.01, 0.01)
            mean = means.get((run.cell, run.arm), 0.5)
            lines.append(f"{run} {mean + noise:.5f} 0.6 0.4 0.8 0.3 0.2 0.2 0.07 23 0.3,0.5,0.5")
        self.results.write_text("\n".join(lines[: len(lines) // parts]) + "\n")
        confirmation.write(CONFIRMATION, self.results, self.folder)
        return (self.folder / "study_confirmation.md").read_text()

    def test_the_second_study_says_of_each_rule_what_its_interval_says(self) -> None:
        plan = design.read(CONFIRMATION)
        text = self.write_second_study({
            ("int5", "damped_truncation"): 0.6,
            ("int4_recomputed", "soft_acceptance+expected"): 0.52,
            # As it was seen in an exploration: TIS alone does harm.
            ("lag64_proximal", "grpo+tis2"): 0.4,
        })
        self.assertIn(f"All {len(plan.runs)} runs", text)
        self.assertIn("within ±20,", text)
        number = r"[+-]\d+±\d+"
        for row in (
            rf"\(`int5`\) \| GRPO \| as good {number} \| higher {number} \| as good {number}, a pass \| as good {number} \| \*\*damped truncation\*\* \|",
            rf"\(`int4`\) \| GRPO \| as good {number} .* \| GRPO \|\n\|  \| TIS \| as good {number} \| as good {number} \| higher {number}, a pass \| as good {number} \| \*\*soft acceptance, EXPECTED\*\* \|",
            # Nothing takes a pass.
            rf"\(`lag64`\) .*\n\|  \| TIS \|( higher {number} \|){{4}} \*\*damped truncation without sets\*\* \|",
            rf"\(`same`\) \| GRPO \|( as good {number} \|){{4}} GRPO \|\n\| [^|]* \| GRPO \|",
            r"All \| GRPO \| 10 as good \| 1 higher, 9 as good \| 1 higher, 9 as good \| 10 as good \|",
            r"All \| TIS \| 1 higher, 8 as good \| 2 higher, 7 as good \|",
            rf"`int5` \| higher {number} \|",
            rf"`int4` \| as good {number} \|",
        ):
            self.assertRegex(text, row)
        self.assertEqual(len(re.findall(number, text)), len(plan.primary))
        written = (self.folder / "study" / "confirmation.tsv").read_text().splitlines()
        self.assertEqual(len(written), 1 + sum(len(cell.arms) for cell in plan.cells.values()))

    def test_the_second_study_tells_nothing_before_it_is_complete(self) -> None:
        runs = len(design.read(CONFIRMATION).runs)
        text = self.write_second_study({("int5", "damped_truncation"): 0.6}, parts=2)
        self.assertIn(f"{runs // 2} of {runs} runs are in: nothing", text)
        self.assertNotRegex(text, r"[+-]\d+±")
        self.assertNotIn("**damped", text)
        written = (self.folder / "study" / "confirmation.tsv").read_text().splitlines()
        self.assertEqual(set(map(str.count, written, ["\t"] * len(written))), {2})

    # Ours in the order of recommendation.RULES.
    def test_what_to_use_follows_from_verdicts_alone(self) -> None:
        without_sets, with_sets, expected, sampled = recommendation.RULES
        grpo, tis = recommendation.GRPO, recommendation.TIS
        words = {"h": "higher", "l": "lower", "=": "as good as", "?": "not to be told apart"}
        for beside_grpo, beside_tis, sets, use_of_grpo, use_of_tis in (
            # Nothing is shown, or ours are worse: you keep what you have.
            ("????", "????", "?", grpo, tis),
            ("llll", "llll", "h", grpo, tis),
            ("====", "llll", "?", grpo, tis),
            ("hhh?", "lll?", "?", without_sets, tis),
            # Higher than both. The cheapest, unless the sets are shown to give more.
            ("hhhh", "hhhh", "?", without_sets, without_sets),
            ("hhhh", "hhhh", "=", without_sets, without_sets),
            ("hhhh", "hhhh", "l", without_sets, without_sets),
            ("hhhh", "hhhh", "h", with_sets, with_sets),
            ("?hhh", "?hhh", "?", with_sets, with_sets),
            ("???h", "???h", "?", sampled, sampled),
            # A pass more, and yet higher than TIS: for those who have one to spare.
            ("??h?", "??h?", "?", grpo, expected),
            ("h?hh", "??h?", "?", without_sets, expected),
            # A draw rather than a pass.
            ("??hh", "??hh", "?", sampled, sampled),
            # Higher than GRPO and not to be told from TIS.
            ("hhhh", "????", "?", without_sets, tis),
            # Higher than GRPO, as good as TIS without its pass; with it nothing is saved.
            ("hhhh", "?===", "?", without_sets, with_sets),
            ("?h??", "==??", "?", with_sets, with_sets),
            ("??h?", "??=?", "?", grpo, tis),
            ("????", "?==?", "?", grpo, with_sets),
            ("?l??", "?==?", "?", grpo, tis),
            # TIS does harm: what is higher than it need not be higher than GRPO, but not lower.
            ("????", "hhhh", "?", grpo, without_sets),
            ("=?h?", "hhhh", "?", grpo, expected),
            ("?l??", "hhhh", "?", grpo, grpo),
            ("hl??", "hhhh", "?", without_sets, without_sets),
        ):  # fmt: skip
            verdicts = {(with_sets, without_sets): words[sets]}
            for base, letters in ((grpo, beside_grpo), (tis, beside_tis)):
                verdicts.update({(arm, base): words[of] for arm, of in zip(recommendation.RULES, letters)})
            passes = {arm: int(arm == expected) for arm in recommendation.RULES}
            at = recommendation.Situation(passes, verdicts)
            with self.subTest(beside_grpo=beside_grpo, beside_tis=beside_tis, sets=sets):
                self.assertEqual((at.instead_of(grpo), at.instead_of(tis)), (use_of_grpo, use_of_tis))
        # An exact engine's own sets: EXPECTED takes no pass, and no draw.
        free = recommendation.Situation(dict.fromkeys(recommendation.RULES, 0), {
            (arm, grpo): "higher" for arm in (expected, sampled)
        } | {(arm, grpo): "lower" for arm in (without_sets, with_sets)})
        self.assertEqual(free.instead_of(grpo), expected)

    def test_the_committed_page_is_of_the_committed_results(self) -> None:
        of_second = pathlib.Path("docs/study/confirmation_results.txt")
        report.write(CELLS, pathlib.Path("docs/study/results.txt"), self.folder)
        confirmation.write(CONFIRMATION, of_second, self.folder)
        for name in (
            "study.md", "study/cells.tsv", "study/paper.tsv",
            "study_confirmation.md", "study/confirmation.tsv",
        ):  # fmt: skip
            self.assertEqual((self.folder / name).read_text(), pathlib.Path("docs", name).read_text())


if __name__ == "__main__":
    unittest.main()
