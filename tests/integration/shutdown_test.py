"""SIGTERM ends streams that have nothing to do, and connections: a server does not wait for clients
that are idle, but for what they have asked."""

import queue
import signal
import socket
import time
import unittest
import urllib.error
import urllib.request

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

    def test_connections_that_nobody_uses_end_at_once(self):
        server = LiveServer("--shutdown_grace=1h")
        self.addCleanup(server.kill)
        host, _, port = server.address.rpartition(":")
        self.addCleanup(socket.create_connection((host, int(port))).close)
        channel = grpc.insecure_channel(server.address)
        self.addCleanup(channel.close)
        watch = channel.unary_stream(
            "/grpc.health.v1.Health/Watch", request_serializer=bytes, response_deserializer=bytes
        )(b"")
        self.assertEqual(next(watch), b"\x08\x01")  # SERVING
        server.process.send_signal(signal.SIGTERM)
        self.assertEqual(next(watch), b"\x08\x02")  # NOT_SERVING, before it ends
        self.assertEqual(server.process.wait(timeout=30), 0)

    def test_what_is_in_flight_is_finished(self):
        rows = 400_000
        entry = pb.AppendEntry(
            block=pb.Block(
                sequence=pb.SequenceRef(id="long"),
                sampled_ids=bytes(4 * rows),
                sampled_log_probs=bytes(4 * rows),
                top_k_ids=b"\0\0\0\0\1\0\0\0" * rows,
                top_k_log_probs=b"\0\0\0\0\0\0\xa0\xc1" * rows,  # 0 and -20
            )
        )
        batch = pb.AppendBatch(entries=[entry])
        options = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]
        channel = grpc.insecure_channel(self.server.address, options)
        self.addCleanup(channel.close)
        stub = ratio_service_pb2_grpc.RatioServiceStub(channel)
        append = self.open(stub.Append, pb.AppendRequest(header=HEADER), pb.AppendRequest(batch=batch))
        self.assertEqual(next(append).acks[0].code, 0)
        whole = pb.Slice(sequence=pb.SequenceRef(id="long"), length=rows)
        fetch = stub.FetchTopK(pb.FetchTopKRequest(run=pb.RunRef(run_id="run"), slices=[whole]))
        next(fetch)  # its header; the rest is more than is sent to whoever doesn't read
        self.server.process.send_signal(signal.SIGTERM)
        while self.ready() != 503:
            time.sleep(0.01)
        time.sleep(0.5)  # longer than idle connections last
        self.assertIsNone(self.server.process.poll())
        self.assertEqual(sum(len(message.chunk.sampled_ids) for message in fetch), 4 * rows)
        self.assertEqual(self.server.process.wait(timeout=30), 0)

    def ready(self):
        """What /readyz says, as a status of HTTP."""
        try:
            with urllib.request.urlopen(f"http://{self.server.admin_address}/readyz", timeout=20) as page:
                return page.status
        except urllib.error.HTTPError as error:
            return error.code


if __name__ == "__main__":
    unittest.main()
