"""`sisctl compare` names the fault that was made, and no other, in the responses that have it.

The recordings of larger models are in no repository: they are asked where SIS_RECORDED_DATA names the folder.
"""

import pathlib
import unittest

from tests.compare import confusion, recordings
from tests.compare.cases import CASES

SISCTL = pathlib.Path("client/cli/sisctl")
BASES = recordings.bases()


class ConfusionTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.columns = {name: confusion.column(SISCTL, base) for name, base in BASES.items()}

    def test_nothing_is_named_where_there_is_only_noise(self):
        for name, column in self.columns.items():
            self.assertEqual(dict(column[confusion.NONE]), {"right": 8}, name)

    def test_nearly_all_faults_are_named_and_no_others(self):
        for name, column in self.columns.items():
            self.assertGreaterEqual(sum(kind["right"] for kind in column.values()), len(CASES) - 2, (name, column))

    def test_the_document_has_these_numbers(self):
        documented = confusion.rows_of(pathlib.Path("docs/compare.md").read_text())
        head = documented[0]
        self.assertEqual(set(head[2:]), {"synthetic", "SmolLM2-135M", "Qwen3-1.7B", "Gemma 3 270M"})
        measured = [[cell.strip() for cell in row.strip("|").split("|")] for row in confusion.table(self.columns)]
        for name in self.columns:
            here, there = measured[0].index(name), head.index(name)
            for row, documented_row in zip(measured[2:], documented[2:], strict=True):
                self.assertEqual([*row[:2], row[here]], [*documented_row[:2], documented_row[there]], name)


class VerdictTest(unittest.TestCase):
    """What is said holds together, whatever the case."""

    def test_no_fault_is_not_said_beside_a_size_that_contradicts_it(self):
        for number, case in enumerate(CASES):
            faults, report = confusion.said(SISCTL, BASES["synthetic"], number)
            no_fault = any("No fault was found" in sentence for sentence in report["verdict"])
            self.assertEqual(no_fault, not faults and not report["undecided"], case.made)
            if no_fault:
                self.assertLess(report["d"]["mean"], 0.15, case.made)
                variation = report["d"]["total_variation"]
                self.assertTrue(variation is None or variation < 0.15, case.made)

    def test_what_is_left_out_is_said(self):
        number = next(i for i, case in enumerate(CASES) if case.made == "two responses swapped")
        _, report = confusion.said(SISCTL, BASES["synthetic"], number)
        self.assertRegex(report["verdict"][-1], r"^19\d of 800 positions are left out")


if __name__ == "__main__":
    unittest.main()
