import math
import unittest

import numpy as np

import sis
from sis._evaluate.micro_batches import MicroBatch
from sis.v1 import ratio_service_pb2 as pb
from sis._wire.messages import read


class TotalsTest(unittest.TestCase):
    def test_means_are_per_scored_position(self):
        names = (
            "d", "d_sis", "log_envelope", "residual_mass", "acceptance_probability", "expected_acceptance", "k3",
            "total_variation",
        )  # fmt: skip
        sums = {name: float(number) for number, name in enumerate(names, start=1)}
        totals = read(sis.Totals, pb.Totals(accepted=5, rejected=2, outside_top_k=1, missing=100, **sums))
        self.assertEqual((totals.scored, totals.accept_rate), (8, 0.625))
        for name, value in sums.items():
            self.assertEqual(getattr(totals, f"mean_{name}"), value / 8)

    def test_nothing_scored_has_no_rate(self):
        self.assertTrue(math.isnan(sis.Totals(missing=3).accept_rate))


class ReadTest(unittest.TestCase):
    def test_what_is_in_a_message_is_read_as_the_kind_says(self):
        histogram = pb.Histogram(upper_bounds=[1, 2], counts=[3, 4, 5])
        response = pb.GetStepResponse(
            totals=pb.Totals(accepted=3),
            prefix_curve=[pb.PrefixPoint(top_k=2, positions=7)],
            distributions=pb.Distributions(abs_log_ratio=histogram),
            unanswered=[1],
        )
        response.ages.add(**{"from": 2}, to=4, accepted=1, rejected=2, outside_top_k=1, d=2, d_sis=1)
        response.ages.add(**{"from": 5})
        response.ages.add(ahead=True, accepted=1, rejected=1, weight=4, weight_squared=10)
        step = sis.Step.from_proto(response)
        self.assertEqual(step.totals, sis.Totals(accepted=3))
        self.assertEqual(step.prefix_curve, (sis.PrefixPoint(2, 0.0, 0.0, 7),))
        self.assertEqual(step.distributions.abs_log_ratio, sis.Histogram([1.0, 2.0], [3, 4, 5]))
        self.assertEqual([(age.name, age.scored) for age in step.ages], [("2-4", 4), ("5+", 0), ("ahead", 2)])
        self.assertEqual((step.ages[0].accept_rate, step.ages[0].mean_d, step.ages[0].mean_d_sis), (0.25, 0.5, 0.25))
        self.assertTrue(math.isnan(step.ages[1].accept_rate) and math.isnan(step.ages[1].effective_sample_size))
        self.assertEqual(step.ages[2].effective_sample_size, 1.6)
        self.assertEqual(step.unanswered, (1,))
        broken = pb.Run(verdict=pb.VERDICT_BROKEN, findings=[pb.Finding(rule="r", verdict=pb.VERDICT_BROKEN)])
        run = read(sis.RunStatus, broken, run=None, owner="")
        self.assertIs(run.verdict, sis.Verdict.BROKEN)
        self.assertEqual(run.findings, (sis.Finding("r", sis.Verdict.BROKEN, "", ""),))

    def test_absent_optional_fields_are_none(self):
        self.assertIsNone(sis.Step.from_proto(pb.GetStepResponse()).distributions)
        inspected = {"annotation": pb.Annotation(text="t", reward=0.5)}
        for given, expected in ((inspected, sis.Annotation("", "t", "", 0.5)), ({}, None)):
            response = pb.InspectSequenceResponse(top_k=1, **given)
            self.assertEqual(sis.SequenceInspection.from_proto(response).annotation, expected)
        self.assertIsNone(read(sis.Annotation, pb.Annotation(text="t")).reward)


class EvaluationTest(unittest.TestCase):
    def test_arrays_can_be_written(self):
        # torch.from_numpy warns of arrays that can't.
        response = pb.EvaluateResponse(
            accept_bits=b"\x01",
            decisions=b"\x01",
            ratios=np.ones(1, np.float32).tobytes(),
        )
        evaluation = sis.Evaluation.from_proto([(MicroBatch([0], slice(0, 1)), response)], 1, 1, ["decisions", "ratios"])
        for array in (evaluation.accepted, evaluation.decisions, evaluation.ratios):
            self.assertTrue(array.flags.writeable)
        self.assertIsNone(evaluation.log_ratios)


if __name__ == "__main__":
    unittest.main()
