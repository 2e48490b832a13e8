"""float16_rounded_up: never below, and as near as a half can be."""

import importlib.util
import unittest

import numpy as np

import sis
from sis.half_precision import RoundedUp

HALVES = np.arange(1 << 16, dtype=np.uint16).view(np.float16)


def values():
    """float32 of every kind, in no order: halves and their neighbours, any bits, log-probs."""
    rng = np.random.default_rng(1)
    halves = HALVES.astype(np.float32)
    around = [np.nextafter(halves, np.float32(end)) for end in (-np.inf, np.inf)]
    bits = rng.integers(0, 1 << 32, 200_000, dtype=np.uint64).astype(np.uint32).view(np.float32)
    log_probs = -(10.0 ** rng.uniform(-9, 5.5, 200_000)).astype(np.float32)
    edges = np.array([np.nan, -np.nan, np.inf, -np.inf, 0.0, -0.0, 65504, 65505, 65520, 1e38, -65504, -65505, -65536])
    # NaN that look like infinity, or are all ones, in their first bits.
    nans = np.array([0x7F800001, 0xFF800001, 0x7FFFFFFF, 0xFFFFFFFF, 0x7F801FFF, 0xFF801FFF], np.uint32).view(np.float32)
    return rng.permutation(np.concatenate([halves, *around, bits, log_probs, edges.astype(np.float32), nans]))


class HalfPrecisionTest(unittest.TestCase):
    def check(self, exact, rounded):
        """The law: h >= x, and no smaller half is."""
        self.assertEqual((rounded.dtype, rounded.shape), (np.float16, exact.shape))
        nan = np.isnan(exact)
        np.testing.assert_array_equal(np.isnan(rounded), nan)
        exact, rounded = exact[~nan], rounded[~nan]
        self.assertTrue((rounded.astype(np.float32) >= exact).all())
        lower = np.nextafter(rounded, np.float16(-np.inf)).astype(np.float32)
        self.assertTrue(((lower < exact) | (rounded == -np.inf)).all())

    def test_the_law_in_numpy(self):
        exact = values()
        self.check(exact, sis.float16_rounded_up(exact))
        self.check(exact[:-1].reshape(2, -1).T, sis.float16_rounded_up(exact[:-1].reshape(2, -1).T))
        self.check(np.float32([-1.5]), sis.float16_rounded_up([-1.5]))
        self.assertEqual(sis.float16_rounded_up(np.empty((0, 3), np.float32)).shape, (0, 3))

    @unittest.skipUnless(importlib.util.find_spec("torch"), "PyTorch is not installed")
    def test_the_law_in_tensors(self):
        import torch

        exact = values()
        self.check(exact, sis.float16_rounded_up(torch.from_numpy(exact).requires_grad_()).numpy())
        wide = torch.from_numpy(exact[: len(exact) // 5 * 5].reshape(-1, 5))
        self.check(wide.numpy()[:, 1:4], sis.float16_rounded_up(wide[:, 1:4]).numpy())
        self.assertEqual(tuple(sis.float16_rounded_up(torch.empty(0, 3)).shape), (0, 3))
        bfloat16 = torch.from_numpy(exact).bfloat16()
        self.check(bfloat16.float().numpy(), sis.float16_rounded_up(bfloat16).numpy())

    @unittest.skipUnless(importlib.util.find_spec("torch"), "PyTorch is not installed")
    def test_halves_are_left_as_they_are_and_out_is_written(self):
        import torch

        tensor = torch.from_numpy(HALVES)
        self.assertIs(sis.float16_rounded_up(HALVES), HALVES)
        self.assertEqual(sis.float16_rounded_up(tensor).data_ptr(), tensor.data_ptr())
        exact = values()
        for given, out in ((exact, np.empty(exact.shape, np.float16)), (HALVES, np.empty(HALVES.shape, np.float16))):
            self.assertIs(sis.float16_rounded_up(given, out=out), out)
            self.check(given.astype(np.float32), out)
            place = torch.empty(given.shape, dtype=torch.float16)
            self.assertIs(sis.float16_rounded_up(torch.from_numpy(given), out=place), place)
            self.check(given.astype(np.float32), place.numpy())

    def test_rows_are_rounded_when_they_are_taken(self):
        exact = values()[:90_000].reshape(-1, 3)
        rounded = sis.float16_rounded_up(exact)
        rows = RoundedUp(exact)
        self.assertEqual(rows.shape, exact.shape)
        for part in (slice(0, 7), slice(11, 25_000), slice(None)):
            self.assertEqual(rows[part].tobytes(), rounded[part].tobytes())


if __name__ == "__main__":
    unittest.main()
