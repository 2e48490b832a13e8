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
    def test_bits_are_read_from_the_least_significant_on(self):
        response = pb.EvaluateResponse(accept_bits=bytes([0b10000001, 0b10]))
        evaluation = sis.Evaluation.from_proto([(MicroBatch([0], slice(0, 10)), response)], 1, 10)
        self.assertEqual(evaluation.accepted.dtype, bool)
        self.assertEqual(np.flatnonzero(evaluation.accepted).tolist(), [0, 7, 9])

    def test_empty_slices_were_not_sent_but_keep_their_number(self):
        response = pb.EvaluateResponse(
            accept_bits=b"\x03",
            slice_totals=[pb.Totals(accepted=1), pb.Totals(rejected=1)],
            missing=[pb.MissingRange(slice=1, first_position=4, length=1, reason=pb.MISSING_REASON_STALE)],
        )
        evaluation = sis.Evaluation.from_proto([(MicroBatch([1, 3], slice(0, 2)), response)], 4, 2)
        self.assertEqual([t.scored for t in evaluation.slice_totals], [0, 1, 0, 1])
        self.assertEqual(evaluation.slice_totals[3].rejected, 1)
        self.assertEqual(evaluation.missing, (sis.MissingRange(3, 4, 1, sis.MissingReason.STALE),))

    def test_parts_make_the_whole(self):
        def response(slices, missing_slice, decisions):
            return pb.EvaluateResponse(
                accept_bits=np.packbits(np.equal(decisions, 1), bitorder="little").tobytes(),
                decisions=bytes(decisions),
                totals=pb.Totals(accepted=decisions.count(1), d=0.5 * slices),
                slice_totals=[pb.Totals(accepted=index) for index in range(slices)],
                prefix_curve=[
                    pb.PrefixPoint(top_k=1, residual_mass=slices, expected_acceptance=2 * slices, positions=slices)
                ],
                missing=[pb.MissingRange(slice=missing_slice, first_position=4, length=1, reason=pb.MISSING_REASON_STALE)],
                newly_counted=slices,
            )

        # Answers of two replicas: the second has the slice in the middle.
        answers = [
            (MicroBatch([0, 2], np.array([0, 2, 3])), response(2, 1, [1, 2, 4])),
            (MicroBatch([1], slice(1, 2)), response(1, 0, [4])),
        ]
        whole = sis.Evaluation.from_proto(answers, 3, 4, ["decisions"])
        self.assertEqual(whole.accepted.tolist(), [True, False, False, False])
        self.assertEqual(whole.decisions.tolist(), [1, 4, 2, 4])
        self.assertIsNone(whole.ratios)
        self.assertEqual(whole.totals, sis.Totals(accepted=1, d=1.5))
        self.assertEqual([totals.accepted for totals in whole.slice_totals], [0, 0, 1])
        self.assertEqual(whole.prefix_curve, (sis.PrefixPoint(1, 3.0, 6.0, 3),))
        self.assertEqual([missing.slice for missing in whole.missing], [1, 2])
        self.assertEqual(whole.newly_counted, 3)

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
