"""compat = AUTHORS_CODE against a transcription of its description."""

import ctypes
import unittest

import numpy as np

from tests.algorithms import kernel
from tests.reference import authors_code

COUNT, SLOTS = 20000, 10


class AuthorsCodeTest(unittest.TestCase):
    def setUp(self):
        rng = np.random.default_rng(11)
        self.slot_behaviour = -np.sort(rng.exponential(4, (COUNT, SLOTS)).astype(np.float32), axis=1)
        scale = rng.choice([0.1, 1, 15], (COUNT, 1))
        self.slot_current = np.minimum(self.slot_behaviour + rng.normal(0, scale, (COUNT, SLOTS)), 0).astype(np.float32)
        self.slot_current[rng.random((COUNT, SLOTS)) < 0.02] = -np.inf
        self.slot_behaviour[::5, 6:] = -np.inf
        self.slot_behaviour[::50] = -np.inf
        slot = rng.integers(SLOTS, size=COUNT)
        rows = np.arange(COUNT)
        self.behaviour, self.current = self.slot_behaviour[rows, slot].copy(), self.slot_current[rows, slot].copy()
        outside = ~np.isfinite(self.behaviour) | (rng.random(COUNT) < 0.2)
        self.behaviour[outside] = -rng.exponential(9, outside.sum()).astype(np.float32)
        self.current[outside] = -rng.exponential(9, outside.sum()).astype(np.float32)
        equal = rng.random(COUNT) < 0.1
        self.current[equal] = self.behaviour[equal]
        self.outside, self.equal = outside, equal
        self.words = rng.integers(2**32, size=COUNT, dtype=np.uint32)

    def kernel(self, low, high):
        accepted = np.zeros(COUNT, np.uint8)
        a, log_ratios = np.empty(COUNT, np.float32), np.empty(COUNT, np.float32)
        sums = np.zeros(2, np.int64)
        inputs = (self.behaviour, self.current, self.slot_behaviour, self.slot_current, self.words)
        kernel.LIBRARY.sis_authors_code(
            ctypes.c_uint64(COUNT), ctypes.c_uint64(SLOTS), *(kernel.pointer(x) for x in inputs),
            ctypes.c_float(low), ctypes.c_float(high), *(kernel.pointer(x) for x in (accepted, a, log_ratios, sums)),
        )
        return authors_code.Decisions(accepted.astype(bool), a, log_ratios), sums

    def test_same_decisions_and_sums(self):
        want = authors_code.decide(self.behaviour, self.current, self.slot_behaviour, self.slot_current, self.words)
        for low, high in ((0.2, 0.2), (0.2, 0.28), (3e-4, 4e-4)):
            got, sums = self.kernel(low, high)
            for field in want._fields:
                self.assertEqual(getattr(got, field).tobytes(), getattr(want, field).tobytes(), field)
            means = authors_code.mean_deviation(want, low, high)
            # Every addend is truncated to 2^-30, and the bounds are rounded to float32.
            np.testing.assert_allclose(sums * 2.0**-30 / COUNT, means, rtol=1e-6, atol=2.0**-30)

    def test_what_differs_from_the_paper_occurs(self):
        got, _ = self.kernel(0.2, 0.2)
        self.assertTrue(got.accepted[self.equal].all())
        # By the paper, none of these.
        self.assertGreater(got.accepted[self.outside & ~self.equal].sum(), 100)
        self.assertGreater((np.abs(got.log_ratios) == 20).sum(), 100)
        self.assertGreater((~got.accepted & (got.acceptance_probabilities > 0)).sum(), 1000)


if __name__ == "__main__":
    unittest.main()
