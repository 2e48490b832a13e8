import unittest

import numpy as np

import sis

INF = np.inf


def canonical(ids, log_probs, sampled_id, sampled_log_prob, top_k, sampled_column=None):
    """Returns the ids, log-probs and sampled log-prob of one position."""
    record = sis.canonical([ids], [log_probs], [sampled_id], [sampled_log_prob], top_k, sampled_column)
    return record.top_k_ids[0].tolist(), record.top_k_log_probs[0].tolist(), record.sampled_log_probs[0].item()


class CanonicalTest(unittest.TestCase):
    def test_repeated_own_column_counts_once(self):
        ids, log_probs, _ = canonical([5, 3, 5], [-1.5, -0.5, -1.5], 5, -1.5, 2, "first")
        self.assertEqual(ids, [3, 5])
        self.assertEqual(log_probs, [-0.5, -1.5])

        ids, _, _ = canonical([5, 3, 5, 0], [-1.5, -0.5, -1.5, -INF], 5, -1.5, 3, "first")
        self.assertEqual(ids, [3, 5, -1])

    def test_sampled_log_prob_becomes_that_of_its_slot(self):
        _, log_probs, sampled = canonical([3, 5], [-0.5, -1.5], 5, np.float32(-1.5000001), 2)
        self.assertEqual(log_probs, [-0.5, -1.5])
        self.assertEqual(sampled, -1.5)

    def test_the_set_is_the_same_whichever_token_was_drawn(self):
        rng = np.random.default_rng(7)
        vocabulary, kept = 12, 5
        # Steps of 1/2 make ties common.
        log_probs = np.round(rng.normal(size=(200, vocabulary)) * 2) / 2 - 4
        by_rank = np.lexsort((np.broadcast_to(np.arange(vocabulary), log_probs.shape), -log_probs), axis=1)
        best = by_rank[:, :kept]
        best_log_probs = np.take_along_axis(log_probs, best, axis=1)
        sets = []
        for token in range(vocabulary):
            drawn = np.full(200, token)
            drawn_log_probs = log_probs[:, token]
            record = sis.canonical(
                np.column_stack([drawn, best]),
                np.column_stack([drawn_log_probs, best_log_probs]),
                drawn,
                drawn_log_probs,
                kept,
                "first",
            )
            sets.append((record.top_k_ids.tobytes(), record.top_k_log_probs.tobytes()))
            inside = (record.top_k_ids == token).any(axis=1)
            np.testing.assert_array_equal(inside, (best == token).any(axis=1))
        self.assertEqual(len(set(sets)), 1)

    def test_the_order_is_that_of_two_keys(self):
        """Falling log-probs, equal ones by rising id, whatever their signs and however small."""
        rng = np.random.default_rng(9)
        ids = rng.permuted(np.tile(np.arange(40, dtype=np.int32), (500, 1)), axis=1)[:, :24]
        ids[rng.random(ids.shape) < 0.01] += 1 << 30
        some = np.float32([-INF, -88, -3, -1e-40, -0.0, 0.0, 1e-40, 1.5])
        drawn = rng.standard_normal(ids.shape).astype(np.float32)
        values = np.where(rng.random(ids.shape) < 0.5, rng.choice(some, ids.shape), drawn)
        record = sis.canonical(ids, values, ids[:, 0], np.zeros(500), 24)
        order = np.lexsort((np.where(np.isneginf(values), 1 << 31, ids), -values), axis=1)
        expected = np.take_along_axis(values, order, axis=1)
        np.testing.assert_array_equal(record.top_k_log_probs, expected)
        ordered = np.take_along_axis(ids, order, axis=1)
        np.testing.assert_array_equal(record.top_k_ids, np.where(np.isneginf(expected), -1, ordered))

    def test_the_sampled_column_is_found_by_looking(self):
        """Rows sorted by rank, as TRL gives them: each token once, the sampled one last if it is outside."""
        rng = np.random.default_rng(8)
        for outside in (False, True):
            first = rng.permutation(30)[:5].tolist()
            log_probs = [-1.0, -2.0, -2.5, -3.0, -4.0]
            token = first[4] if outside else first[2]
            # The engine returns the 4 requested tokens, and the sampled one only if it is not among these.
            ids, values = (first, log_probs) if outside else (first[:4] + [-1], log_probs[:4] + [-INF])
            found, _, sampled = canonical(ids, values, token, log_probs[first.index(token)], 5, "any")
            self.assertEqual(found, first[:4] + [-1])
            self.assertEqual(sampled, log_probs[first.index(token)])
        with self.assertRaisesRegex(ValueError, "sampled_ids, position 0: 9 is in no column of ids"):
            canonical([4, 2], [-1.0, -2.0], 9, -2.0, 2, "any")

    def test_invalid_records_are_refused(self):
        with self.assertRaisesRegex(ValueError, "log_probs, position 0: nan"):
            canonical([1, 2], [-1.0, np.nan], 1, -1.0, 2)
        with self.assertRaisesRegex(ValueError, "log_probs, position 0: inf"):
            canonical([1, 2], [-1.0, INF], 1, -1.0, 2)
        with self.assertRaisesRegex(ValueError, "sampled_log_probs, position 0: -inf"):
            canonical([1, 2], [-1.0, -2.0], 1, -INF, 2)
        with self.assertRaisesRegex(ValueError, "ids, position 0: 4 stands twice"):
            canonical([4, 2, 4], [-1.0, -2.0, -3.0], 2, -2.0, 3)
        with self.assertRaisesRegex(ValueError, "sampled column of ids, position 0: 4"):
            canonical([4, 2], [-1.0, -2.0], 2, -2.0, 2, "first")
        with self.assertRaisesRegex(ValueError, "top_k is 0"):
            canonical([1], [-1.0], 1, -1.0, 0)
        with self.assertRaisesRegex(ValueError, "sampled_column is 'middle'"):
            canonical([1], [-1.0], 1, -1.0, 1, "middle")

    def test_no_positions(self):
        record = sis.canonical(np.empty((0, 3), np.int32), np.empty((0, 3)), [], [], 2)
        self.assertEqual(record.top_k_ids.shape, (0, 2))
        self.assertEqual(record.sampled_ids.shape, (0,))


if __name__ == "__main__":
    unittest.main()
