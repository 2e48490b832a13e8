"""Known answers of the functions that others have defined. The golden vectors tie the rest to the C++ kernels."""

import unittest

import numpy as np

from tests.reference import numerics


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

    def test_key_is_over_the_bytes_of_seed_attempt_and_id(self):
        data = bytes.fromhex("efcdab8967452301" "04030201") + "ä".encode("utf-8")
        self.assertEqual(numerics.sequence_key(0x0123456789ABCDEF, 0x01020304, "ä"), numerics.fnv1a(data))


if __name__ == "__main__":
    unittest.main()
