"""SIGTERM ends streams that have nothing to do: a server does not wait for clients that are
idle."""

import queue
import signal
import unittest

import grpc

from server.testing.live_server import LiveServer
from sis.v1 import ratio_service_pb2 as pb
from sis.v1 import ratio_service_pb2_grpc

HEADER = pb.AppendHeader(
    run=pb.RunRef(run_id="run"),
    vocabulary_size=10,
    sampling=pb.Sampling(log_probs=pb.Sampling.RAW, temperature=1),
)
SEAL = pb.AppendEntry(seal=pb.Seal(sequence=pb.SequenceRef(id="s"), length=1))
EVALUATE = pb.EvaluateRequest(
    run=pb.RunRef(run_id="run"),
    slices=[pb.Slice(sequence=pb.SequenceRef(id="s"), length=1)],
    reduced=pb.Reduced(sampled_log_probs=bytes(4), log_envelopes=bytes(4), covered_masses=bytes(4)),
)


class ShutdownTest(unittest.TestCase):
    def setUp(self):
        # Far longer than the test may take.
        self.server = LiveServer("--shutdown_grace=1h", shared_memory_bytes=1 << 20)
        self.addCleanup(self.server.kill)
        self.channel = grpc.insecure_channel(self.server.address)
        self.addCleanup(self.channel.close)
        self.stub = ratio_service_pb2_grpc.RatioServiceStub(self.channel)
        self.stub.CreateRun(pb.CreateRunRequest(run_id="run", config=pb.RunConfig(vocabulary_size=10, top_k=2)))

    def open(self, method, *requests):
        """A stream of these requests, which stays open."""
        to_send = queue.SimpleQueue()
        for request in requests:
            to_send.put(request)
        self.addCleanup(to_send.put, None)
        return method(iter(to_send.get, None))

    def end(self):
        self.server.process.send_signal(signal.SIGTERM)
        self.assertEqual(self.server.process.wait(timeout=30), 0)

    def test_idle_streams_end_at_once(self):
        streams = [
            self.open(self.stub.Append),
            self.open(self.stub.Append, pb.AppendRequest(header=HEADER)),
            self.open(
                self.stub.Append, pb.AppendRequest(header=HEADER), pb.AppendRequest(batch=pb.AppendBatch(entries=[SEAL]))
            ),
            self.open(self.stub.EvaluateStream),
            self.open(self.stub.EvaluateStream, EVALUATE),
            self.stub.LeaseSegment(pb.LeaseSegmentRequest(bytes=1)),
        ]
        self.assertEqual(next(streams[2]).acks[0].code, 0)
        self.assertEqual(next(streams[4]).totals.missing, 1)
        next(streams[5])
        # Streams are opened in order, so the server has them all.
        self.stub.GetRun(pb.GetRunRequest(run_id="run"))
        self.end()
        for number, stream in enumerate(streams):
            with self.subTest(number):
                self.assertIs(stream.code(), grpc.StatusCode.UNAVAILABLE, stream.details())


if __name__ == "__main__":
    unittest.main()
