"""`sisctl compare` names the fault that was made, and no other, in the responses that have it.

The recordings of larger models are in no repository: they are asked where SIS_RECORDED_DATA names the folder.
"""

import pathlib
import unittest

from tests.compare import confusion, recordings
from tests.compare.cases import CASES


class ConfusionTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.reports = {name: confusion.reports(base) for name, base in recordings.bases().items()}
        cls.columns = {name: confusion.column(reports) for name, reports in cls.reports.items()}

    def test_nothing_is_named_where_there_is_only_noise(self):
        for name, column in self.columns.items():
            self.assertEqual(dict(column[confusion.NONE]), {"right": 9}, name)

    def test_nearly_all_faults_are_named_and_no_others(self):
        for name, column in self.columns.items():
            self.assertGreaterEqual(sum(kind["right"] for kind in column.values()), len(CASES) - 2, (name, column))

    def test_the_document_has_these_numbers(self):
        documented = confusion.rows_of(pathlib.Path("docs/compare.md").read_text())
        self.assertEqual(set(documented), {"synthetic", "SmolLM2-135M", "Qwen3-1.7B", "Gemma 3 270M"})
        measured = confusion.table(self.columns)[2:]
        self.assertEqual(measured, [documented[name] for name in self.columns])

    def test_a_contradicting_size_prevents_the_verdict_no_fault(self):
        for reports in self.reports.values():
            for case, report in zip(CASES, reports, strict=True):
                no_fault = any("No fault was found" in sentence for sentence in report["verdict"])
                self.assertEqual(no_fault, not report["fault"] and not report["undecided"], case.made)
                if no_fault:
                    self.assertLess(report["d"]["mean"], 0.15, case.made)
                    self.assertFalse(report["d"]["total_variation"] >= 0.15, case.made)

    def test_a_fault_comes_with_the_setting_to_look_at(self):
        for reports in self.reports.values():
            for report in reports:
                faults = [check for check in report["checks"] if check["outcome"] == "fault"]
                for check, sentence in zip(faults, report["verdict"], strict=False):
                    self.assertTrue(check["setting"])
                    self.assertEqual(sentence, f"{check['finding']} Look at {check['setting']}.")

    def test_omitted_data_is_reported(self):
        number = next(i for i, case in enumerate(CASES) if case.made == "two responses swapped")
        self.assertRegex(self.reports["synthetic"][number]["verdict"][-1], r"^19\d of 800 positions are left out")


if __name__ == "__main__":
    unittest.main()
