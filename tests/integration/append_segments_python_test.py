"""The Python client's Append from shared memory: what is there is recorded as if it had
travelled."""

import gc
import time
import unittest
import unittest.mock

import numpy as np

import sis
from server.testing.live_server import LiveServer
from sis.append_streams.server_append import ServerAppendStream

TOP_K, VOCABULARY = 5, 40
ROWS = 1000
MEBIBYTE = 1 << 20
# Less than the arrays of a block of all rows.
MESSAGE_BYTES = 32 << 10


def make_record(seed):
    generator = np.random.default_rng(seed)
    logits = generator.normal(size=(ROWS, VOCABULARY))
    values = (logits - np.logaddexp.reduce(logits, axis=1, keepdims=True)).astype(np.float32)
    sampled = generator.integers(VOCABULARY, size=ROWS)
    return sis.canonical(
        np.broadcast_to(np.arange(VOCABULARY), values.shape),
        values,
        sampled,
        np.take_along_axis(values, sampled[:, None], 1)[:, 0],
        TOP_K,
    )._asdict()


class AppendSegmentsTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = LiveServer(f"--max_message_bytes={MESSAGE_BYTES}", shared_memory_bytes=64 * MEBIBYTE)
        cls.addClassCleanup(cls.server.close)
        cls.client = sis.Client(cls.server.address, timeout=30)
        cls.addClassCleanup(cls.client.close)
        cls.record = make_record(3)

    def setUp(self):
        self.run_ = self.client.create_run(
            self.id(), seed=1, vocabulary_size=VOCABULARY, top_k=TOP_K, log_prob_encoding="float32"
        )
        self.segment = self.client.lease_segment(MEBIBYTE)
        self.addCleanup(self.segment.close)

    def stream(self):
        return self.client.append(self.run_, sampling=sis.Sampling("raw"))

    def put(self, record, segment=None):
        """A copy of the record in a segment."""
        copies = {}
        for name, array in record.items():
            dtype = np.int32 if name.endswith("ids") else np.float32
            copies[name] = (segment or self.segment).empty(array.shape, dtype)
            copies[name][...] = array
        return copies

    def block(self, stream, record, first=0, sequence="s"):
        stream.block(sequence, first_position=first, policy_version=0, **record)

    def rows(self, first, stop):
        return {name: array[first:stop] for name, array in self.record.items()}

    def assert_recorded(self, sequence, stop=ROWS):
        got = self.client.fetch_top_k(self.run_, [sequence], segment=self.segment)
        self.assertEqual((len(got), got.missing), (stop, ()))
        expected = self.rows(0, stop)
        np.testing.assert_array_equal(got.ids, expected["top_k_ids"])
        np.testing.assert_array_equal(got.log_probs, expected["top_k_log_probs"])
        np.testing.assert_array_equal(got.sampled_ids, expected["sampled_ids"])
        np.testing.assert_array_equal(got.sampled_log_probs, expected["sampled_log_probs"])

    def test_arrays_that_no_message_holds(self):
        with self.assertRaises(sis.ResourceExhausted), self.stream() as stream:
            self.block(stream, self.record)
        with self.stream() as stream:
            self.block(stream, self.put(self.record))
        self.assert_recorded("s")

    def test_blocks_from_anywhere_in_one_stream(self):
        with self.client.lease_segment(MEBIBYTE) as other, self.stream() as stream:
            for turn, first in enumerate(range(0, ROWS, 50)):
                record = self.rows(first, first + 50)
                if turn % 4 in (0, 1):
                    record = self.put(record)
                elif turn % 4 == 2:
                    record = self.put(record, other)
                elif turn % 8 == 3:  # not all of it
                    record["top_k_ids"] = self.put({"top_k_ids": record["top_k_ids"]})["top_k_ids"]
                self.block(stream, record, first)
                if turn == 9:
                    stream.seal("another", length=7)
            stream.seal("s", length=ROWS)
            self.assertEqual(stream.flush()[sis.SequenceRef("s")], ROWS)
        self.assert_recorded("s")

    def test_what_lies_in_a_segment_counts_as_what_travels_of_it(self):
        # More than fits into many messages, and each block by itself into none.
        placed = self.put(self.record)
        names = [f"s{i}" for i in range(200)]
        entries = [entry for name in names for entry in (sis.Block(name, 0, 0, **placed), sis.Seal(name, ROWS))]
        sent = []
        send = ServerAppendStream._send_batch

        def note(stream, batch, segment):
            sent.append((len(batch), segment))
            send(stream, batch, segment)

        with unittest.mock.patch.object(ServerAppendStream, "_send_batch", note):
            for size in (30, 80):
                committed = self.client.append_many(self.run_, entries[: 2 * size], sampling=sis.Sampling("raw"))
                self.assertEqual(committed, {(name, 0): ROWS for name in names[:size]})
            self.assertEqual(sent, [(60, self.segment.name), (160, self.segment.name)])
            for name in names[:80:33]:
                self.assert_recorded(name)
            # Not more at once than stays in the processor's caches.
            del sent[:]
            bytes_of_two = 2 * sum(array.nbytes for array in placed.values())
            with unittest.mock.patch("sis.append_streams.server_append.BATCH_REFERRED_BYTES", bytes_of_two):
                with self.stream() as stream:
                    for name in names[100:104]:
                        stream.block(name, first_position=0, policy_version=0, **placed)
            self.assertEqual(sent, [(2, self.segment.name)] * 2)

    def test_many_blocks_from_anywhere_in_one_call(self):
        with self.client.lease_segment(MEBIBYTE) as other:
            entries = []
            for turn, first in enumerate(range(0, ROWS, 50)):
                record = self.rows(first, first + 50)
                if turn % 3:
                    record = self.put(record, other if turn % 3 == 1 else self.segment)
                entries += [sis.Block("s", first, 0, **record), sis.Seal(f"sealed-{turn}", 7)]
            readonly = self.put(self.rows(0, 50))
            for array in readonly.values():
                array.flags.writeable = False
            entries += [sis.Block("readonly", 0, 0, **readonly), sis.Seal("s", ROWS)]
            committed = self.client.append_many(self.run_, entries, sampling=sis.Sampling("raw"))
            self.assertEqual((committed["s", 0], committed["readonly", 0], len(committed)), (ROWS, 50, 22))
        self.assert_recorded("s")

    def test_arrays_may_be_dropped_once_a_call_has_returned(self):
        self.client.append_many(self.run_, [sis.Block("s", 0, 0, **self.put(self.record))], sampling=sis.Sampling("raw"))
        gc.collect()
        self.segment.empty(MEBIBYTE, np.uint8)

    def test_rows_that_begin_anywhere(self):
        placed = self.put(self.record)
        for alignment in (1, 64):  # 64: a server of 0.1.0, to which these travel
            self.segment.alignment = alignment
            some = [array[100:200] for array in placed.values()]
            self.assertEqual(self.segment.refer_all(some) is None, alignment == 64)
            with self.stream() as stream:
                for first in range(0, ROWS, 100):
                    rows = {name: array[first : first + 100] for name, array in placed.items()}
                    self.block(stream, rows, first, f"s{alignment}")
            self.assert_recorded(f"s{alignment}")

    def test_arrays_may_be_dropped_at_once(self):
        with self.stream() as stream:
            self.block(stream, self.put(self.record))
            gc.collect()
            with self.assertRaises(MemoryError):
                self.segment.empty(MEBIBYTE, np.uint8)
            stream.flush()
            gc.collect()
            self.segment.empty(MEBIBYTE, np.uint8)
        self.assert_recorded("s")

    def test_what_the_server_may_still_read_is_never_used_again(self):
        with unittest.mock.patch.object(ServerAppendStream, "_read_acks"):
            stream = self.stream()
        self.block(stream, self.put(self.record))
        with stream._changed:
            stream._send_pending()
        stream.abandon()
        del stream
        gc.collect()
        with self.assertRaises(MemoryError):
            self.segment.empty(MEBIBYTE, np.uint8)

    def test_without_the_lease(self):
        """What the server has not read yet is sent again, as a copy."""
        record = self.put(self.rows(0, 100))
        with self.stream() as stream:
            self.block(stream, record, sequence="referred to")
            self.segment.close()
            # The server hears of the end in its own time.
            deadline = time.monotonic() + 30
            while self.server.metrics()["sis_segments"] > 0:
                self.assertLess(time.monotonic(), deadline)
                time.sleep(0.01)
            self.block(stream, record, sequence="sent")
            self.assertEqual(stream.flush(), {("referred to", 0): 100, ("sent", 0): 100})
        self.segment = self.client.lease_segment(MEBIBYTE)
        self.assert_recorded("referred to", 100)
        self.assert_recorded("sent", 100)


if __name__ == "__main__":
    unittest.main()
