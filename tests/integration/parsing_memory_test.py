"""What is made of messages is bounded, whatever they are: small parts may be made into many times
their bytes."""

import concurrent.futures
import threading
import unittest
import unittest.mock

import grpc
import numpy as np

import sis
from server.testing.live_server import LiveServer
from server.testing.process_status import process_status
from sis.v1 import ratio_service_pb2 as pb

MEBIBYTE = 1 << 20
MESSAGE = 8 * MEBIBYTE
# Twice --max_message_bytes, which is more than a quarter of --grpc_memory_bytes.
BUDGET = 64 * MEBIBYTE
FLAGS = [f"--max_message_bytes={BUDGET // 2}", f"--grpc_memory_bytes={4 * BUDGET}"]
# A message as gRPC has it, its answer, and what the process takes to begin with.
BESIDES = 4 * MESSAGE
REFUSED = (grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.INVALID_ARGUMENT)

RUN = pb.RunRef(run_id="run")
HEADER = pb.AppendRequest(
    header=pb.AppendHeader(
        run=RUN, vocabulary_size=10, sampling=pb.Sampling(log_probs=pb.Sampling.RAW, temperature=1)
    )
).SerializeToString()


def varint(value):
    data = bytearray()
    while value >= 128:
        data.append(value & 127 | 128)
        value >>= 7
    return bytes([*data, value])


def delimited(number, payload):
    """A field of a message, by hand."""
    return varint(number << 3 | 2) + varint(len(payload)) + payload


def number_of(message, field):
    return message.DESCRIPTOR.fields_by_name[field].number


def repeated(message, field, part=b""):
    """So many of one part that they have the bytes of a large message."""
    whole = delimited(number_of(message, field), part)
    return whole * (MESSAGE // len(whole))


UNKNOWN = b"\x78\x01"  # field 15, a number
BATCH = number_of(pb.AppendRequest, "batch")
ENTRIES = repeated(pb.AppendBatch, "entries")
LARGE = {
    "empty entries": ("Append", [HEADER, delimited(BATCH, ENTRIES)]),
    "empty entries, and something unknown": ("Append", [HEADER, delimited(BATCH, ENTRIES) + UNKNOWN]),
    "seals": ("Append", [HEADER, delimited(BATCH, repeated(pb.AppendBatch, "entries", b"\x1a\x02\x0a\x00"))]),
    "slices": ("Evaluate", [repeated(pb.EvaluateRequest, "slices")]),
    "slices to fetch": ("FetchTopK", [repeated(pb.FetchTopKRequest, "slices")]),
    "sequences": ("Release", [repeated(pb.ReleaseRequest, "sequences")]),
    "observed": ("Evaluate", [repeated(pb.EvaluateRequest, "observe")]),
}
# Nothing is made of these.
IGNORED = {
    "unknown numbers": ("ListRuns", [UNKNOWN * (MESSAGE // 2)]),
    "unknown messages": ("GetRun", [b"\x0a\x03run" + delimited(15, b"") * (MESSAGE // 2)]),
}


class ParsingMemoryTest(unittest.TestCase):
    def setUp(self):
        self.server = LiveServer(*FLAGS, cache_bytes=16 * MEBIBYTE)
        self.addCleanup(self.server.kill)
        with sis.Client(self.server.address) as client:
            client.create_run("run", seed=1, vocabulary_size=10, top_k=2)
        self.before = self.peak()

    def peak(self):
        return process_status(self.server.process, "VmHWM") << 10

    def call(self, method, requests):
        options = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]
        with grpc.insecure_channel(self.server.address, [*options, ("grpc.use_local_subchannel_pool", 1)]) as channel:
            call = channel.stream_stream(f"/sis.v1.RatioService/{method}")(iter(requests), timeout=60)
            answers = 0
            try:
                for answer in call:
                    answers += len(answer)
            except grpc.RpcError:
                pass
            return call.code(), call.details(), answers

    def test_each_is_refused_before_it_takes_memory(self):
        for name, (method, requests) in LARGE.items():
            with self.subTest(name):
                code, said, answers = self.call(method, requests)
                self.assertIn(code, REFUSED, said)
                self.assertEqual(answers, 0)
                self.assertLess(self.peak() - self.before, BUDGET + BESIDES)
        for name, (method, requests) in IGNORED.items():
            with self.subTest(name):
                self.assertIs(self.call(method, requests)[0], grpc.StatusCode.OK)
        self.assertLess(self.peak() - self.before, BUDGET + BESIDES)

    def test_many_at_a_time_share_what_there_is(self):
        at_once = 12
        start = threading.Barrier(at_once)

        def call(method, requests):
            start.wait()
            return self.call(method, requests)[0]

        with concurrent.futures.ThreadPoolExecutor(at_once) as callers:
            calls = [callers.submit(call, *list(LARGE.values())[i % len(LARGE)]) for i in range(at_once)]
            for each in calls:
                self.assertIn(each.result(), (*REFUSED, grpc.StatusCode.UNAVAILABLE))
        self.assertLess(self.peak() - self.before, BUDGET + at_once * 2 * MESSAGE)

    def test_what_is_charged_covers_what_answering_slices_takes(self):
        """As many as there is just room for."""
        slices = 50_000
        values = np.zeros(slices, np.float32)
        parts = [sis.Slice(f"sequence {i}", length=1) for i in range(slices)]
        in_one_message = unittest.mock.patch("sis.servers.single_server.SingleServer.micro_batch_bytes", 1 << 30)
        with in_one_message, sis.Client(self.server.address) as client:
            evaluation = client.evaluate_reduced(
                client.get_run("run").run,
                parts,
                draw=0,
                sampled_log_probs=values,
                log_envelopes=values,
                covered_masses=values,
            )
        self.assertEqual(evaluation.totals.missing, slices)
        self.assertLess(self.peak() - self.before, BUDGET)

    def test_what_is_charged_covers_what_answering_entries_takes(self):
        """As many as a message may have."""
        refused = pb.AppendEntry(seal=pb.Seal(sequence=pb.SequenceRef(id="s"), length=1 << 31))
        batch = pb.AppendRequest(batch=pb.AppendBatch(entries=[refused] * (1 << 16)))
        code, said, answers = self.call("Append", [HEADER, batch.SerializeToString()])
        self.assertIs(code, grpc.StatusCode.OK, said)
        self.assertGreater(answers, 1 << 16)
        self.assertLess(self.peak() - self.before, BUDGET)


if __name__ == "__main__":
    unittest.main()
