"""Promises of the options of Evaluate: masks, own log-probs."""

import unittest

import numpy as np

import sis
from tests.integration.evaluated_batch import LOST, OUTPUTS, EvaluatedBatchTest, Values
from tests.reference import numerics


class EvaluateOptionsTest(EvaluatedBatchTest):
    def test_a_mask_leaves_everything_else_as_it_was(self):
        run, records = self.recorded("mask")
        values = Values(records, self.logits, "gathered")
        plain = values.evaluate(self.client, run, records, draw=1, outputs=("decisions",))
        for share in (0.5, 0.9, 0.1):
            mask = self.rng.random(len(records)) < share
            values.sent = np.where(mask[:, None], values.log_probs, np.float32(np.nan))
            masked = values.evaluate(
                self.client, run, records, draw=1, outputs=OUTPUTS[:4],
                options=sis.EvaluateOptions(mask=mask, own_log_probs=self.own),
            )
            np.testing.assert_array_equal(masked.decisions[mask], plain.decisions[mask])
            self.assertTrue((masked.decisions[~mask] == sis.Decision.MASKED).all())
            self.assertTrue((masked.ratios[~mask] == 1).all() and (masked.log_ratios[~mask] == 0).all())
            self.assertTrue((masked.acceptance_probabilities[~mask] == 0).all())
            self.assertFalse(masked.accepted[~mask].any())
            counts = np.bincount(masked.decisions, minlength=6)
            totals = masked.totals
            self.assertEqual(
                [totals.accepted, totals.rejected, totals.outside_top_k, totals.missing, totals.masked],
                counts[1:].tolist(),
            )

    def test_ratios_of_lost_positions_need_the_trainers_own(self):
        run, records = self.recorded("lost")
        values = Values(records, self.logits, "gathered")
        with self.assertRaisesRegex(sis.FailedPrecondition, "own_log_probs.*position 30 is missing"):
            values.evaluate(self.client, run, records, draw=1, outputs=("ratios",))
        with self.assertRaisesRegex(sis.FailedPrecondition, "position 40 is missing"):
            values.evaluate(
                self.client, run, records, draw=1, outputs=("ratios",), options=sis.EvaluateOptions(mask=self.mask)
            )
        own = sis.EvaluateOptions(mask=self.mask, own_log_probs=self.own)
        ratios = values.evaluate(self.client, run, records, draw=1, outputs=("ratios",), options=own).ratios
        expected = numerics.exp32(numerics.flush(values.sampled - self.own))
        self.assertEqual(ratios[LOST].tobytes(), expected[LOST].tobytes())
        values.evaluate(self.client, run, records, draw=1)

    def test_bad_options_are_named(self):
        run, records = self.recorded("bad")
        values = Values(records, self.logits, "gathered")
        bad = self.advantages.copy()
        bad[7] = np.nan
        grpo = {"mask": self.mask & ~self.lost, "algorithm": sis.Grpo(), "advantages": self.advantages}
        infinite = self.current_of_three.copy()
        infinite[3] = np.inf
        for options, outputs, message in (
            ({**grpo, "algorithm": sis.Grpo(1.5)}, ("surrogates",), r"grpo.epsilon: 1.5, must be in \[0, 1\]"),
            ({**grpo, "algorithm": None}, ("surrogates",), "algorithm: unset"),
            (grpo, ("ratios",), "algorithm: set, but neither"),
            ({**grpo, "advantages": None}, ("coefficients",), "advantages: unset"),
            ({**grpo, "advantages": bad}, ("coefficients",), "advantages: element 7: nan"),
            ({**grpo, "algorithm": sis.ClipCov(), "advantages": None}, ("surrogates",), "advantages: unset"),
            ({**grpo, "algorithm": sis.SoftAcceptance(), "advantages": None}, ("surrogates",), "advantages: unset"),
            ({**grpo, "decoupled_log_probs": infinite}, ("surrogates",), "decoupled.current_log_probs: element 3: inf"),
            ({"own_log_probs": self.own * np.inf}, ("ratios",), "own_log_probs: position 30: -inf"),
            ({"own_log_probs": np.full_like(self.own, -9999)}, ("ratios",), "own_log_probs: position 30: -9999"),
            ({**grpo, "log_ratio_sums": [sis.LogRatioSum(2**62, 5)] * 3}, ("surrogates",), "sequence_log_ratio_sum"),
            (
                {**grpo, "algorithm": sis.DppoTopK(), "decoupled_log_probs": self.current_of_three},
                ("surrogates",),
                "dppo_top_k: not with three policies",
            ),
        ):
            with self.subTest(message=message):
                with self.assertRaisesRegex(sis.InvalidArgument, message):
                    values.evaluate(
                        self.client, run, records, draw=1, outputs=outputs, options=sis.EvaluateOptions(**options)
                    )
        with self.assertRaisesRegex(sis.InvalidArgument, "dppo_top_k: needs log-probs at every slot"):
            Values(records, self.logits, "reduced").evaluate(
                self.client,
                run,
                records,
                draw=1,
                outputs=("surrogates",),
                options=sis.EvaluateOptions(**{**grpo, "algorithm": sis.DppoTopK()}),
            )
        with self.assertRaises(sis.NotFound):
            self.client.list_steps(run, draws=[1])


if __name__ == "__main__":
    unittest.main()
