"""Record blocks, as clients pack and read them, beside the reference's."""

import itertools
import multiprocessing
import pathlib
import unittest
import warnings
from unittest import mock

import numpy as np

from sis import _blocks, _ragged
from sis._run import RunConfig
from tests.golden import cases
from tests.reference import block as reference
from tests.reference import numerics

ENCODINGS = {reference.FLOAT32: "float32", reference.FIXED16: "fixed16"}


def given(records, version=0):
    """As clients pack them."""
    return _blocks.Records(int(records.positions[0]), version, *map(np.ascontiguousarray, records[1:]))


def config(vocabulary_size, top_k, encoding=reference.FIXED16, mass=0.0):
    return RunConfig(
        seed=1, vocabulary_size=vocabulary_size, top_k=top_k, mass=mass, log_prob_encoding=ENCODINGS[encoding]
    )


def packed(records, vocabulary_size, encoding=reference.FIXED16, mass=0.0, version=0):
    (data,) = _blocks.pack(
        [given(records, version)], config(vocabulary_size, records.ids.shape[1], encoding, mass)
    )
    return bytes(data)


def part_2(data):
    header = _blocks.Block(data).header
    multipliers, slot = (header.positions, 2) if header.encoding else (0, 4)
    part_1 = slot * header.used_slots + multipliers + header.positions
    return data[:64] + data[64 + part_1 + -part_1 % 8 :]


# Records with ids of each width, at two positions.
SETS = cases.records_of(7, [700, 5], [-2.0, -9.0], [[12, 700], [3, 4]], [[-0.25, -2.0], [-1.0, -1.5]])


def packed_and_read():
    data = packed(SETS, 1000)
    return data, _blocks.Block(data).ids().tolist()


def without_the_library():
    """Until it is stopped, it cannot be loaded."""
    _blocks._kernels.cache_clear()
    return mock.patch.object(_blocks, "_LIBRARY", pathlib.Path("/nowhere/libsis_kernels.so"))


class BlocksTest(unittest.TestCase):
    def setUp(self):
        self.addCleanup(_blocks._kernels.cache_clear)

    def check_read(self, block, expected, whole=True):
        """`expected`: the reference's."""
        records = expected.records()
        self.assertEqual(block.counts.tolist(), expected.counts.tolist())
        self.assertEqual(block.sampled_log_probs.tobytes(), records.sampled_log_probs.tobytes())
        self.assertEqual(block.sampled_ids().tolist(), records.sampled_ids.tolist())
        widened = lambda values, unused: _ragged.widened(values, block.counts, block.header.slots, unused)
        self.assertEqual(widened(block.ids(), -1).tolist(), records.ids.tolist())
        self.assertEqual(block.whole, whole)
        if whole:
            self.assertEqual(widened(block.log_probs(), -np.inf).tobytes(), records.log_probs.tobytes())
        for rows in (slice(0, 1), slice(1, 5), slice(4, None)):
            slots = block.slots_of(rows)
            self.assertEqual(block.sampled_ids(rows).tolist(), records.sampled_ids[rows].tolist())
            self.assertEqual(block.ids(slots).tolist(), records.ids[rows][records.ids[rows] >= 0].tolist())
            if whole:
                self.assertEqual(block.log_probs(slots).tobytes(), block.log_probs()[slots].tobytes())

    def test_packed_and_read_as_the_reference_does(self):
        kinds = set()
        for encoding, mass, records, vocabulary_size, version in cases.block_cases():
            expected = reference.pack(records, vocabulary_size, encoding, mass, version)
            self.assertEqual(packed(records, vocabulary_size, encoding, mass, version), expected)
            self.check_read(_blocks.Block(expected), reference.read(expected))
            self.check_read(_blocks.Block(part_2(expected)), reference.read(expected), whole=False)
            kinds.add((encoding, mass, _blocks.Block(expected).header.id_bytes))
        self.assertLessEqual({(0, 0, 2), (1, 0, 2), (0, 0, 3), (1, 0, 3), (0, 0.97, 3), (1, 0.97, 3)}, kinds)

    def test_ids_of_four_bytes_are_read(self):
        data = reference.pack(SETS, 1000, reference.FLOAT32, id_bytes=4)
        self.check_read(_blocks.Block(data), reference.read(data))

    def test_many_at_once(self):
        parts = [type(SETS)(*(column[row : row + 1] for column in SETS)) for row in (0, 1)]
        made = _blocks.pack([given(part, version) for version, part in enumerate(parts)], config(1000, 2))
        expected = [reference.pack(part, 1000, reference.FIXED16, 0, version) for version, part in enumerate(parts)]
        self.assertEqual(made, expected)

    def test_split_parts_fit(self):
        for top_k, encoding in itertools.product((1, 20, _blocks.MAX_SLOTS), ENCODINGS):
            ids = np.tile(np.arange(top_k, dtype=np.int32), (5000, 1))
            log_probs = np.full((5000, top_k), -6, np.float32)
            sampled = np.arange(5000, dtype=np.int32), np.full(5000, -6, np.float32)
            run = config(1 << 17, top_k, encoding)
            parts = _blocks.split(_blocks.Records(3, 2, *sampled, ids, log_probs), run)
            made = _blocks.pack(parts, run)
            self.assertLessEqual(max(map(len, made)), _blocks.MAX_BYTES)
            fullest = max(len(made[0]) / _blocks.MAX_BYTES, len(parts[0].ids) / _blocks.MAX_POSITIONS)
            self.assertGreater(fullest, 0.99)
            read = list(map(_blocks.Block, made))
            self.assertEqual(np.concatenate([block.sampled_ids() for block in read]).tolist(), sampled[0].tolist())
            for block in read:
                self.assertEqual(block.header.first_position, 3 + block.sampled_ids()[0])
                self.assertEqual(block.header.policy_version, 2)

    def test_errors_name_field_position_and_value(self):
        for name, row, slot, value, message in [
            ("ids", 0, 0, 1000, "top_k_ids at position 7, slot 0: 1000 is not in"),
            ("log_probs", 1, 0, np.nan, "top_k_log_probs at position 8, slot 0: -?nan is not a finite log-prob"),
            ("log_probs", 1, 1, -0.5, "top_k_log_probs at position 8, slot 1: -0.5 is above the slot before it, -1"),
            ("sampled_ids", 1, ..., -1, r"sampled_ids at position 8: -1 is not in \[0, 1000\)"),
            ("sampled_log_probs", 0, ..., -3, "sampled_log_probs at position 7: -3 differs from slot 1 .*, -2"),
        ]:
            wrong = type(SETS)(*(column.copy() for column in SETS))
            getattr(wrong, name)[(row, slot) if slot is not ... else row] = value
            parts = [given(type(SETS)(*(column[i : i + 1] for column in wrong))) for i in (0, 1)]
            for packed_at_once, number in ((parts, row), ([given(wrong)], 0)):
                with self.assertRaisesRegex(_blocks.Invalid, message) as raised:
                    _blocks.pack(packed_at_once, config(1000, 2))
                self.assertEqual(raised.exception.number, number)

    def test_a_damaged_block_is_refused(self):
        for encoding in ENCODINGS:
            whole = packed(SETS, 1000, encoding)
            for data in (whole, part_2(whole)):
                for place in range(len(data)):
                    # The checksum of an absent part may be anything.
                    if data is not whole and 4 <= place < 8:
                        continue
                    damaged = bytearray(data)
                    damaged[place] ^= 1 << place % 8
                    with self.assertRaisesRegex(ValueError, "^block: "):
                        _blocks.Block(bytes(damaged))
                for end in range(len(data)):
                    with self.assertRaisesRegex(ValueError, "^block: "):
                        _blocks.Block(data[:end])

    def test_log_probs_are_in_the_whole_block_only(self):
        with self.assertRaisesRegex(ValueError, "no log-probs"):
            _blocks.Block(part_2(packed(SETS, 1000))).log_probs()

    def test_a_fork_packs_and_reads(self):
        expected = packed_and_read()
        with multiprocessing.get_context("fork").Pool(1) as pool:
            self.assertEqual(pool.apply(packed_and_read), expected)

    def test_without_the_library_blocks_are_uncut_and_in_float32(self):
        with without_the_library(), warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            for _, mass, records, vocabulary_size, version in cases.block_cases():
                data = packed(records, vocabulary_size, reference.FIXED16, mass, version)
                expected = reference.pack(records, vocabulary_size, reference.FLOAT32, 0, version)
                self.assertEqual(data, expected)
                self.check_read(_blocks.Block(data), reference.read(data))
            for name, sampled, slot in (("sampled_ids", 66536, 3), ("sampled_ids", -1, 3), ("top_k_ids", 5, 66536)):
                wrong = cases.records_of(7, [5, sampled], [-2.0, -9.0], [[3, 4], [slot, 4]], [[-1.0, -2.0], [-1.0, -2.0]])
                with self.assertRaisesRegex(ValueError, rf"{name} at position 8: \S+ is not in \[0, 1000\)"):
                    packed(wrong, 1000)
            rows = np.zeros((5000, 1), np.int32)
            part = _blocks.split(_blocks.Records(0, 0, rows, rows, rows, rows), config(1 << 17, _blocks.MAX_SLOTS))[0]
        self.assertLess(len(part.ids) * (7 * _blocks.MAX_SLOTS + 10), _blocks.MAX_BYTES)
        (warning,) = warned
        self.assertIs(warning.category, RuntimeWarning)
        self.assertIn("libsis_kernels cannot be loaded: /nowhere/libsis_kernels.so", str(warning.message))

    def test_checksums(self):
        data = cases.Source("blocks").words(1100).tobytes()
        for size in (0, 1, 31, 32, 33, 63, 64, 65, 1000, 4400):
            for crc in (0, 77):
                expected = numerics.crc32c(data[:size]) if not crc else None
                found = _blocks.crc32c(crc, data, 0, size)
                self.assertEqual(found, _blocks._crc32c_by_numpy(crc, np.frombuffer(data, np.uint8, size)))
                self.assertIn(expected, (found, None))
        self.assertEqual(_blocks.crc32c(_blocks.crc32c(0, data, 0, 9), data, 9), numerics.crc32c(data))


if __name__ == "__main__":
    unittest.main()
