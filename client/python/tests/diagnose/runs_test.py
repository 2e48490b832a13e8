"""Diagnosis of a run, from what a server would answer."""

import dataclasses
import json
import unittest
from unittest import mock

import numpy as np

import sis
from sis.diagnose.runs import compare_inspected, diagnose_run
from sis.v1 import ratio_service_pb2 as pb

POSITIONS, VOCABULARY, SLOTS = 128, 40, 4


def status(sampling=None, findings=()):
    proto = pb.Run(run_id="r", config=pb.RunConfig(log_prob_encoding=pb.LOG_PROB_ENCODING_FLOAT32))
    made = sis.RunStatus.from_proto(proto)
    return dataclasses.replace(made, sampling=sampling, findings=tuple(findings), last_draw=0)


def diagnose(inspections, status=status(), ages=()):
    """Diagnoses a run of sequences "0", "1", ..., one for each inspection."""
    kept = tuple(
        sis.InspectedSequence(sis.SequenceRef(str(i)), draw=0, positions=1, totals=None, cut_begin=0, cut_end=0)
        for i in range(len(inspections))
    )
    client = mock.Mock()
    client.get_run.return_value = status
    client.list_steps.return_value = {0: mock.Mock(ages=ages)}
    client.inspect_run.return_value = sis.RunInspection(kept, (), ())
    client.inspect_sequence.side_effect = lambda run, sequence: inspections[int(sequence.id)]
    return diagnose_run(client, "r")


def inspection(decisions, first_position=0, slots=SLOTS, **arrays):
    """Arrays of zeros, except for those given."""
    size = len(decisions)
    of_one = {
        "missing_reasons": np.uint8, "sampled_ids": np.int32, "sampled_log_probs": np.float32, "log_ratios": np.float32,
        "acceptance_probabilities": np.float32, "log_envelopes": np.float32, "residual_masses": np.float32,
        "uniforms": np.float64, "staleness": np.int64,
    }  # fmt: skip
    of_slots = {"top_k_ids": np.int32, "top_k_log_probs": np.float32, "current_log_probs": np.float32}
    fields = {name: np.zeros(size, dtype) for name, dtype in of_one.items()}
    fields.update((name, np.zeros((size, slots), dtype)) for name, dtype in of_slots.items())
    fields.update(
        draw=0, first_position=first_position, decisions=np.asarray(decisions, np.uint8), cut_begin=0, cut_end=0
    )
    fields.update(arrays)
    return sis.SequenceInspection(**fields)


def sampled(kept, noise, seed):
    """Samples a policy that is `noise` nats per logit from the recorded one. Records are renormalised over the `kept`
    most probable tokens, and list the first SLOTS of these. The sampled token is number 0."""
    rng = np.random.default_rng(seed)
    q = -np.sort(-1.5 * rng.normal(size=(POSITIONS, VOCABULARY)), axis=1)
    p = q + noise * rng.normal(size=q.shape)
    q -= np.logaddexp.reduce(q[:, :kept], axis=1, keepdims=True)
    p -= np.logaddexp.reduce(p, axis=1, keepdims=True)
    drawn = (q[:, :kept] + rng.gumbel(size=(POSITIONS, kept))).argmax(axis=1)
    at = np.arange(POSITIONS), drawn
    log_ratios = p[at].astype(np.float32) - q[at].astype(np.float32)
    return inspection(
        np.where(log_ratios < -0.5, 2, 1),
        sampled_log_probs=q[at].astype(np.float32),
        log_ratios=log_ratios,
        top_k_ids=((np.arange(SLOTS) - drawn[:, None]) % VOCABULARY).astype(np.int32),
        top_k_log_probs=q[:, :SLOTS].astype(np.float32),
        current_log_probs=p[:, :SLOTS].astype(np.float32),
    )


def diagnosed(kept, noise, sampling=None, **changes):
    """Diagnoses two sequences; `changes` are functions of the second one's arrays, by name."""
    one, two = (sampled(kept, noise, seed) for seed in (1, 2))
    two = dataclasses.replace(two, **{name: change(two) for name, change in changes.items()})
    return diagnose([one, two], status(sampling)).tokens


def faults_of(diagnosis):
    return [check.name for check in diagnosis.checks if check.fault]


class RunsTest(unittest.TestCase):
    def test_positions_before_the_first_take_only_their_space(self):
        diagnosis = diagnose([inspection([], first) for first in (1 << 16, 1 << 17, 1 << 16)])
        self.assertEqual(diagnosis.sequences, ("0", "2"))
        self.assertEqual([(part.name, part.positions) for part in diagnosis.tokens.left_out][-1], ("not_asked", 1))
        with self.assertRaisesRegex(sis.NotFound, "too far"):
            diagnose([inspection([], (1 << 17) + 1)])

    def test_no_data_gives_only_a_verdict(self):
        with self.assertRaisesRegex(sis.NotFound, "nothing has been evaluated"):
            diagnose([])
        finding = sis.Finding("SisTrainerStopped", sis.Verdict.BROKEN, "no steps", "Look at the trainer")
        made = diagnose([], status(findings=[finding])).as_json()
        self.assertEqual((made["fault"], made["undecided"], made["checks"]), (True, False, []))
        self.assertIn("Its tokens tell nothing", made["verdict"][0])
        self.assertEqual(made["findings"][0]["verdict"], "BROKEN")
        of_tokens = diagnose([sampled(VOCABULARY, 0.01, 1)], status(findings=[finding]))
        self.assertTrue(of_tokens.as_json()["fault"])
        self.assertIn("Of its tokens: no fault was found", of_tokens.as_json()["verdict"][0])

    def test_json_holds_finite_numbers_only(self):
        made = diagnose([sampled(VOCABULARY, 0.01, 1)] * 2).as_json()
        self.assertEqual(json.loads(json.dumps(made, allow_nan=False)), made)
        self.assertIn(None, [check["value"] for check in made["checks"]])

    def test_limits_of_the_age_count_sequences_of_the_sample(self):
        made = sampled(VOCABULARY, 0.01, 1)
        # The age of a position that was not scored counts for nothing.
        made.decisions[0] = 4
        inspections = [dataclasses.replace(made, staleness=np.arange(POSITIONS) + first) for first in (0, 4, 8)]
        ages = [sis.AgeTotals(0, 0, accepted=500), sis.AgeTotals(4, 7, accepted=100, rejected=400)]
        limits = diagnose(inspections, ages=ages).as_json()["ages"]["limits"]
        self.assertEqual([limit["max_staleness"] for limit in limits], [None, 3])
        # The youngest ages are 1, 5 and 9.
        self.assertEqual([limit["sequences_left_out"] for limit in limits], [0, 2 / 3])
        self.assertEqual([limit["tokens_left_out"] for limit in limits], [0, 0.5])

    def test_a_filter_of_the_recorded_sampling_is_named_first(self):
        # The filter keeps more tokens than are recorded, so no list reveals it.
        unknown = diagnosed(10, 0.01)
        self.assertTrue(unknown.fault or unknown.undecided)
        self.assertNotIn("filter", " ".join(unknown.verdict))
        diagnosis = diagnosed(10, 0.01, sis.Sampling("processed", top_p=0.8))
        self.assertEqual(diagnosis.checks[0].name, "filter")
        self.assertEqual(faults_of(diagnosis)[0], "filter")
        self.assertIn("a filter left (top_p 0.8)", diagnosis.verdict[0])
        self.assertNotRegex(" ".join(diagnosis.verdict), "checkpoint|template")

    def test_a_filter_on_both_sides_is_no_fault(self):
        diagnosis = diagnosed(VOCABULARY, 0.01, sis.Sampling("processed", top_p=0.8))
        self.assertEqual(faults_of(diagnosis), [])
        self.assertFalse(diagnosis.fault)
        self.assertIn("(top_p 0.8), and the current", diagnosis.verdict[0])
        # Settings that filter nothing are not named.
        neutral = sis.Sampling("processed", top_p=1.0, top_k=-1, min_p=0.0)
        self.assertEqual(diagnosed(VOCABULARY, 0.01, neutral).verdict, diagnosed(VOCABULARY, 0.01).verdict)

    def test_ranges_of_exact_zeros_are_padding(self):
        def zeros(first, last, current):
            def changed(name, value):
                def change(made):
                    array = getattr(made, name).copy()
                    array[first:last] = value
                    return array

                return change

            values = {"sampled_log_probs": 0, "log_ratios": current, "top_k_ids": -1}
            return diagnosed(VOCABULARY, 0.01, **{name: changed(name, value) for name, value in values.items()})

        padded = zeros(40, 60, -1.5)
        self.assertEqual(faults_of(padded), ["zeros"])
        said = "20 recorded log-probs in 1 ranges are exactly 0, the first from position 40 of sequence 1 on"
        self.assertIn(said, padded.verdict[0])
        self.assertNotIn("zeros", faults_of(zeros(40, 47, -1.5)), "too few in a row")
        self.assertEqual(faults_of(zeros(40, 60, -1e-4)), [], "both sides are certain")

    def test_versions_ahead_of_the_runs_are_a_fault(self):
        def at(staleness):
            return diagnosed(VOCABULARY, 0.01, staleness=lambda made: np.full(POSITIONS, staleness))

        ahead = at(-9)
        self.assertEqual(faults_of(ahead), ["ahead"])
        self.assertIn("128 of 256 tokens are of versions newer than the run's, by up to 9", ahead.verdict[0])
        self.assertEqual(faults_of(at(9)), [])

    def test_a_position_is_left_out_for_one_reason(self):
        """The last position kept is scored, one before it was not evaluated, with what is kept from 2 on."""
        decisions = [sis.Decision.MASKED, 0, sis.Decision.MISSING, sis.Decision.ACCEPTED]
        others = {"missing_no_log_prob": 1, "masked": 1}
        for (begin, end), expected in {
            (0, 0): {"not_evaluated": 3},
            (6, 9): {"not_evaluated": 3, "not_kept": 3},
            # The cut leaves a range around positions that are kept.
            (1, 8): {"not_evaluated": 1, "not_kept": 4},
            (9, 7): {"not_evaluated": 3},  # no range
        }.items():
            reasons = np.full(4, sis.MissingReason.NO_LOG_PROB, np.uint8)
            made = inspection(
                decisions, first_position=2, slots=0, cut_begin=begin, cut_end=end, missing_reasons=reasons
            )
            compared, left_out = compare_inspected([made])
            self.assertEqual({part.name: part.positions for part in left_out}, {**others, **expected}, (begin, end))
            self.assertEqual(int(compared.decisions.scored.sum()), 1)


if __name__ == "__main__":
    unittest.main()
