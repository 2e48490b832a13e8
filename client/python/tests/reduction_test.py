import importlib.util
import unittest

import numpy as np

import sis

KINDS = {"arrays": np.asarray}
if importlib.util.find_spec("torch"):
    import torch

    KINDS["tensors"] = torch.from_numpy


def records(rows, slots, vocabulary, seed):
    """Random records; some with unused slots, the last without a record."""
    rng = np.random.default_rng(seed)
    log_softmax = rng.normal(size=(rows, vocabulary)).astype(np.float32) * 3
    log_softmax -= np.logaddexp.reduce(log_softmax, axis=1, keepdims=True)
    sampled = rng.integers(vocabulary, size=rows)
    sampled_log_probs = np.take_along_axis(log_softmax, sampled[:, None], axis=1)[:, 0]
    ids = np.broadcast_to(np.arange(vocabulary), log_softmax.shape)
    record = sis.canonical(ids, log_softmax, sampled, sampled_log_probs, slots)
    top_k_ids, top_k_log_probs = record.top_k_ids, record.top_k_log_probs
    for row in range(0, rows, 3):
        used = rng.integers(slots)
        top_k_ids[row, used:] = -1
        top_k_log_probs[row, used:] = -np.inf
    top_k_ids[-1], top_k_log_probs[-1] = -1, -np.inf
    sampled_ids = record.sampled_ids.copy()
    sampled_ids[-1] = -1
    record.sampled_log_probs[-1] = np.nan
    return sis.TopKRecords.of_rows(
        [sis.Slice("s", length=rows)], top_k_ids, sampled_ids, top_k_log_probs, record.sampled_log_probs
    )


def log_softmax_of(rows, vocabulary, seed):
    logits = np.random.default_rng(seed).normal(size=(rows, vocabulary)).astype(np.float32) * 3
    return (logits - np.logaddexp.reduce(logits, axis=1, keepdims=True)).astype(np.float32)


def by_hand(records, log_probs, k):
    """numerics.md, sections 4 and 5, word by word; the exponential is libm's in double."""
    envelopes, masses = [], []
    for behaviour, current in zip(records.log_probs, log_probs):
        used = [j for j in range(k) if behaviour[j] != -np.inf]
        envelope = max((np.float32(current[j]) - behaviour[j] for j in used), default=np.float32(-np.inf))
        envelopes.append(np.float32(0) if abs(envelope) < 2.0**-100 else envelope)
        masses.append(sum(np.exp(np.float64(current[j])) for j in used))
    return np.array(envelopes, np.float32), np.array(masses)


class ReductionTest(unittest.TestCase):
    def setUp(self):
        self.records = records(60, 8, 20, seed=3)
        self.log_softmax = log_softmax_of(60, 20, seed=4)

    def check(self, reduced, log_probs, k):
        envelopes, masses = (np.asarray(values) for values in reduced)
        want_envelopes, want_masses = by_hand(self.records, log_probs, k)
        self.assertEqual(envelopes.dtype, np.float32)
        self.assertEqual(envelopes.tobytes(), want_envelopes.tobytes())
        self.assertEqual(masses.dtype, np.float32)
        np.testing.assert_allclose(masses, want_masses, rtol=1e-6, atol=0)

    def test_envelopes_have_the_bits_of_the_document(self):
        log_probs, _ = sis.gather(self.records, self.log_softmax)
        for top_k in (0, 1, 3, 8):
            self.check(sis.reduce(self.records, log_probs, top_k), log_probs, top_k or 8)

    def test_unused_slots_may_hold_anything(self):
        log_probs, _ = sis.gather(self.records, self.log_softmax)
        clean = sis.reduce(self.records, log_probs)
        for rubbish in (np.nan, np.inf, -np.inf, 1e30):
            dirty = np.where(self.records.ids < 0, np.float32(rubbish), log_probs)
            for got, want in zip(sis.reduce(self.records, dirty), clean):
                np.testing.assert_array_equal(got, want)

    def test_an_envelope_near_zero_is_positive_zero(self):
        """Log-probs on both sides of the flush threshold, of records of probability 1."""
        edge = np.float32(2.0**-100)
        below = np.nextafter(edge, np.float32(0))
        log_probs = np.array([[edge], [-edge], [below], [-below], [-0.0], [2.0**-140]], np.float32)
        none = np.zeros((6, 1), np.int32)
        certain = sis.TopKRecords.of_rows(
            [sis.Slice("s", length=6)], none, none[:, 0], np.zeros((6, 1), np.float32)
        )
        want = np.array([edge, -edge, 0, 0, 0, 0], np.float32).tobytes()
        for name, made in KINDS.items():
            with self.subTest(name):
                self.assertEqual(np.asarray(sis.reduce(certain, made(log_probs))[0]).tobytes(), want)

    def test_excluded_tokens_neither_raise_the_envelope_nor_add_mass(self):
        one = sis.TopKRecords.of_rows(
            [sis.Slice("s", length=1)], np.array([[3, 4]]), np.array([5]), np.array([[-1.0, -2.0]], np.float32)
        )
        envelopes, masses = sis.reduce(one, np.array([[-np.inf, -1.5]], np.float32))
        self.assertEqual(envelopes[0], 0.5)
        self.assertAlmostEqual(masses[0], np.exp(-1.5), places=6)
        envelopes, masses = sis.reduce(one, np.array([[-np.inf, -np.inf]], np.float32))
        self.assertEqual((envelopes[0], masses[0]), (-np.inf, 0.0))

    def test_gather_takes_slots_and_sampled_token_from_the_same_place(self):
        log_probs, sampled_log_probs = sis.gather(self.records, self.log_softmax)
        for row, (ids, token) in enumerate(zip(self.records.ids, self.records.sampled_ids)):
            for slot, token_id in enumerate(ids):
                self.assertEqual(log_probs[row, slot], self.log_softmax[row, max(token_id, 0)])
            if token >= 0:
                self.assertEqual(sampled_log_probs[row], self.log_softmax[row, token])

    def test_gather_takes_the_trainers_token_where_none_is_recorded(self):
        """A token that nobody names has no log-prob, least of all that of token 0."""
        tokens = self.records.sampled_ids
        self.assertEqual(tokens[-1], -1)
        for name, made in KINDS.items():
            with self.subTest(name):
                gather = lambda *own: np.asarray(sis.gather(self.records, made(self.log_softmax), *map(made, own))[1])
                want = np.array([row[token] for row, token in zip(self.log_softmax, tokens)], np.float32)
                self.assertTrue(np.isnan(gather()[-1]))
                np.testing.assert_array_equal(gather()[:-1], want[:-1])
                # The trainer's tokens count only where none is recorded.
                own = (tokens + 1) % 20
                own[-1] = 7
                want[-1] = self.log_softmax[-1, 7]
                np.testing.assert_array_equal(gather(own), want)
                own[-1] = -1
                self.assertTrue(np.isnan(gather(own)[-1]))
                own[-1] = 20
                with self.assertRaisesRegex(ValueError, r"sampled_ids, row 59: 20 is not in \[0, 20\)"):
                    gather(own)
                with self.assertRaisesRegex(ValueError, r"sampled_ids has shape \[59\], must be \[60\]"):
                    gather(own[:-1])

    def test_shapes_are_checked(self):
        with self.assertRaisesRegex(ValueError, r"log_softmax has shape \[59, 20\], must be \[60, vocabulary\]"):
            sis.gather(self.records, self.log_softmax[:-1])
        with self.assertRaisesRegex(ValueError, r"row \d+: 1\d is not in \[0, 10\)"):
            sis.gather(self.records, self.log_softmax[:, :10])
        with self.assertRaisesRegex(ValueError, r"log_probs has shape \[60, 7\], must be \[60, 8\]"):
            sis.reduce(self.records, np.zeros((60, 7), np.float32))
        with self.assertRaisesRegex(ValueError, r"top_k is 9, must be in \[0, 8\]"):
            sis.reduce(self.records, np.zeros((60, 8), np.float32), top_k=9)

    @unittest.skipUnless(importlib.util.find_spec("torch"), "PyTorch is not installed")
    def test_tensors_give_the_same_bits(self):
        logits = torch.from_numpy(self.log_softmax).requires_grad_()
        log_probs, sampled_log_probs = sis.gather(self.records, logits)
        want_log_probs, want_sampled = sis.gather(self.records, self.log_softmax)
        self.assertFalse(log_probs.requires_grad or sampled_log_probs.requires_grad)
        np.testing.assert_array_equal(log_probs.numpy(), want_log_probs)
        np.testing.assert_array_equal(sampled_log_probs.numpy(), want_sampled)
        for top_k in (0, 1, 3, 8):
            self.check(sis.reduce(self.records, log_probs, top_k), want_log_probs, top_k or 8)

    @unittest.skipUnless(importlib.util.find_spec("torch"), "PyTorch is not installed")
    def test_tensors_in_half_precision_are_widened_before_any_arithmetic(self):
        half = torch.from_numpy(self.log_softmax).bfloat16()
        log_probs, _ = sis.gather(self.records, half)
        self.assertEqual(log_probs.dtype, torch.float32)
        self.check(sis.reduce(self.records, log_probs.bfloat16()), log_probs.numpy(), 8)


if __name__ == "__main__":
    unittest.main()
