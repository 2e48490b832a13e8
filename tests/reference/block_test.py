"""Laws of record blocks, on the cases of the golden vectors."""

import unittest

import numpy as np

from tests.golden import cases
from tests.reference import block, numerics


def packed_cases():
    for encoding, mass, records, vocabulary_size, policy_version in cases.block_cases():
        yield records, mass, block.pack(records, vocabulary_size, encoding, mass, policy_version)


class BlockTest(unittest.TestCase):
    def test_float32_gives_back_the_records_and_fixed16_rounds_them_down(self):
        kinds = set()
        for records, mass, data in packed_cases():
            packed = block.check(data)
            kept = numerics.cut_to_mass(records, mass) if mass else records
            found = packed.records()
            fixed = packed.encoding == block.FIXED16
            used = numerics.used_slots(found.log_probs)
            exact = np.where(used, kept.log_probs, -np.inf)
            for name in ("positions", "sampled_ids", "sampled_log_probs"):
                self.assertEqual(getattr(found, name).tobytes(), getattr(records, name).tobytes(), name)
            self.assertTrue((found.ids == np.where(used, kept.ids, -1)).all())
            if not fixed:
                self.assertEqual(found.log_probs.tobytes(), kept.log_probs.tobytes())
                continue
            # Less than a step, on the slots that a code reaches.
            steps = packed.multipliers[:, None] * 2.0**-18
            below = exact[used].astype(np.float64) - found.log_probs[used]
            self.assertTrue((below >= 0).all() and (below < np.broadcast_to(steps, used.shape)[used]).all())
            lost = numerics.used_slots(kept.log_probs) & ~used
            self.assertTrue((kept.log_probs[lost] < -63.72).all())
            kinds |= {("lost", bool(lost.any())), ("multipliers", int(packed.multipliers.max()))}
        self.assertIn(("lost", True), kinds)
        self.assertGreater(len(kinds), 5)

    def test_header_and_part_2_are_checked_without_part_1(self):
        for _, _, data in packed_cases():
            b = block.read(data)
            part1 = b.log_probs.nbytes + len(b.counts) * (1 if b.multipliers is None else 2)
            part2 = data[64 + part1 + -part1 % 8 :]
            blank = data[:4] + bytes(8) + data[12:64]
            self.assertEqual(numerics.crc32c(blank + part2), int.from_bytes(data[8:12], "little"))

    def test_merged_is_packed_at_once(self):
        for encoding, mass, records, vocabulary_size, version in cases.block_cases():
            count = len(records.positions)
            if count < 2:
                continue
            whole = block.pack(records, vocabulary_size, encoding, mass, version)
            for cut in {1, count // 2}:
                two = [
                    block.pack(type(records)(*(c[part] for c in records)), vocabulary_size, encoding, mass, version)
                    for part in (slice(cut), slice(cut, None))
                ]
                self.assertEqual(block.merge(*two), whole)

    def test_a_changed_bit_is_found(self):
        data = next(packed_cases())[2]
        for bit in range(8 * len(data)):
            changed = bytearray(data)
            changed[bit // 8] ^= 1 << bit % 8
            with self.assertRaises(ValueError, msg=f"bit {bit}"):
                block.check(bytes(changed))

    def test_what_a_reader_refuses(self):
        records = cases.records_of(7, [700, 5], [-2.0, -9.0], [[12, 700], [3, 4]], [[-0.25, -2.0], [-1.0, -1.0]])
        good = {e: block.read(block.pack(records, 1000, e)) for e in (block.FLOAT32, block.FIXED16)}
        float32s, codes = good[block.FLOAT32].log_probs, good[block.FIXED16].log_probs
        nan, up = np.float32(np.nan), np.nextafter(np.float32(-2), np.float32(0))
        cases_of = {
            block.FLOAT32: [
                (r"ids: position 7: \[1000\]", {"ids": [12, 1000, 3, 4]}),
                (r"sampled_ids: position 8: \[1000\]", {"sampled_ids": [700, 1000]}),
                ("ids: position 8: an id stands twice", {"ids": [12, 700, 3, 3]}),
                ("ids: position 8: they must rise", {"ids": [12, 700, 4, 3]}),
                ("log_probs: position 7: they rise", {"log_probs": [-3, -2, -1, -1]}),
                (r"log_probs: position 8: \[ *nan", {"log_probs": [*float32s[:2], nan, -1]}),
                (r"log_probs: position 7: \[-inf\]", {"log_probs": [-0.25, -np.inf, -1, -1]}),
                (r"log_probs: position 7: \[1.", {"log_probs": [1, -2, -1, -1]}),
                ("log_probs: position 7: slot 1 is not the sampled", {"log_probs": [-0.25, up, -1, -1]}),
                ("probabilities sum to 1.3", {"log_probs": [-0.25, -2, -0.4, -0.4]}),
                ("sampled_log_probs: position 8: nan", {"sampled_log_probs": [-2, nan]}),
                ("sampled_log_probs: position 7: 0.01999", {"sampled_log_probs": [0.02, -9]}),
                ("ranks: position 7: 0, must be 1", {"ranks": [0, 255]}),
                ("ranks: position 8: 0, must be 255", {"ranks": [1, 0]}),
                ("counts: 3, above the 2 slots", {"counts": [3, 1]}),
                ("counts: 3 in all, not the 4", {"counts": [2, 1]}),
            ],
            block.FIXED16: [
                ("log_probs: position 7: they rise", {"log_probs": [codes[1], codes[0], *codes[2:]]}),
                ("code 65535", {"log_probs": [codes[0], codes[1], codes[2], 65535]}),
                ("slot 1 is not the sampled", {"log_probs": [codes[0], codes[1] + 1, *codes[2:]]}),
                ("multipliers: position 8: 0", {"multipliers": [good[block.FIXED16].multipliers[0], 0]}),
                ("multipliers: position 8: 9 is not the least", {"multipliers": [good[block.FIXED16].multipliers[0], 9]}),
            ],
        }
        for encoding, wrong in cases_of.items():
            for message, fields in wrong:
                with self.subTest(message):
                    sections = {name: np.asarray(v, getattr(good[encoding], name).dtype) for name, v in fields.items()}
                    with self.assertRaisesRegex(ValueError, message):
                        block.check(block.write(good[encoding]._replace(**sections)))

    def test_wrong_headers(self):
        records = cases.records_of(7, [5], [-9.0], [[3, 4]], [[-1.0, -1.0]])
        good = block.read(block.pack(records, 1000, block.FLOAT32))
        for message, fields in [
            ("encoding: 2", {"encoding": 2}),
            ("id_bytes: 1", {"id_bytes": 1}),
            ("id_bytes: 5", {"id_bytes": 5}),
            ("id_bytes: 2 for 65537", {"vocabulary_size": 65537}),
            ("vocabulary_size: 0", {"vocabulary_size": 0}),
            ("vocabulary_size: 16777217", {"vocabulary_size": 2**24 + 1, "id_bytes": 4}),
            ("slots: 0", {"slots": 0}),
            ("slots: 255", {"slots": 255}),
            ("used_slots: 2, above 1", {"slots": 1}),
            ("last position is above", {"first_position": 2**32 - 1, "counts": np.array([1, 1], np.uint8)}),
        ]:
            with self.subTest(message), self.assertRaisesRegex(ValueError, message):
                block.read(block.write(good._replace(**fields)))
        data = block.write(good)
        for message, wrong in [("magic", b"X" + data[1:]), ("fewer", data[:63]), ("bytes, not", data + bytes(8))]:
            with self.assertRaisesRegex(ValueError, message):
                block.read(wrong)


if __name__ == "__main__":
    unittest.main()
