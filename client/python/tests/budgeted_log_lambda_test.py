"""budgeted_log_lambda solves what it says."""

import math
import unittest

import numpy as np

import sis


class BudgetedLogLambdaTest(unittest.TestCase):
    def test_the_batch_accepts_that_share(self):
        rng = np.random.default_rng(1)
        for count in (1, 2, 3, 10, 1000):
            for scale in (0.0, 0.01, 1.0, 100.0, 1000.0):
                log_ratios = rng.normal(0, scale, count)
                for share in (0.001, 0.1, 0.5, 0.9, 0.999, 1.0):
                    log_lambda = sis.budgeted_log_lambda(log_ratios, share)
                    accepted = np.exp(np.minimum(0, log_ratios - log_lambda)).mean()
                    self.assertAlmostEqual(accepted, share, delta=1e-12)

    def test_of_several_it_is_the_largest(self):
        self.assertEqual(sis.budgeted_log_lambda([1.0, 0.5, 2.0], 1.0), 0.5)
        self.assertEqual(sis.budgeted_log_lambda([0.0, -math.inf], 0.5), 0.0)

    def test_masked_positions_do_not_count(self):
        self.assertEqual(
            sis.budgeted_log_lambda([math.nan, 0.0, 0.25], 0.5, [False, True, True]),
            sis.budgeted_log_lambda([0.0, 0.25], 0.5),
        )

    def test_bad_input_is_refused(self):
        for log_ratios, share, message in (
            ([0.0, math.nan], 0.5, "NaN"),
            ([0.0, math.inf], 0.5, "inf"),
            ([], 0.5, "some must count"),
            ([0.0], 0.0, "accepted_share is 0.0"),
            ([0.0], 1.5, "accepted_share is 1.5"),
            ([0.0], math.nan, "accepted_share is nan"),
            ([0.0, -math.inf], 0.6, "only 1 ratios are not 0"),
        ):
            with self.subTest(message), self.assertRaisesRegex(ValueError, message):
                sis.budgeted_log_lambda(log_ratios, share)


if __name__ == "__main__":
    unittest.main()
