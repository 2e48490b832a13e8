"""The bytes of entries are those that protobuf would write."""

import dataclasses
import random
import unittest

import numpy as np

import sis
from sis.append_streams import encoded_entries
from sis.v1 import ratio_service_pb2 as pb
from sis.wire import checksum

TOP_K = 3
CONFIG = sis.RunConfig(seed=1, vocabulary_size=100, top_k=TOP_K)


def columns(rows, seed):
    rng = np.random.default_rng(seed)
    return {
        "sampled_ids": rng.integers(100, size=rows, dtype=np.int32),
        "sampled_log_probs": rng.normal(size=rows).astype(np.float32),
        "top_k_ids": rng.integers(100, size=(rows, TOP_K), dtype=np.int32),
        "top_k_log_probs": rng.normal(size=(rows, TOP_K)).astype(np.float32),
    }


class EntriesTest(unittest.TestCase):
    def setUp(self):
        self.addCleanup(setattr, checksum, "_extend", checksum._extend)

    def entry(self, generator):
        """One at random, and protobuf's."""
        sequence = generator.choice(("", "s", "é" * 70, "n" * 300))
        attempt = generator.choice((0, 1, 127, 128, 2**32 - 1))
        reference = pb.SequenceRef(id=sequence, attempt=attempt)
        kind = generator.choice((sis.Block, sis.Block, sis.Gap, sis.Seal))
        length = generator.choice((0, 1, 200, 2**32 - 1))
        if kind is sis.Gap:
            gap = sis.Gap(sequence, length, generator.choice((0, 1, 300)), attempt=attempt)
            message = pb.Gap(
                sequence=reference,
                first_position=gap.first_position,
                length=gap.length,
                reason=pb.INVALID_LOG_PROB,
            )
            return gap, pb.AppendEntry(gap=message)
        if kind is not sis.Block:
            message = pb.Seal(sequence=reference, length=length)
            return sis.Seal(sequence, length, attempt), pb.AppendEntry(seal=message)
        values = columns(generator.choice((0, 1, 2, 31, 32, 33, 5000)), generator.getrandbits(30))
        version = generator.choice((0, 1, 2**64 - 1))
        message = pb.Block(
            sequence=reference,
            first_position=length,
            policy_version=version,
            crc32c=checksum.crc32c(values.values()),
            **{name: array.tobytes() for name, array in values.items()},
        )
        block = sis.Block(sequence, length, version, attempt=attempt, **values)
        return block, pb.AppendEntry(block=message)

    def test_a_request_is_what_protobuf_writes(self):
        generator = random.Random(5)
        for extend in (None, lambda data, crc: (crc * 31 + len(bytes(data))) % 2**32):
            checksum._extend = extend
            for count in (0, 1, 3, 20):
                made = [self.entry(generator) for _ in range(count)]
                checked = encoded_entries.all_checked([entry for entry, _ in made], CONFIG)
                batch = pb.AppendBatch(entries=[message for _, message in made])
                expected = pb.AppendRequest(batch=batch).SerializeToString(deterministic=True)
                data, offset = encoded_entries.request(checked)
                self.assertEqual(data, expected)
                # An entry by itself is the same bytes, wherever it stands.
                for entry in checked:
                    entry.copy_arrays()
                    self.assertEqual(b"".join(entry.parts), data[offset : offset + entry.size])
                    offset += entry.size

    def test_a_ragged_one_too(self):
        random = np.random.default_rng(3)
        for extend in (None, lambda data, crc: (crc * 31 + len(bytes(data))) % 2**32):
            checksum._extend = extend
            for rows in (0, 1, 40, 5000):
                counts = random.integers(0, TOP_K + 1, rows).astype(np.uint16)
                values = columns(rows, seed=rows)
                for name in ("top_k_ids", "top_k_log_probs"):
                    values[name] = values[name].ravel()[: counts.sum()]
                message = pb.Block(
                    sequence=pb.SequenceRef(id="s"),
                    crc32c=checksum.crc32c([*values.values(), counts]),
                    top_k_counts=counts.tobytes(),
                    **{name: array.tobytes() for name, array in values.items()},
                )
                block = sis.Block("s", 0, 0, top_k_counts=counts.tolist(), **values)
                (made,) = encoded_entries.all_checked([block], dataclasses.replace(CONFIG, mass=0.9))
                batch = pb.AppendBatch(entries=[pb.AppendEntry(block=message)])
                expected = pb.AppendRequest(batch=batch).SerializeToString(deterministic=True)
                self.assertEqual(encoded_entries.request([made])[0], expected)

    def test_a_long_block_is_sent_as_several(self):
        rows = 2 * encoded_entries.MAX_BLOCK_BYTES // (8 + 8 * TOP_K) + 1
        whole = columns(rows, seed=2)
        counts = np.resize(np.array([2, 0, 3], np.uint16), rows)
        names = ("top_k_ids", "top_k_log_probs")
        ragged = {**whole, **{name: whole[name].ravel()[: counts.sum()] for name in names}}
        config = dataclasses.replace(CONFIG, mass=0.9)
        for values, extra in ((whole, {}), (ragged, {"top_k_counts": counts})):
            made = encoded_entries.all_checked([sis.Block("s", 7, 1, **values, **extra)], config)
            self.assertEqual((made[0].first, made[-1].end), (7, 7 + rows))
            self.assertEqual([entry.end for entry in made[:-1]], [entry.first for entry in made[1:]])
            self.assertEqual(len(made), 3)
            joined = {name: b"" for name in (*values, *extra)}
            for entry in made:
                self.assertLess(entry.size, encoded_entries.MAX_BLOCK_BYTES + 1024)
                data, _ = encoded_entries.request([entry])
                block = pb.AppendRequest.FromString(data).batch.entries[0].block
                self.assertEqual(block.first_position, entry.first)
                self.assertEqual(len(block.sampled_ids), 4 * (entry.end - entry.first))
                for name in joined:
                    joined[name] += getattr(block, name)
            self.assertEqual(joined, {name: array.tobytes() for name, array in {**values, **extra}.items()})

    def test_numbers_that_do_not_fit_are_refused(self):
        good = dict(sequence="s", first_position=0, policy_version=0, **columns(2, seed=1))
        for name, value in (
            ("first_position", -1),
            ("first_position", 2**32),
            ("policy_version", 2**64),
            ("attempt", -1),
        ):
            with self.assertRaisesRegex(ValueError, rf"entries\[1\], sequence 's': {name} is {value}, must"):
                encoded_entries.all_checked([sis.Block(**good), sis.Block(**{**good, name: value})], CONFIG)
        for name, value in (("first_position", -1), ("length", 2**32), ("reason", -1)):
            with self.assertRaisesRegex(ValueError, rf"entries\[0\], sequence 's': {name} is {value}, must"):
                encoded_entries.all_checked([sis.Gap("s", 0, 1)._replace(**{name: value})], CONFIG)
        for entry in (sis.Seal("s", 1.5), sis.Seal(b"s", 1), sis.Seal("s", "1"), "s", ("s", 1)):
            with self.assertRaises(TypeError):
                encoded_entries.all_checked([entry], CONFIG)
        with self.assertRaisesRegex(ValueError, "surrogates"):
            encoded_entries.all_checked([sis.Seal("\ud800", 1)], CONFIG)

    def test_integers_of_numpy_are_integers(self):
        same = [
            encoded_entries.checked(sis.Seal("s", kind(5), kind(1)), CONFIG)[0].parts
            for kind in (int, np.int64, np.uint8)
        ]
        self.assertEqual(same, [same[0]] * 3)


if __name__ == "__main__":
    unittest.main()
