"""SIGTERM ends idle streams and connections at once. Calls in flight may finish within the grace period.

The test of "at once" makes all timers 25 times late. A server that waits for one of at least 1.2 seconds then still
runs after 30."""

import queue
import shutil
import signal
import socket
import tempfile
import threading
import time
import unittest
import urllib.error
import urllib.request

import grpc
import numpy as np

from server.testing.late_timers import LATE_TIMERS, has_late_timers
from sis import _blocks
from sis._run import RunConfig
from sis.v1 import ratio_service_pb2 as pb
from sis.v1 import ratio_service_pb2_grpc
from tests.integration.live_server import ServersTest

HEADER = pb.AppendHeader(
    run=pb.RunRef(run_id="run"),
    vocabulary_size=10,
    sampling=pb.Sampling(log_probs=pb.Sampling.LOG_PROBS_RAW, temperature=1),
)
SEAL = pb.AppendEntry(sequence=pb.SequenceRef(id="s"), seal=pb.Seal(length=1))
EVALUATE = pb.EvaluateRequest(
    run=pb.RunRef(run_id="run"),
    slices=[pb.Slice(sequence=pb.SequenceRef(id="s"), length=1)],
    reduced=pb.Reduced(sampled_log_probs=bytes(4), log_envelopes=bytes(4), covered_masses=bytes(4)),
)


def batch(*entries):
    return pb.AppendRequest(batch=pb.AppendBatch(entries=entries))


def entries(sequence, rows=1):
    """Blocks, each as long as one may be."""
    config = RunConfig(seed=0, vocabulary_size=10, top_k=2)
    ids, log_probs = np.zeros(rows, np.int32), np.zeros(rows, np.float32)
    sets = np.tile(np.array([0, 1], np.int32), (rows, 1)), np.tile(np.array([0, -20], np.float32), (rows, 1))
    packed = _blocks.pack(_blocks.split(_blocks.Records(0, 0, ids, log_probs, *sets), config), config)
    return [pb.AppendEntry(sequence=pb.SequenceRef(id=sequence), block=bytes(each)) for each in packed]


def positions(response):
    """Returns the number of positions in the blocks of an answer of FetchTopK."""
    return sum(_blocks.Block(block).header.positions for part in response.slices for block in part.blocks)


def evaluation(sequence):
    request = pb.EvaluateRequest()
    request.CopyFrom(EVALUATE)
    request.slices[0].sequence.id = sequence
    return request


class ShutdownTest(ServersTest):
    def setUp(self):
        folder = tempfile.mkdtemp(dir="/tmp", prefix="sis_")  # names of sockets are short
        self.addCleanup(shutil.rmtree, folder)
        self.folder = folder

    def serve(self, *flags, grace="1h", late=False, **named):
        """A grace of 1h is far longer than the test may take."""
        server = super().serve(f"--shutdown_grace={grace}", *flags, prefix=LATE_TIMERS if late else [], **named)
        self.assertEqual(has_late_timers(server.process), late)
        return server

    def stub(self, server):
        # Without probing, windows stay small: nothing is taken that nobody reads.
        options = [
            ("grpc.max_send_message_length", -1),
            ("grpc.max_receive_message_length", -1),
            ("grpc.http2.bdp_probe", 0),
        ]
        channel = self.enterContext(grpc.insecure_channel(server.address, options))
        stub = ratio_service_pb2_grpc.RatioServiceStub(channel)
        stub.CreateRun(pb.CreateRunRequest(run_id="run", config=pb.RunConfig(vocabulary_size=10, top_k=2)))
        return stub

    def open(self, method, *requests):
        """A stream of these requests, which stays open."""
        to_send = queue.SimpleQueue()
        for request in requests:
            to_send.put(request)
        self.addCleanup(to_send.put, None)
        return method(iter(to_send.get, None))

    def append(self, stub, *entries):
        stream = self.open(stub.Append, pb.AppendRequest(header=HEADER), batch(*entries))
        self.assertEqual([ack.code for ack in next(stream).acks], [0] * len(entries))

    def end(self, server):
        server.process.send_signal(signal.SIGTERM)
        self.assertEqual(server.process.wait(timeout=30), 0)

    def begin_to_end(self, server):
        server.process.send_signal(signal.SIGTERM)
        while self.ready(server) != 503:
            time.sleep(0.01)

    def ready(self, server):
        """Returns the HTTP status of /readyz."""
        try:
            with urllib.request.urlopen(f"http://{server.admin_address}/readyz", timeout=20) as page:
                return page.status
        except urllib.error.HTTPError as error:
            return error.code

    def test_where_nobody_is_it_ends_at_once(self):
        for store in ("memory", f"rocksdb:{self.folder}/rocksdb"):
            with self.subTest(store):
                self.end(self.serve(f"--store={store}", late=True))

    def test_idle_streams_end_at_once(self):
        server = self.serve(late=True)
        stub = self.stub(server)
        streams = [
            self.open(stub.Append),
            self.open(stub.Append, pb.AppendRequest(header=HEADER)),
            self.open(stub.Append, pb.AppendRequest(header=HEADER), batch(SEAL)),
        ]
        self.assertEqual(next(streams[2]).acks[0].code, 0)
        # Streams are opened in order, so the server has them all.
        stub.GetRun(pb.GetRunRequest(run_id="run"))
        self.end(server)
        for number, stream in enumerate(streams):
            with self.subTest(number):
                self.assertIs(stream.code(), grpc.StatusCode.UNAVAILABLE, stream.details())

    def test_connections_that_nobody_uses_end_at_once(self):
        server = self.serve(late=True)
        host, _, port = server.address.rpartition(":")
        self.addCleanup(socket.create_connection((host, int(port))).close)
        channel = self.enterContext(grpc.insecure_channel(server.address))
        watch = channel.unary_stream(
            "/grpc.health.v1.Health/Watch", request_serializer=bytes, response_deserializer=bytes
        )(b"", timeout=30)
        self.assertEqual(next(watch), b"\x08\x01")  # SERVING
        server.process.send_signal(signal.SIGTERM)
        self.assertEqual(next(watch), b"\x08\x02")  # NOT_SERVING, before it ends
        self.assertEqual(server.process.wait(timeout=30), 0)

    def fetch_of_much(self, stub):
        """A FetchTopK of which one message is read: the rest is more than is sent to whoever doesn't
        read. And how many positions are left."""
        rows = 400_000
        self.append(stub, *entries("long", rows))
        whole = pb.Slice(sequence=pb.SequenceRef(id="long"), length=rows)
        request = pb.FetchTopKRequest(run=pb.RunRef(run_id="run"), slices=[whole], whole_blocks=True)
        fetch = stub.FetchTopK(request)
        return fetch, rows - positions(next(fetch))

    def test_what_is_in_flight_is_finished(self):
        server = self.serve()
        fetch, left = self.fetch_of_much(self.stub(server))
        self.begin_to_end(server)
        time.sleep(0.5)  # longer than idle connections last
        self.assertIsNone(server.process.poll())
        self.assertEqual(sum(map(positions, fetch)), left)
        self.assertEqual(server.process.wait(timeout=30), 0)

    def test_what_outlasts_the_grace_is_cut_off_and_told(self):
        server = self.serve(grace="1s")
        stub = self.stub(server)
        fetch, _ = self.fetch_of_much(stub)
        self.end(server)
        with self.assertRaises(grpc.RpcError) as raised:
            list(fetch)
        self.assertIn(raised.exception.code(), (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED))

    def test_every_block_of_a_worker_that_goes_on_is_acked_and_stored_or_neither(self):
        store = f"--store=rocksdb:{self.folder}/rocksdb"
        server = self.serve(store)
        stub = self.stub(server)
        ended = threading.Event()

        def requests():
            yield pb.AppendRequest(header=HEADER)
            for number in range(1_000_000):
                if ended.is_set():
                    return
                yield batch(*entries(f"s{number}"))

        append = stub.Append(requests())
        acked = 0
        with self.assertRaises(grpc.RpcError) as raised:
            for response in append:
                self.assertEqual([ack.code for ack in response.acks], [0])
                acked += 1
                if acked == 100:
                    server.process.send_signal(signal.SIGTERM)
        ended.set()
        self.assertIs(raised.exception.code(), grpc.StatusCode.UNAVAILABLE)
        self.assertEqual(server.process.wait(timeout=30), 0)
        again = self.stub(self.serve(store))
        for number in range(acked):
            self.assertEqual(again.Evaluate(evaluation(f"s{number}")).totals.missing, 0, number)


if __name__ == "__main__":
    unittest.main()
