"""Entries as messages, and which entries are refused."""

import random
import unittest
from unittest import mock

import numpy as np

import sis
from sis import _blocks
from sis._append_streams import checked_entries
from sis.v1 import ratio_service_pb2 as pb

TOP_K = 3
CONFIG = sis.RunConfig(seed=1, vocabulary_size=100, top_k=TOP_K)


def columns(rows, seed):
    rng = np.random.default_rng(seed)
    log_probs = -2 - np.arange(TOP_K) - rng.random((rows, TOP_K))
    return {
        "sampled_ids": rng.integers(50, size=rows, dtype=np.int32),
        "sampled_log_probs": np.full(rows, -9, np.float32),
        # None of the sampled tokens.
        "top_k_ids": np.tile(np.arange(50, 50 + TOP_K, dtype=np.int32), (rows, 1)),
        "top_k_log_probs": log_probs.astype(np.float32),
    }


def packed(first, version, values):
    return bytes(_blocks.pack([_blocks.Records(first, version, *values.values())], CONFIG)[0])


def messages(entries):
    """In the batch that is sent."""
    return list(pb.AppendRequest.FromString(checked_entries.append_request(entries)).batch.entries)


class EntriesTest(unittest.TestCase):
    def entry(self, generator):
        """One at random, and protobuf's."""
        sequence = generator.choice(("", "s", "é" * 70, "n" * 300))
        attempt = generator.choice((0, 1, 127, 128, 2**32 - 1))
        reference = pb.SequenceRef(id=sequence, attempt=attempt)
        kind = generator.choice((sis.Block, sis.Block, sis.Gap, sis.Seal))
        length = generator.choice((0, 1, 200, 2**32 - 1))
        if kind is sis.Gap:
            gap = sis.Gap(sequence, length, generator.choice((0, 1, 300)), attempt=attempt)
            message = pb.Gap(first_position=gap.first_position, length=gap.length, reason=pb.MISSING_REASON_INVALID_LOG_PROB)
            return gap, pb.AppendEntry(sequence=reference, gap=message)
        if kind is not sis.Block:
            return sis.Seal(sequence, length, attempt), pb.AppendEntry(sequence=reference, seal=pb.Seal(length=length))
        values = columns(generator.choice((1, 2, 31, 32, 33, 4000)), generator.getrandbits(30))
        version = generator.choice((0, 1, 2**64 - 1))
        block = sis.Block(sequence, length, version, attempt=attempt, **values)
        return block, pb.AppendEntry(sequence=reference, block=packed(length, version, values))

    def test_each_message_holds_its_entry(self):
        generator = random.Random(5)
        for count in (0, 1, 3, 20):
            made = [self.entry(generator) for _ in range(count)]
            checked = checked_entries.checked([entry for entry, _ in made], CONFIG)
            self.assertEqual(messages(checked), [message for _, message in made])

    def test_a_long_block_is_sent_as_several(self):
        rows = 2 * _blocks.MAX_POSITIONS + 1
        values = columns(rows, seed=2)
        entries = [sis.Seal("r", 0), sis.Block("s", 7, 1, **values), sis.Block("t", 0, 2, **columns(1, seed=3))]
        seal, *made, other = checked_entries.checked(entries, CONFIG)
        self.assertEqual([seal.kind, other.sequence.id], ["seal", "t"])
        self.assertEqual((made[0].first, made[-1].end), (7, 7 + rows))
        self.assertEqual([entry.end for entry in made[:-1]], [entry.first for entry in made[1:]])
        self.assertEqual(len(made), 3)
        read = [_blocks.Block(message.block) for message in messages(made)]
        self.assertEqual([block.header.first_position for block in read], [entry.first for entry in made])
        sampled = np.concatenate([block.sampled_ids() for block in read])
        self.assertEqual(sampled.tolist(), values["sampled_ids"].tolist())

    def test_groups_hold_all_entries_in_order(self):
        blocks = [sis.Block(f"s{number}", 0, 1, **columns(2, seed=number)) for number in range(5)]
        given = [sis.Seal("r", 0), *blocks, sis.Gap("t", 0, 1)]
        wrong = blocks[4]._replace(policy_version=-1)
        with mock.patch.object(checked_entries, "_GROUP_SLOTS", 4 * TOP_K):  # of two blocks
            groups = list(checked_entries.in_groups(given, CONFIG))
            self.assertEqual([len(group) for group in groups], [3, 2, 2])
            whole = checked_entries.checked(given, CONFIG)
            self.assertEqual(messages([entry for group in groups for entry in group]), messages(whole))

            groups = checked_entries.in_groups([*given[:5], wrong], CONFIG)
            self.assertEqual([len(next(groups)), len(next(groups))], [3, 2])
            with self.assertRaisesRegex(ValueError, r"^entries\[5\], sequence 's4': policy_version is -1"):
                next(groups)

    def test_misfitting_arrays_are_refused(self):
        good = dict(sequence="s", first_position=0, policy_version=0, **columns(2, seed=1))
        outside = np.full((2, TOP_K), CONFIG.vocabulary_size, np.int32)
        for name, value, message in (
            ("first_position", -1, "first_position is -1, must"),
            ("first_position", 2**32, "first_position is 4294967296, must"),
            ("policy_version", 2**64, "policy_version is 18446744073709551616, must"),
            ("attempt", -1, "attempt is -1, must"),
            ("top_k_ids", outside, f"top_k_ids at position 0, slot 0: {CONFIG.vocabulary_size} is not in"),
        ):
            wrong = sis.Block(**{**good, name: value})
            for entries in ([sis.Block(**good), wrong], [sis.Seal("r", 0), wrong, sis.Block(**good)]):
                with self.assertRaisesRegex(ValueError, rf"^entries\[1\], sequence 's': {message}"):
                    checked_entries.checked(entries, CONFIG)
        for name, value in (("first_position", -1), ("length", 2**32), ("reason", -1)):
            with self.assertRaisesRegex(ValueError, rf"^sequence 's': {name} is {value}, must"):
                checked_entries.checked([sis.Gap("s", 0, 1)._replace(**{name: value})], CONFIG)
        for entry in (sis.Seal("s", 1.5), sis.Seal(b"s", 1), sis.Seal("s", "1"), "s", ("s", 1)):
            with self.assertRaises(TypeError):
                checked_entries.checked([entry], CONFIG)
        with self.assertRaisesRegex(ValueError, "surrogates"):
            checked_entries.checked([sis.Seal("\ud800", 1)], CONFIG)

    def test_integers_of_numpy_are_integers(self):
        seals = [sis.Seal("s", kind(5), kind(1)) for kind in (int, np.int64, np.uint8)]
        same = messages(checked_entries.checked(seals, CONFIG))
        self.assertEqual(same, [same[0]] * 3)


if __name__ == "__main__":
    unittest.main()
