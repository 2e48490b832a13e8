"""A short soak writes what a long one does, and memory that grows is seen."""

import pathlib
import tempfile
import unittest

import numpy as np

from tests.soak import report, soak


def samples(resident_bytes, **others):
    return [{"seconds": 5.0 * i, "resident_bytes": value, **others} for i, value in enumerate(resident_bytes)]


class ReportTest(unittest.TestCase):
    def test_only_memory_that_surely_does_not_grow_is_flat(self):
        noise = 100e6 + 0.2e6 * np.random.default_rng(1).normal(size=120)
        for what, resident, flat in (
            ("noise", noise, True),
            ("a leak of 4 MB in ten minutes", noise + np.linspace(0, 4e6, 120), False),
            ("what fills at first", np.concatenate([np.linspace(50e6, 100e6, 25), np.full(95, 100e6)]), True),
            ("too noisy to tell", np.where(np.arange(120) // 20 % 2, 100e6, 130e6), False),
        ):
            self.assertEqual(report.memory(samples(resident)).flat, flat, what)

    def test_a_cache_that_never_was_full_or_never_read_is_not_at_its_budget(self):
        for share, good, said in ((0.95, True, "up to 95% full"), (0.5, False, "up to 50% full"), (None, False, "never read")):
            taken = samples([1e8] * 120, cache_share=share, descriptors=1, threads=1)
            text, verdict = report.summary("title", {"memory": taken}, {"memory": {}}, [])
            self.assertIs(verdict, good)
            self.assertIn(f"; the cache was {said}; ", text)


class SoakTest(unittest.TestCase):
    def test_a_short_one(self):
        with tempfile.TemporaryDirectory() as folder:
            output = pathlib.Path(folder)
            text, _ = soak.soak(5, output)
            self.assertNotIn("not asked for:", text)
            for name in ("memory", "rocksdb", "redis"):
                self.assertIn(f"\n{name}: resident ", text)
            self.assertEqual((output / "summary.txt").read_text(), text)


if __name__ == "__main__":
    unittest.main()
