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
            packed = block.read(data)
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


if __name__ == "__main__":
    unittest.main()
