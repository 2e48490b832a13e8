import unittest

import numpy as np

from tests.reference import numerics
from tests.reference.numerics import Decision, Gathered, Records, Reduced

INF = np.inf
NAN = np.nan
KEY = numerics.sequence_key(7, 1, "seq-000017")


def f32(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


def bits(values: np.ndarray) -> list[int]:
    return np.atleast_1d(values).view(np.uint32).tolist()


def assert_same_bits(got: np.ndarray, want: np.ndarray) -> None:
    """Compares long arrays. assertEqual would compute their difference for minutes."""
    np.testing.assert_array_equal(got.view(np.uint32), want.view(np.uint32))


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """float32 [N, V] from float64 [N, V]."""
    return (logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))).astype(np.float32)


def random_input(count: int, slots: int, vocabulary: int, shift: float, seed: int) -> tuple[Records, Gathered]:
    """Records of the `slots` most probable of `vocabulary` tokens; y is any token, the probable
    ones more often."""
    random = np.random.default_rng(seed)
    logits = 3 * random.standard_normal((count, vocabulary))
    behaviour = log_softmax(logits)
    current = log_softmax(logits + shift * random.standard_normal((count, vocabulary)))
    ids = np.lexsort((np.broadcast_to(np.arange(vocabulary), behaviour.shape), -behaviour), axis=1)
    top = ids[:, :slots].astype(np.int32)
    rows = np.arange(count)
    y = ids[rows, (vocabulary * random.random(count) ** 2).astype(int)].astype(np.int32)
    records = Records(
        np.arange(count, dtype=np.uint32), y, behaviour[rows, y], top, np.take_along_axis(behaviour, top, axis=1)
    )
    return records, Gathered(current[rows, y], np.take_along_axis(current, top, axis=1))


def decide(records: Records, current: Gathered, k: int, draw: int = 0) -> numerics.Evaluation:
    return numerics.decide_gathered(records, current, k, numerics.uniforms(KEY, records.positions, draw))


class KnownAnswersTest(unittest.TestCase):
    def test_philox(self):
        # The first is in the document, the others are the known answers of the authors' Random123
        # library.
        for key, counter, words in [
            ((0, 0), (0, 0, 0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
            ((2**32 - 1,) * 2, (2**32 - 1,) * 4, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
            (
                (0xA4093822, 0x299F31D0),
                (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
                (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
            ),
        ]:
            self.assertEqual(tuple(numerics.philox4x32_10(key, np.array(counter, np.uint32))), words)

    def test_crc32c(self):
        # The check value, and the examples of RFC 3720, appendix B.4.
        self.assertEqual(numerics.crc32c(b"123456789"), 0xE3069283)
        self.assertEqual(numerics.crc32c(bytes(32)), 0x8A9136AA)
        self.assertEqual(numerics.crc32c(b"\xff" * 32), 0x62A8AB43)
        self.assertEqual(numerics.crc32c(bytes(range(32))), 0x46DD794E)

    def test_fnv1a(self):
        # From the tables of the function's authors.
        self.assertEqual(numerics.fnv1a(b""), 0xCBF29CE484222325)
        self.assertEqual(numerics.fnv1a(b"a"), 0xAF63DC4C8601EC8C)
        self.assertEqual(numerics.fnv1a(b"foobar"), 0x85944171F73967E8)

    def test_mix_is_one_step_of_splitmix64(self):
        self.assertEqual(int(numerics.mix(np.zeros(1, np.uint64))[0]), 0xE220A8397B1DCDAF)


class UniformsTest(unittest.TestCase):
    def test_key_is_over_the_bytes_of_seed_attempt_and_id(self):
        data = bytes.fromhex("efcdab8967452301" "04030201") + "ä".encode("utf-8")
        self.assertEqual(numerics.sequence_key(0x0123456789ABCDEF, 0x01020304, "ä"), numerics.fnv1a(data))


class Exp32Test(unittest.TestCase):
    def test_each_operation_is_rounded_once(self):
        # Products of float32 are exact in float64, and rounding a sum twice in this way does no
        # harm.
        def once(exact: np.ndarray) -> np.ndarray:
            return exact.astype(np.float32).astype(np.float64)

        x32 = np.linspace(-87, 88, 50001).astype(np.float32)
        x = x32.astype(np.float64)
        big, constant = 1.5 * 2**23, float.fromhex
        n = once(once(once(x * constant("0x1.715476p+0")) + big) - big)
        r = once(x - once(n * constant("0x1.63p-1")))
        r = once(r + once(n * constant("0x1.bd0106p-13")))
        p = np.full_like(x, constant("0x1.6a243ap-10"))
        for c in ("0x1.1239ep-7", "0x1.5558f2p-5", "0x1.555492p-3", "0x1.fffffcp-2"):
            p = once(once(p * r) + constant(c))
        e = once(1 + once(r + once(once(r * r) * p)))
        assert_same_bits(numerics.exp32(x32), (e * 2.0**n).astype(np.float32))


class CoveredMassTest(unittest.TestCase):
    def test_adds_slot_after_slot(self):
        # Each of the small ones is lost beside 1, but all of them together are not.
        small = np.full(64, -17.5, np.float32)
        rows = np.stack([np.append(f32(0), small), np.append(small, f32(0))])
        mass = numerics.covered_mass(rows, np.ones(rows.shape, bool))
        self.assertEqual(mass[0], 1)
        self.assertGreater(mass[1], 1)


class SumsTest(unittest.TestCase):
    def setUp(self):
        self.records, self.current = random_input(4000, 6, 12, 1.5, 6)
        self.evaluation = decide(self.records, self.current, 5)

    def test_fixed_truncates_and_clamps(self):
        unit = 2.0**-30
        x = f32(1.5 * unit, -1.5 * unit, 0.99 * unit, 64, 65, INF, -65, -INF)
        end = 2**36
        self.assertEqual(numerics.fixed(x).tolist(), [1, -1, 0, end, end, end, -end, -end])

    def test_agrees_with_float64(self):
        e, totals = self.evaluation, numerics.totals(self.evaluation)
        lw, lM, c = (np.float64(v) for v in (e.log_weights, e.log_envelopes, e.covered_masses))
        self.assertEqual(totals.accepted + totals.rejected + totals.outside_top_k, len(lw))
        for got, want in [
            (totals.d, np.abs(lw).sum()),
            (totals.d_sis, np.abs(lw)[e.decisions != Decision.ACCEPTED].sum()),
            (totals.log_envelope, lM.sum()),
            (totals.residual_mass, (1 - c).sum()),
            (totals.acceptance_probability, np.float64(e.acceptance_probabilities).sum()),
            (totals.expected_acceptance, (c / np.exp(lM)).sum()),
            (totals.k3, np.minimum(np.expm1(lw) - lw, 64).sum()),
            (totals.total_variation, self.total_variations().sum()),
        ]:
            self.assertAlmostEqual(numerics.wire(got) / want, 1, delta=2e-6)

    def total_variations(self) -> np.ndarray:
        p, q = (np.exp(np.float64(l[:, :5])) for l in (self.current.log_probs, self.records.log_probs))
        return np.abs(p - q).sum(axis=1) / 2


class ValidationTest(unittest.TestCase):
    def setUp(self):
        self.records = Records(
            np.array([41, 42], np.uint32),
            np.array([3, 1], np.int32),
            f32(-3.5, -0.5),
            np.array([[5, 0, 2, -1], [1, 7, -1, -1]], np.int32),
            f32(-1, -2, -2, -INF, -0.5, -1.25, -INF, -INF).reshape(2, 4),
        )
        self.current = Gathered(f32(-INF, -0.75), f32(-1, -INF, -2, NAN, -0.75, -1.5, INF, 9).reshape(2, 4))
        self.reduced = Reduced(f32(-INF, 2.0**-6), f32(-INF, 80), f32(0, 1 + 2.0**-6))

    def refused(self, message: str, validate, *arguments):
        with self.assertRaisesRegex(ValueError, message):
            validate(*arguments)

    def changed(self, values, name, index, value):
        column = getattr(values, name).copy()
        column[index] = value
        return values._replace(**{name: column})

    def test_valid_input(self):
        numerics.validate_records(self.records, 8)
        numerics.validate_gathered(self.records, self.current)
        numerics.validate_reduced(self.records, self.reduced)

    def test_records(self):
        above = np.nextafter(np.float32(2.0**-6), np.float32(1))
        for name, index, value, message in [
            ("sampled_ids", 1, 8, "sampled_ids: position 42: 8"),
            ("sampled_ids", 0, -1, "sampled_ids: position 41: -1"),
            ("ids", (1, 1), 8, "ids: position 42 slot 1: 8"),
            ("ids", (1, 1), -1, "ids: position 42 slot 1: -1"),
            ("ids", (0, 3), 6, "ids: position 41 slot 3: 6: must be -1"),
            ("ids", (0, 1), 2, "ids: position 41 slot 2: 2: must rise"),
            ("ids", (0, 1), 4, "ids: position 41 slot 2: 2: must rise"),
            ("ids", (0, 0), 2, "ids: position 41 slot 2: 2: must not stand twice"),
            ("log_probs", (0, 0), NAN, "log_probs: position 41 slot 0: nan: must be finite"),
            ("log_probs", (0, 0), INF, "log_probs: position 41 slot 0: inf: must be finite"),
            ("log_probs", (0, 0), above, "log_probs: position 41 slot 0: .*: must be finite, at most"),
            ("log_probs", (1, 1), -0.25, "log_probs: position 42 slot 1: -0.25: must not rise"),
            ("log_probs", (0, 0), 0, "log_probs: position 41: 1.27.*covered mass"),
            ("sampled_log_probs", 0, -INF, "sampled_log_probs: position 41: -inf: must be finite"),
            ("sampled_log_probs", 0, above, "sampled_log_probs: position 41: .*: must be finite, at most"),
            ("sampled_log_probs", 1, -0.5000001, "sampled_log_probs: position 42: .*bits"),
        ]:
            with self.subTest(message):
                self.refused(message, numerics.validate_records, self.changed(self.records, name, index, value), 8)

    def test_unused_slots_come_last(self):
        records = self.changed(self.changed(self.records, "ids", (0, 0), -1), "log_probs", (0, 0), -INF)
        self.refused("log_probs: position 41 slot 1: -2.0: must not rise", numerics.validate_records, records, 8)

    def test_sampled_log_prob_is_compared_bit_by_bit(self):
        records = self.changed(self.records, "log_probs", (1, slice(0, 2)), [0.0, -INF])
        records = self.changed(self.changed(records, "ids", (1, 1), -1), "sampled_log_probs", 1, 0.0)
        numerics.validate_records(records, 8)
        records = self.changed(records, "sampled_log_probs", 1, -0.0)
        self.refused("sampled_log_probs: position 42: -0.0", numerics.validate_records, records, 8)

    def test_gathered(self):
        for name, index, value, message in [
            ("sampled_log_probs", 1, NAN, "sampled_log_probs: position 42: nan"),
            ("sampled_log_probs", 1, 0.5, "sampled_log_probs: position 42: 0.5"),
            ("log_probs", (0, 2), NAN, "log_probs: position 41 slot 2: nan"),
            ("log_probs", (0, 2), INF, "log_probs: position 41 slot 2: inf"),
            ("log_probs", (0, 2), -0.01, "log_probs: position 41: 1.35.*covered mass"),
        ]:
            with self.subTest(message):
                current = self.changed(self.current, name, index, value)
                self.refused(message, numerics.validate_gathered, self.records, current)

    def test_reduced(self):
        for name, value, message in [
            ("sampled_log_probs", 0.5, "sampled_log_probs: position 42: 0.5"),
            ("log_envelopes", INF, "log_envelopes: position 42: inf"),
            ("log_envelopes", NAN, "log_envelopes: position 42: nan"),
            ("covered_masses", -0.1, "covered_masses: position 42: -0.1"),
            ("covered_masses", 1.016, "covered_masses: position 42: 1.016"),
            ("covered_masses", NAN, "covered_masses: position 42: nan"),
        ]:
            with self.subTest(message):
                current = self.changed(self.reduced, name, 1, value)
                self.refused(message, numerics.validate_reduced, self.records, current)


if __name__ == "__main__":
    unittest.main()
