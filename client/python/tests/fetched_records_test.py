"""A FetchTopK stream means what protobuf says it means, and is taken whole or not at all."""

import random
import unittest

import grpc

import sis
from google.protobuf.message import DecodeError
from sis.v1 import ratio_service_pb2 as pb
from sis.wire import fetched_records


def header(*slices, top_k=1):
    return pb.FetchTopKHeader(top_k=top_k, slices=slices)


def chunk(index, first, rows, fill=0):
    return pb.FetchTopKChunk(
        slice=index,
        first_position=first,
        length=rows,
        sampled_ids=bytes([fill]) * 4 * rows,
        sampled_log_probs=bytes([fill + 1]) * 4 * rows,
        top_k_ids=bytes([fill + 2]) * 4 * rows,
        top_k_log_probs=bytes([fill + 3]) * 4 * rows,
    )


def as_protobuf_reads(data):
    message = pb.FetchTopKResponse.FromString(data)
    if message.WhichOneof("message") == "header":
        return message.header
    return fetched_records.Chunk(*(getattr(message.chunk, name) for name in fetched_records.Chunk._fields))


def outcome(parse, data):
    """What it makes of the bytes, with arrays as bytes; None if it refuses them."""
    try:
        message = parse(data)
    except DecodeError:
        return None
    if isinstance(message, fetched_records.Chunk):
        return tuple(value if isinstance(value, int) else bytes(value) for value in message)
    return message.SerializeToString()


class ParseTest(unittest.TestCase):
    MESSAGES = (
        pb.FetchTopKResponse(chunk=chunk(300, 70000, 40, fill=9)).SerializeToString(),
        pb.FetchTopKResponse(chunk=chunk(0, 0, 0)).SerializeToString(),
        pb.FetchTopKResponse(chunk=pb.FetchTopKChunk(length=1, top_k_counts=b"\1\0")).SerializeToString(),
        pb.FetchTopKResponse(header=header(pb.Slice(length=3), top_k=4)).SerializeToString(),
        # Fields that came later, a varint that is longer than it must be, a chunk in two parts,
        # nothing.
        pb.FetchTopKResponse(chunk=chunk(1, 2, 3)).SerializeToString() + b"\xc2\x3e\x02ab",
        b"\x12\x05\x08\x81\x80\x80\x00",
        b"\x12\x02\x08\x05\x12\x02\x10\x06",
        b"\x12\x07\xc2\x3e\x02ab\x08\x05",
        b"",
    )

    def test_every_message_is_what_protobuf_reads(self):
        for data in self.MESSAGES:
            self.assertEqual(outcome(fetched_records.parse, data), outcome(as_protobuf_reads, data))

    def test_so_is_every_mutation(self):
        generator = random.Random(5)
        refused = 0
        for _ in range(20000):
            data = bytearray(generator.choice(self.MESSAGES))
            for _ in range(generator.randint(1, 3)):
                # Most bytes of a message are of its arrays; what is not is at its beginning and
                # between them.
                at = generator.randrange(min(len(data), 16)) if data else 0
                kind = generator.randrange(4)
                if kind == 0 and data:
                    data[at] = generator.randrange(256)
                elif kind == 1 and data:
                    del data[at]
                elif kind == 2:
                    data.insert(at, generator.randrange(256))
                else:
                    del data[generator.randrange(len(data) + 1) :]
            expected = outcome(as_protobuf_reads, bytes(data))
            refused += expected is None
            self.assertEqual(outcome(fetched_records.parse, bytes(data)), expected, data)
        self.assertGreater(refused, 1000)

    def test_the_arrays_of_a_chunk_are_not_copied(self):
        data = self.MESSAGES[0]
        self.assertIs(fetched_records.parse(data).top_k_ids.obj, data)


class AssembleTest(unittest.TestCase):
    HEADER = header(pb.Slice(first_position=4, length=2), pb.Slice(first_position=0, length=3))

    @staticmethod
    def parsed(message):
        return fetched_records.parse(pb.FetchTopKResponse(chunk=message).SerializeToString())

    def test_chunks_become_arrays(self):
        chunks = [chunk(0, 4, 2, fill=1), chunk(1, 0, 1, fill=2), chunk(1, 1, 2, fill=3)]
        records = fetched_records.assemble(pb.FetchTopKRequest(), [self.HEADER, *map(self.parsed, chunks)])
        for array, name in (
            (records.sampled_ids, "sampled_ids"),
            (records.sampled_log_probs, "sampled_log_probs"),
            (records.ids, "top_k_ids"),
            (records.log_probs, "top_k_log_probs"),
        ):
            self.assertEqual(array.tobytes(), b"".join(getattr(part, name) for part in chunks), name)

    def test_chunks_may_span_slices(self):
        for chunks in ([chunk(0, 4, 5, fill=1)], [chunk(0, 4, 1, fill=1), chunk(0, 5, 3), chunk(1, 2, 1, fill=3)]):
            records = fetched_records.assemble(pb.FetchTopKRequest(), [self.HEADER, *map(self.parsed, chunks)])
            self.assertEqual(records.ids.tobytes(), b"".join(part.top_k_ids for part in chunks))

    @staticmethod
    def ragged(index, first, counts, **changes):
        slots = sum(counts)
        message = chunk(index, first, len(counts))
        message.top_k_ids, message.top_k_log_probs = bytes(range(1, 4 * slots + 1)), bytes([9]) * 4 * slots
        message.top_k_counts = b"".join(count.to_bytes(2, "little") for count in counts)
        for name, value in changes.items():
            setattr(message, name, value)
        return message

    def test_ragged_chunks_become_arrays(self):
        request = pb.FetchTopKRequest(ragged=True)
        head = header(pb.Slice(first_position=4, length=2), pb.Slice(first_position=0, length=3), top_k=3)
        chunks = [self.ragged(0, 4, [2, 0]), self.ragged(1, 0, [3]), self.ragged(1, 1, [0, 1])]
        records = fetched_records.assemble(request, [head, *map(self.parsed, chunks)])
        self.assertEqual(records.counts.tolist(), [2, 0, 3, 0, 1])
        self.assertEqual(records.offsets.tolist(), [0, 2, 2, 5, 5, 6])
        self.assertEqual(records.used_ids.tobytes(), b"".join(part.top_k_ids for part in chunks))
        self.assertEqual(records.ids.shape, (5, 3))
        self.assertEqual(records.ids[1].tolist(), [-1] * 3)
        self.assertEqual(records.ids[4].tolist(), [records.used_ids[5], -1, -1])
        self.assertEqual(records.select([1]).used_ids.tolist(), records.used_ids[2:].tolist())
        for broken in (
            {"top_k_ids": bytes(4)},
            {"top_k_counts": b""},
            {"top_k_counts": b"\x03\x00\x00"},
            {"top_k_counts": b"\x02\x00\x01\x00"},
        ):
            with self.assertRaises(sis.Error) as raised:
                fetched_records.assemble(request, [head, self.parsed(self.ragged(0, 4, [2, 0], **broken)), *chunks[1:]])
            self.assertEqual(raised.exception.code, grpc.StatusCode.DATA_LOSS)

    def test_a_broken_stream_is_not_taken(self):
        good = [chunk(0, 4, 2), chunk(1, 0, 1), chunk(1, 1, 2)]
        request = pb.FetchTopKRequest()
        self.assertEqual(len(fetched_records.assemble(request, [self.HEADER, *map(self.parsed, good)])), 5)
        swapped = [good[0], good[2], good[1]]
        short = chunk(1, 1, 2)
        short.top_k_log_probs = short.top_k_log_probs[:-1]
        for broken in (
            good[:2],
            good[1:],
            swapped,
            [*good, good[2]],
            [chunk(0, 4, 6)],
            [chunk(0, 4, 3), chunk(1, 0, 2)],
            [chunk(2, 0, 1)],
            [*good[:2], short],
        ):
            with self.assertRaises(sis.Error) as raised:
                fetched_records.assemble(pb.FetchTopKRequest(), [self.HEADER, *map(self.parsed, broken)])
            self.assertEqual(raised.exception.code, grpc.StatusCode.DATA_LOSS)
        with self.assertRaisesRegex(sis.Error, "did not start with a header"):
            fetched_records.assemble(pb.FetchTopKRequest(), map(self.parsed, good))
        with self.assertRaisesRegex(sis.Error, "did not start with a header"):
            fetched_records.assemble(pb.FetchTopKRequest(), [])
        with self.assertRaisesRegex(sis.Error, "second header"):
            fetched_records.assemble(pb.FetchTopKRequest(), [self.HEADER, self.HEADER])


if __name__ == "__main__":
    unittest.main()
