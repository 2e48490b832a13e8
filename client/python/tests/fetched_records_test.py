"""A FetchTopK stream is taken whole or not at all."""

import unittest

import grpc
import numpy as np

import sis
from sis import _blocks
from sis.v1 import ratio_service_pb2 as pb
from sis._wire import fetched_records

K = 3
CONFIG = sis.RunConfig(seed=1, vocabulary_size=1000, top_k=K, log_prob_encoding="float32")
COUNTS = [2, 0, 3, 1, 3]


def block(first, rows):
    """Packs the positions first + row. Position p has COUNTS[p % 5] slots, whose ids begin at 10 p."""
    positions = np.arange(first, first + rows)
    used = np.arange(K) < np.take(COUNTS, positions % 5)[:, None]
    ids = np.where(used, 10 * positions[:, None] + np.arange(K), -1).astype(np.int32)
    log_probs = np.where(used, -1 - np.arange(K, dtype=np.float32), -np.inf).astype(np.float32)
    sampled = (500 + positions).astype(np.int32), (-5 - positions / 8).astype(np.float32)
    return bytes(_blocks.pack([_blocks.Records(first, 0, *sampled, ids, log_probs)], CONFIG)[0])


def entry(index, *parts, missing=(), length=None):
    """length: None: it goes on."""
    gaps = [pb.MissingRange(first_position=begin, length=count, reason=pb.MISSING_REASON_STALE) for begin, count in missing]
    made = pb.FetchedSlice(slice=index, missing=gaps, blocks=parts)
    if length is not None:
        made.length, made.record_digest = length, 7 + index
    return made


REQUEST = pb.FetchTopKRequest(slices=[pb.Slice(first_position=4), pb.Slice(length=5)])


def records(*responses, request=REQUEST, log_probs=True):
    stream = [pb.FetchTopKResponse(slices=parts) for parts in responses]
    return fetched_records.assemble(fetched_records.gathered(request, stream), K, log_probs)


# Entries of two slices. Blocks extend beyond the slices, overlap, and contain missing positions.
FIRST = entry(0, block(2, 3), block(4, 3), missing=[(6, 1)])
REST = entry(0, block(6, 7), missing=[(7, 1)], length=6)
SECOND = entry(1, block(0, 5), length=5)


class FetchedRecordsTest(unittest.TestCase):
    def check(self, found):
        self.assertEqual([(part.first_position, part.length, part.record_digest) for part in found.slices], [(4, 6, 7), (0, 5, 8)])
        positions = np.array([4, 5, 6, 7, 8, 9, 0, 1, 2, 3, 4])
        there = (positions != 6) & (positions != 7) | (np.arange(11) > 5)
        counts = np.where(there, np.take(COUNTS, positions % 5), 0)
        self.assertEqual(found.counts.tolist(), counts.tolist())
        self.assertEqual(found.present.tolist(), there.tolist())
        self.assertEqual(found.sampled_ids.tolist(), np.where(there, 500 + positions, -1).tolist())
        np.testing.assert_array_equal(found.sampled_log_probs, np.where(there, -5 - positions / 8, np.nan))
        used = np.arange(K) < counts[:, None]
        self.assertEqual(found.ids.tolist(), np.where(used, 10 * positions[:, None] + np.arange(K), -1).tolist())
        self.assertEqual(found.used_ids.tolist(), found.ids[used].tolist())
        stale = sis.MissingReason.STALE
        self.assertEqual(found.missing, (sis.MissingRange(0, 6, 1, stale), sis.MissingRange(0, 7, 1, stale)))
        return used

    def test_blocks_become_arrays(self):
        for responses in ([[FIRST], [REST], [SECOND]], [[FIRST], [REST, SECOND]], [[FIRST, REST, SECOND]]):
            found = records(*responses)
            used = self.check(found)
            expected = np.where(used, -1 - np.arange(K, dtype=np.float32), -np.inf)
            np.testing.assert_array_equal(found.log_probs, expected)

    def test_without_log_probs(self):
        found = records([FIRST, REST, SECOND], log_probs=False)
        self.check(found)
        for name in ("log_probs", "used_log_probs"):
            with self.assertRaisesRegex(AttributeError, "fetch_top_k was called with log_probs=False"):
                getattr(found, name)

    def test_a_part_of_the_records(self):
        found = records([FIRST, REST, SECOND])
        np.testing.assert_array_equal(found.select([1]).used_ids, found.used_ids[found.offsets[6] :])
        np.testing.assert_array_equal(found.cut([(1, 2, 2), (0, 0, 3)]).ids, found.ids[[8, 9, 0, 1, 2]])

    def test_missing_positions(self):
        request = pb.FetchTopKRequest(slices=[pb.Slice(), pb.Slice(first_position=3, length=2)])
        lost = [entry(0, missing=[(0, 0)], length=0), entry(1, missing=[(3, 2)], length=2)]
        found = records(lost, request=request)
        self.assertEqual((len(found), found.ids.tolist()), (2, [[-1] * K] * 2))
        stale = sis.MissingReason.STALE
        self.assertEqual(found.missing, (sis.MissingRange(0, 0, 0, stale), sis.MissingRange(1, 3, 2, stale)))
        self.assertEqual(len(records(request=pb.FetchTopKRequest())), 0)

    def test_a_broken_stream_is_not_taken(self):
        damaged = bytearray(block(0, 5))
        damaged[-1] ^= 1
        for message, broken in (
            (r"the slices \[0\] of 2", [FIRST, REST]),
            (r"the slices \[0, 1, 2\] of 2", [FIRST, REST, SECOND, entry(2, block(0, 1), length=1)]),
            (r"slice 0 with 2 records and the gaps \[\(6, 7\)\] of \[4, 10\)", [entry(0, block(2, 4), missing=[(6, 1)], length=6), SECOND]),
            ("slice 1 with 4 records", [FIRST, REST, entry(1, block(1, 4), length=5)]),
            ("slice 1 with 3 records", [FIRST, REST, entry(1, block(2, 3), block(0, 3), length=5)]),
            ("slice 1 with a bad block: block: its checksum", [FIRST, REST, entry(1, bytes(damaged), length=5)]),
        ):
            with self.subTest(message), self.assertRaisesRegex(sis.Error, message) as raised:
                records(broken)
            self.assertEqual(raised.exception.code, grpc.StatusCode.DATA_LOSS)


if __name__ == "__main__":
    unittest.main()
