"""The dense kernel gives the bytes of the numpy numerics, for every type of logits."""

import ctypes
import unittest

import numpy as np

from tests.reference import dense_numerics

SEED = 12345
LIBRARY = "tests/bench/libdense_c.so"
FLOAT32, BFLOAT16 = range(2)


def stored(logits: np.ndarray, kind: int) -> tuple[np.ndarray, np.ndarray]:
    """The logits as the kernel reads them, and what float32 these are."""
    if kind == FLOAT32:
        return logits, logits
    high = (logits.view(np.uint32) >> 16).astype(np.uint16)
    return high, (high.astype(np.uint32) << 16).view(np.float32)


class DenseAgreementTest(unittest.TestCase):
    def setUp(self):
        self.library = ctypes.CDLL(LIBRARY)
        self.rng = np.random.default_rng(SEED)

    def gather(self, kind, logits, sampled, ids):
        """By the kernel: log-sum-exps float64 [N], sampled log-probs [N] and log-probs [N, K]
        float32."""
        count, vocabulary = logits.shape
        outputs = [np.empty(count, np.float32), np.empty(ids.shape, np.float32), np.empty(count, np.float64)]
        pointers = [ctypes.c_void_p(a.ctypes.data) for a in (sampled, ids, *outputs)]
        failed = self.library.sis_gather_log_probs(
            kind, ctypes.c_void_p(logits.ctypes.data), ctypes.c_int64(count), vocabulary, ids.shape[1], *pointers
        )
        self.assertEqual(failed, 0)
        return outputs[2], *outputs[:2]

    def check(self, logits: np.ndarray, top_k: int = 10):
        count, vocabulary = logits.shape
        slots = min(top_k, vocabulary)
        ids = np.stack([self.rng.choice(vocabulary, slots, replace=False) for _ in range(count)]).astype(np.int32)
        ids[::3, slots // 2 :] = -1
        sampled = self.rng.integers(vocabulary, size=count).astype(np.int32)
        for kind in (FLOAT32, BFLOAT16):
            memory, exact = stored(logits, kind)
            kernel = self.gather(kind, memory, sampled, ids)
            for i in range(count):
                expected = dense_numerics.gather(exact[i], sampled[i], ids[i])
                for name, got, want in zip(expected._fields, kernel, expected):
                    want = np.asarray(want, got.dtype)
                    self.assertEqual(got[i].tobytes(), want.tobytes(), f"{name}, type {kind}: {got[i]} {want}")

    def test_random_logits(self):
        for vocabulary in (1, 7, 64, 1023, 1024, 1025, 5000, 32000):
            for scale in (0.1, 3, 30):
                with self.subTest(vocabulary=vocabulary, scale=scale):
                    self.check(self.rng.normal(size=(6, vocabulary), scale=scale).astype(np.float32))

    def test_negative_logits(self):
        self.check(self.rng.normal(-40, 3, size=(20, 4000)).astype(np.float32))

    def test_masked_logits(self):
        logits = self.rng.normal(size=(30, 3000), scale=4).astype(np.float32)
        logits[self.rng.random(logits.shape) < 0.9] = -np.inf
        logits[:10, :1500] = -np.inf
        logits[:, 77] = 0
        self.check(logits)

    def test_references_far_apart(self):
        logits = self.rng.normal(size=(30, 5000)).astype(np.float32)
        logits += np.repeat(self.rng.uniform(-60, 60, (30, 50)), 100, axis=1).astype(np.float32)
        self.check(logits)

    def test_huge_and_tiny_logits(self):
        exponents = self.rng.uniform(-149, 39.9, (20, 2000))
        signs = self.rng.choice([-1, 1], exponents.shape)
        self.check((signs * np.exp2(exponents)).astype(np.float32))

    def test_logits_whose_log_probs_rounding_takes_are_an_error(self):
        token = np.zeros(1, np.int32)
        for logit in (2.0**39, 2.0**41, 3e38, -(2.0**39), -(2.0**41), -3e38):
            memory = np.full((1, 2000), logit, np.float32)
            if abs(logit) < dense_numerics.MAX_LOG_SUM_EXP:
                dense_numerics.gather(memory[0], 0, token)
                self.gather(FLOAT32, memory, token, token[:, None])
                continue
            with self.assertRaises(ValueError):
                dense_numerics.gather(memory[0], 0, token)
            with self.assertRaises(AssertionError):
                self.gather(FLOAT32, memory, token, token[:, None])


if __name__ == "__main__":
    unittest.main()
