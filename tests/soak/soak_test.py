"""A short soak writes what a long one does, and memory that grows is seen."""

import pathlib
import tempfile
import unittest

import numpy as np

from tests.soak import report, soak


def samples(resident_bytes):
    return [{"seconds": 5.0 * i, "resident_bytes": value} for i, value in enumerate(resident_bytes)]


class ReportTest(unittest.TestCase):
    def test_noise_is_flat_and_a_leak_is_not(self):
        rng = np.random.default_rng(1)
        noise = 100e6 + 0.2e6 * rng.normal(size=120)
        self.assertTrue(report.memory(samples(noise)).flat)
        # 4 MB in a quarter less than ten minutes.
        leak = report.memory(samples(noise + np.linspace(0, 4e6, 120)))
        self.assertFalse(leak.flat)
        self.assertLess(leak.growth.low, 3e6)
        self.assertGreater(leak.growth.high, 3e6)

    def test_what_fills_at_first_is_left_out(self):
        filling = np.concatenate([np.linspace(50e6, 100e6, 25), np.full(95, 100e6)])
        self.assertTrue(report.memory(samples(filling)).flat)

    def test_too_noisy_to_tell_is_not_flat(self):
        steps = np.where(np.arange(120) // 20 % 2, 100e6, 130e6)
        self.assertFalse(report.memory(samples(steps)).flat)


class SoakTest(unittest.TestCase):
    def test_a_short_one(self):
        with tempfile.TemporaryDirectory() as folder:
            output = pathlib.Path(folder)
            text, _ = soak.soak(5, output)
            self.assertNotIn("not asked for:", text)
            for name in ("memory", "rocksdb", "memcached"):
                self.assertIn(f"\n{name}: resident ", text)
            self.assertEqual((output / "summary.txt").read_text(), text)
            self.assertIn("</svg>", (output / "soak.svg").read_text())


if __name__ == "__main__":
    unittest.main()
