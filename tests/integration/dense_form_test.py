"""Evaluate of logits over the whole vocabulary: all that log-probs at the recorded ids have, and
what is refused."""

import unittest

import numpy as np

import sis
from tests.integration.evaluated_batch import OUTPUTS, VOCABULARY, EvaluatedBatchTest, Values


class DenseFormTest(EvaluatedBatchTest):
    def test_dense_logits_have_everything_that_gathered_ones_have(self):
        run, records = self.recorded("dense")
        for form in ("dense", "bfloat16_dense"):
            values = Values(records, self.logits, form)
            for top_k in (0, 3):
                keywords = {
                    "draw": 4, "top_k": top_k, "outputs": OUTPUTS[:1], "prefix_curve": (1, 3), "total_variation": True,
                }
                dense = values.evaluate(self.client, run, records, **keywords)
                gathered = self.client.evaluate(
                    run, records, log_probs=values.log_probs, sampled_log_probs=values.sampled, **keywords
                )
                self.assertEqual(dense.decisions.tobytes(), gathered.decisions.tobytes())
                self.assertEqual(dense.totals, gathered.totals)
                self.assertGreater(dense.totals.total_variation, 0)
                self.assertEqual(dense.prefix_curve, gathered.prefix_curve)

    def test_dense_logits_of_rows_that_count_for_nothing_may_be_anything(self):
        run, records = self.recorded("dense-ignored")
        plain = Values(records, self.logits, "dense").evaluate(self.client, run, records, draw=4)
        spoilt = Values(records, np.where((self.mask & ~self.lost)[:, None], self.logits, 0), "dense")
        spoilt.whole = np.where((self.mask & ~self.lost)[:, None], self.logits, np.float32(np.nan))
        options = sis.EvaluateOptions(mask=self.mask)
        ours = spoilt.evaluate(self.client, run, records, draw=4, options=options)
        np.testing.assert_array_equal(ours.accepted, plain.accepted & self.mask)
        self.assertEqual(ours.totals.accepted, plain.totals.accepted)

    def test_bad_dense_logits_are_named(self):
        run, records = self.recorded("dense-bad")
        other = self.tokens.copy()
        other[7] = (other[7] + 1) % VOCABULARY
        far = self.tokens.copy()
        far[41] = VOCABULARY
        own = {"own_log_probs": self.own, "mask": self.mask}

        def bad(row, column, value):
            logits = self.logits.copy()
            logits[row, column] = value
            return logits

        sampled = np.zeros_like(self.logits)
        sampled[12, self.tokens[12]] = -np.inf
        three = {"decoupled_log_probs": self.current_of_three, "mask": self.mask & ~self.lost}
        for error, message, logits, tokens, options in (
            (sis.InvalidArgument, "a.*dense.logits at position 5, vocabulary id 59: nan", bad(5, 59, np.nan), None, {}),
            (sis.InvalidArgument, "dense.logits at position 6, vocabulary id 0: inf", bad(6, 0, np.inf), None, {}),
            (sis.InvalidArgument, "dense.logits at position 8: all are -inf", bad(8, slice(None), -np.inf), None, {}),
            (sis.FailedPrecondition, "a.*dense.sampled_ids at position 7", self.logits, other, {}),
            (sis.InvalidArgument, "dense.sampled_ids: unset, but own_log_probs", self.logits, None, own),
            (sis.InvalidArgument, "dense.sampled_ids at position 41: 60 is not", self.logits, far, own),
            (sis.InvalidArgument, "position 45, vocabulary id 1: nan", bad(45, 1, np.nan), self.tokens, own),
            (sis.InvalidArgument, "position 12: log p of the sampled token is -inf", sampled, None, three),
        ):
            with self.subTest(message=message):
                with self.assertRaisesRegex(error, message):
                    self.client.evaluate_dense(
                        run,
                        records,
                        draw=1,
                        logits=logits,
                        sampled_ids=tokens,
                        options=sis.EvaluateOptions(**options),
                    )
        with self.assertRaises(sis.NotFound):
            self.client.get_step(run, 1)


if __name__ == "__main__":
    unittest.main()
