import collections
import pathlib
import unittest

import numpy as np

from tests.golden import cases, generate
from tests.reference import numerics
from tests.reference.numerics import Decision

_FORMS = [
    (cases.gathered_cases, numerics.decide_gathered),
    (cases.reduced_cases, numerics.decide_reduced),
]


class GoldenTest(unittest.TestCase):
    def test_files_are_what_the_numpy_implementation_gives(self):
        folder = pathlib.Path(__file__).parent
        files = generate.files()
        self.assertEqual(sorted(files), sorted(path.name for path in folder.glob("*.txt")))
        for name, content in files.items():
            # Not assertEqual: a difference of a megabyte is no message.
            stored = folder.joinpath(name).read_text(encoding="ascii")
            for line, (want, got) in enumerate(zip(stored.splitlines(), content.splitlines()), 1):
                if want != got:
                    self.fail(f"{name}:{line}: stored {want[:200]}, computed {got[:200]}")
            self.assertTrue(stored == content, f"{name}: {len(stored)} bytes stored, {len(content)} computed")

    def test_the_cut_records_cover_what_they_must(self):
        seen = collections.Counter()
        for mass, records in cases.mass_cut_cases():
            cut = numerics.cut_to_mass(records, mass)
            before, after = numerics.used_slots(records.log_probs), numerics.used_slots(cut.log_probs)
            seen["cut"] += (before.sum(axis=1) > after.sum(axis=1)).any()
            seen["never reached"] += (numerics.covered_mass(records.log_probs, before) < mass).any()
            lost = numerics.rank(cut.sampled_ids, cut.ids, cut.log_probs) == numerics.NO_RANK
            seen["sampled token cut"] += (lost & (records.ids == records.sampled_ids[:, None]).any(axis=1)).any()
            again = numerics.cut_to_mass(cut, mass)
            self.assertTrue((again.ids == cut.ids).all() and (again.log_probs == cut.log_probs).all())
        self.assertTrue(seen["cut"] and seen["never reached"] and seen["sampled token cut"], seen)

    def test_what_the_cases_must_cover_is_there(self):
        for make, decide in _FORMS:
            seen = collections.Counter()
            slots, words = set(), []
            for case in make():
                e = decide(case.records, case.current, case.k, case.words())
                inside = numerics.rank(case.records.sampled_ids, case.records.ids, case.records.log_probs) < case.k
                lq, a = case.records.log_probs, e.acceptance_probabilities
                slots.add(lq.shape[1])
                words.append(case.draw >> 32)
                seen["prefix"] += case.k < lq.shape[1]
                for decision in (Decision.ACCEPTED, Decision.REJECTED, Decision.OUTSIDE_TOP_K):
                    seen[decision] += (e.decisions == decision).sum()
                seen["violation"] += e.violations.sum()
                seen["violation of nothing"] += (e.violations & (e.log_envelopes == -np.inf)).sum()
                seen["not possible"] += (inside & (case.current.sampled_log_probs == -np.inf)).sum()
                seen["outside, above the envelope"] += (~inside & (e.log_weights > e.log_envelopes)).sum()
                seen["accepted by chance"] += ((e.decisions == Decision.ACCEPTED) & (a < 1)).sum()
                seen["a below the draw's resolution"] += ((a > 0) & (a < 2.0**-32)).sum()
                seen["tie"] += ((lq[:, 1:] == lq[:, :-1]) & np.isfinite(lq[:, 1:])).any()
                seen["unused slot"] += (~numerics.used_slots(lq)).any()
                seen["empty set"] += (~numerics.used_slots(lq).any(axis=1)).any()
                seen["equal policies"] += (e.log_envelopes == 0).all()
                seen["high position"] += (case.records.positions > 2**20).any()
                for clamp in (-87, 88, 64, -64):
                    seen[f"ratio at {clamp}"] += (e.log_ratios == clamp).any()
                    seen[f"envelope at {clamp}"] += (e.log_envelopes == clamp).any()
            self.assertEqual([what for what, count in seen.items() if not count], [])
            self.assertLessEqual({1, 2, 5, 10, 50, 100, 128}, slots)
            self.assertIn(0, words)
            self.assertGreater(max(words), 2**31)

    def test_thresholds_are_met_exactly(self):
        decisions = []
        for case in cases.threshold_cases():
            word = case.words()
            e = numerics.decide_gathered(case.records, case.current, case.k, word)
            exact = float(e.acceptance_probabilities[0]) * 2**32
            self.assertGreater(exact % 1, 0.5)  # or rounding would do as well as truncation
            decisions.append((int(exact) - int(word[0]), int(e.decisions[0])))
        self.assertEqual(decisions, [(0, Decision.REJECTED), (1, Decision.ACCEPTED)] * 6)


if __name__ == "__main__":
    unittest.main()
