import unittest

from sis.v1 import ratio_service_pb2 as pb
from sis._wire import sums


def step(positions, bound, last, **fields):
    histogram = pb.Histogram(upper_bounds=[0.5, 1.5], counts=[1, 0, positions])
    return pb.GetStepResponse(
        totals=pb.Totals(accepted=positions, d=positions / 2),
        distributions=pb.Distributions(
            abs_log_ratio=histogram,
            ratios_beyond=[pb.Distributions.BeyondBound(bound=bound, positions=positions)],
        ),
        ages=[pb.AgeTotals(to=last, accepted=positions, weight=positions / 4)],
        **fields,
    )


class SumsTest(unittest.TestCase):
    def test_sums_of_the_same_kind_are_added(self):
        first = step(
            2, 0.5, 0,
            corrections=[pb.CorrectionTotals(correction="plain", weight=0.5), pb.CorrectionTotals(correction="b")],
            prefix_curve=[pb.PrefixPoint(top_k=3, positions=1)],
        )  # fmt: skip
        second = step(
            3, 2.0, None,
            corrections=[pb.CorrectionTotals(correction="plain", weight=1.5), pb.CorrectionTotals(correction="a")],
            prefix_curve=[pb.PrefixPoint(top_k=1, positions=7), pb.PrefixPoint(top_k=3, positions=5)],
        )  # fmt: skip
        total = sums.summed([first, second])
        self.assertEqual(total.totals, pb.Totals(accepted=5, d=2.5))
        self.assertEqual(list(total.distributions.abs_log_ratio.upper_bounds), [0.5, 1.5])
        self.assertEqual(list(total.distributions.abs_log_ratio.counts), [2, 0, 5])
        self.assertFalse(total.distributions.HasField("residual_mass"))
        self.assertEqual(
            [(of.bound, of.positions) for of in total.distributions.ratios_beyond],
            [(0.5, 2), (2.0, 3)],
        )
        self.assertEqual([(of.top_k, of.positions) for of in total.prefix_curve], [(1, 7), (3, 6)])
        self.assertEqual(
            [(of.correction, of.weight) for of in total.corrections],
            [("plain", 2.0), ("b", 0), ("a", 0)],
        )
        (age,) = sums.summed([step(1, 2, None), step(2, 2, None)]).ages
        self.assertFalse(age.HasField("to"))
        self.assertEqual((age.accepted, age.weight), (3, 0.75))
        self.assertEqual(first.totals.accepted, 2)


if __name__ == "__main__":
    unittest.main()
