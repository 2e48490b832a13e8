"""What replicas counted, together."""

import random
import unittest

from sis.servers.merged_answers import merged_histories
from sis.v1 import ratio_service_pb2 as pb


def stretch(first, last, accepted, ended_at=None):
    return pb.GetHistoryResponse.Stretch(
        first_draw=first,
        last_draw=last,
        draws=last - first + 1,
        begun_at=first,
        ended_at=last + 0.5 if ended_at is None else ended_at,
        totals=pb.Totals(accepted=accepted, d=accepted / 8),
        sequences=1,
        missing=[pb.MissingTotals(reason=pb.EVICTED, positions=accepted)],
        corrections=[pb.CorrectionTotals(correction="plain", positions=accepted, weight=accepted / 4)],
    )


class MergedHistoriesTest(unittest.TestCase):
    def test_draws_that_were_thinned_alike_are_added_up(self):
        parts = [pb.GetHistoryResponse(stretches=[stretch(0, 3, n), stretch(4, 4, 2 * n)]) for n in (1, 2, 4)]
        old, new = merged_histories(parts).stretches
        for merged, accepted, draws in ((old, 7, 4), (new, 14, 1)):
            self.assertEqual(merged.totals, pb.Totals(accepted=accepted, d=accepted / 8))
            self.assertEqual(merged.draws, draws)
            self.assertEqual(merged.sequences, 3)
            self.assertEqual([part.positions for part in merged.missing], [accepted])
            self.assertEqual(merged.corrections[0].weight, accepted / 4)

    def test_nothing_is_lost_wherever_the_bounds_are(self):
        rng = random.Random(4)
        for _ in range(200):
            parts, accepted = [], 0
            for _ in range(rng.randrange(1, 4)):
                bounds = sorted(rng.sample(range(1, 60), rng.randrange(0, 20)))
                stretches = []
                for first, end in zip([0, *bounds], [*bounds, 60]):
                    if rng.random() < 0.8:
                        accepted += first + 1
                        stretches.append(stretch(first, end - 1, first + 1))
                parts.append(pb.GetHistoryResponse(stretches=stretches))
            merged = merged_histories(parts)
            most = max(parts, key=lambda part: len(part.stretches))
            bounds = [(s.first_draw, s.last_draw, s.draws) for s in merged.stretches]
            own = [(s.first_draw, s.last_draw, s.draws) for s in most.stretches]
            self.assertEqual([each for each in bounds if each in own], own)
            for first, last, draws in set(bounds) - set(own):  # of another, which lay nowhere
                self.assertEqual(draws, last - first + 1)
                self.assertFalse(any(begin <= last <= end for begin, end, _ in own))
            for s in (s for part in parts for s in part.stretches):
                self.assertTrue(any(begin <= s.last_draw <= end for begin, end, _ in bounds))
            ends = [s.ended_at for s in merged.stretches]
            self.assertEqual(ends, sorted(ends))
            self.assertEqual(sum(s.totals.accepted for s in merged.stretches), accepted)
            self.assertEqual(sum(s.missing[0].positions for s in merged.stretches), accepted)

    def test_a_draw_that_was_evaluated_again_adds_to_the_newer_one(self):
        one = pb.GetHistoryResponse(stretches=[stretch(0, 9, 1), stretch(5, 5, 1, ended_at=20)])
        other = pb.GetHistoryResponse(stretches=[stretch(5, 5, 8, ended_at=20.5)])
        merged = merged_histories([one, other])
        self.assertEqual([s.totals.accepted for s in merged.stretches], [1, 9])
        self.assertEqual(merged.stretches[1].ended_at, 20.5)

    def test_draws_that_only_one_has_seen_have_a_stretch_each(self):
        seen = [(0, 2, 3, 6), (0, 1, 3), (3, 4, 7)]
        parts = [pb.GetHistoryResponse(stretches=[stretch(n, n, 1) for n in draws]) for draws in seen]
        merged = merged_histories(parts).stretches
        self.assertEqual(
            [(s.first_draw, s.last_draw, s.draws, s.totals.accepted) for s in merged],
            [(n, n, 1, sum(n in draws for draws in seen)) for n in (0, 1, 2, 3, 4, 6, 7)],
        )

    def test_a_draw_is_any_64_bits(self):
        largest = 2**64 - 1
        parts = [pb.GetHistoryResponse(stretches=[stretch(largest, largest, n)]) for n in (1, 2)]
        (merged,) = merged_histories(parts).stretches
        self.assertEqual((merged.first_draw, merged.last_draw, merged.draws), (largest, largest, 1))
        self.assertEqual(merged.totals.accepted, 3)

    def test_no_draws(self):
        self.assertEqual(list(merged_histories([pb.GetHistoryResponse()] * 2).stretches), [])


if __name__ == "__main__":
    unittest.main()
