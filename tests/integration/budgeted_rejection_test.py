"""Budgeted rejection over a real connection: numpy's bytes in every form, the budget of the batch, and what
stands beside it."""

import unittest

import numpy as np

import sis
from server.testing.live_server import LiveServer
from tests.integration.evaluated_batch import FORMS, LENGTHS, LOST, SEED, TOP_K, EvaluatedBatchTest, Values
from tests.reference import budgeted_rejection, numerics

OUTPUTS = ("accepted", "decisions", "ratios", "log_ratios", "acceptance_probabilities")


class BudgetedRejectionTest(EvaluatedBatchTest):
    @classmethod
    def start_server(cls):
        return LiveServer(shared_memory_bytes=16 << 20)

    def options(self, log_lambda, **others):
        return sis.EvaluateOptions(
            mask=self.mask, own_log_probs=self.own, budgeted_rejection=sis.BudgetedRejection(log_lambda), **others
        )

    def words(self, draw):
        return np.concatenate(
            [
                numerics.uniforms(numerics.sequence_key(SEED, 0, name), np.arange(n, dtype=np.uint32), draw)
                for name, n in LENGTHS.items()
            ]
        )

    def test_every_form_gives_the_bytes_of_numpy(self):
        run, _ = self.recorded("forms", "fixed12")
        scored = self.mask & ~self.lost
        with self.client.lease_segment(8 << 20) as segment:
            records = self.client.fetch_top_k(run, list(LENGTHS), segment=segment)
            outside = numerics.rank(records.sampled_ids, records.ids, records.log_probs) == numerics.NO_RANK
            for form in FORMS:
                every_slot = form != "reduced"
                outputs = (*OUTPUTS, "normalizers") if every_slot else OUTPUTS
                at_slots = {"total_variation": True} if every_slot else {}
                for place in (None, segment):
                    values = Values(records, self.logits, form, self.tokens, place)
                    got = values.evaluate(
                        self.client, run, records, draw=5, outputs=outputs, options=self.options(0.25),
                        **at_slots,
                    )
                    with self.subTest(form=form, segment=place is not None):
                        log_w = numerics.flush(values.sampled - records.sampled_log_probs)
                        want = budgeted_rejection.decide(log_w[scored], 0.25, self.words(5)[scored])
                        np.testing.assert_array_equal(got.accepted[scored], want.accepted)
                        for name in ("acceptance_probabilities", "log_ratios", "ratios"):
                            self.assertEqual(getattr(got, name)[scored].tobytes(), getattr(want, name).tobytes(), name)
                        self.assertTrue((got.decisions[scored] <= sis.Decision.REJECTED).all())
                        self.assertTrue(got.accepted[outside & scored].any())
                        if every_slot:
                            want = budgeted_rejection.normalizers(
                                records.log_probs[scored], values.log_probs[scored], 0.25
                            )
                            self.assertEqual(got.normalizers[scored].tobytes(), want.tobytes())
                            self.assertFalse(got.normalizers[~scored].any())
                            self.assertGreater(got.totals.total_variation, 0)
                        # What is missing has the trainer's own ratio.
                        own = numerics.exp32(numerics.flush(values.sampled - self.own))
                        self.assertEqual(got.ratios[LOST].tobytes(), own[LOST].tobytes())
                        self.assertTrue((got.decisions[LOST] == sis.Decision.MISSING).all())

    def test_the_batch_accepts_its_budget(self):
        run, records = self.recorded("budget")
        values = Values(records, self.logits, "gathered")
        scored = self.mask & ~self.lost
        log_w = values.sampled - records.sampled_log_probs
        for share in (0.3, 0.8, 1.0):
            options = self.options(sis.budgeted_log_lambda(log_w, share, scored))
            evaluation = values.evaluate(
                self.client, run, records, draw=int(100 * share), outputs=("ratios",), options=options
            )
            totals = evaluation.totals
            self.assertAlmostEqual(totals.mean_acceptance_probability, share, delta=1e-6)
            self.assertEqual(totals.mean_expected_acceptance, totals.mean_acceptance_probability)
            # Five standard deviations.
            noise = 5 * np.sqrt(share * (1 - share) * scored.sum())
            self.assertLessEqual(abs(totals.accepted - share * scored.sum()), noise)
            self.assertEqual(totals.outside_top_k, 0)

    def test_what_others_see_of_it(self):
        run, records = self.recorded("others")
        values = Values(records, self.logits, "gathered")
        scored = self.mask & ~self.lost
        observe = {"beside": sis.Sis(), "expected": sis.Sis(top_k=3, weight="expected"), "clip": sis.Grpo()}
        plain = values.evaluate(
            self.client, run, records, draw=1,
            options=sis.EvaluateOptions(mask=scored, observe=observe, advantages=self.advantages),
        )
        log_lambda = 0.5
        got = values.evaluate(
            self.client, run, records, draw=2, outputs=("ratios", "log_ratios"),
            options=self.options(log_lambda, observe=observe, advantages=self.advantages),
        )
        again = values.evaluate(
            self.client, run, records, draw=2,
            options=sis.EvaluateOptions(mask=scored, observe=observe, advantages=self.advantages),
        )
        # SIS beside it is that of a request that asks for it.
        for name in observe:
            self.assertEqual(got.corrections[name], again.corrections[name], name)
        self.assertEqual(again.corrections["beside"], again.corrections["applied"])
        self.assertNotEqual(plain.corrections["beside"], again.corrections["beside"])
        applied = got.corrections["applied"]
        self.assertEqual(applied.zeroed, got.totals.rejected)
        self.assertAlmostEqual(applied.weight, got.ratios[scored].astype(np.float64).sum(), delta=1e-3)
        kept = got.accepted & scored
        self.assertAlmostEqual(applied.abs_log_weight, np.abs(got.log_ratios[kept]).sum(), delta=1e-3)
        # D_SIS is of the tokens that are not accepted.
        log_w = np.abs(numerics.flush(values.sampled - records.sampled_log_probs))
        self.assertAlmostEqual(got.totals.d_sis, log_w[scored & ~got.accepted].sum(), delta=1e-3)
        for name in ("d", "log_envelope", "residual_mass", "k3", "envelope_violations"):
            self.assertEqual(getattr(got.totals, name), getattr(again.totals, name), name)

    def test_it_differs_from_sis_by_its_bound_only(self):
        """A constant envelope of the REDUCED form decides the same in the set."""
        run, records = self.recorded("constant")
        values = Values(records, self.logits, "reduced")
        scored = self.mask & ~self.lost
        inside = scored & (numerics.rank(records.sampled_ids, records.ids, records.log_probs) < TOP_K)
        budgeted = values.evaluate(
            self.client, run, records, draw=3, outputs=("decisions",), options=self.options(0.5)
        )
        constant = self.client.evaluate_reduced(
            run, records, draw=3, sampled_log_probs=values.sampled,
            log_envelopes=np.full(len(records), 0.5, np.float32),
            covered_masses=np.zeros(len(records), np.float32), outputs=("decisions",),
            options=sis.EvaluateOptions(mask=scored),
        )
        np.testing.assert_array_equal(budgeted.decisions[inside], constant.decisions[inside])
        self.assertGreater(constant.totals.envelope_violations, 0)


if __name__ == "__main__":
    unittest.main()
