"""The resources of calls in flight are bounded: memory of messages, even of messages that never end, and threads."""

import concurrent.futures
import os
import threading
import unittest

import grpc
import numpy as np

import sis
from server.testing.process_status import process_status
from server.testing.relay import Relay
from server.testing.until import until
from tests.integration import large_sequences
from tests.integration.live_server import ServersTest

MESSAGE_BYTES = 16 << 20
BEGUN_BYTES = 15 << 20
CALLS = 20
LIMIT_BYTES = 64 << 20
LIST_RUNS = "/sis.v1.RatioService/ListRuns"
EVALUATE = "/sis.v1.RatioService/Evaluate"
# How calls end for which gRPC has no memory.
REFUSED = (sis.Unavailable, sis.ResourceExhausted)
OPTIONS = [("grpc.max_send_message_length", -1), ("grpc.use_local_subchannel_pool", 1)]


class UnfinishedMessagesTest(ServersTest):
    def serve(self, grpc_memory_bytes, cache_bytes=16 << 20):
        flags = (f"--max_message_bytes={MESSAGE_BYTES}", f"--grpc_memory_bytes={grpc_memory_bytes}")
        return super().serve(*flags, cache_bytes=cache_bytes)

    def peak(self, server):
        return process_status(server.process, "VmHWM") << 10

    def resident(self, server):
        return process_status(server.process, "VmRSS") << 10

    def begin(self, server):
        """The relay, and calls of which each sends BEGUN_BYTES of its message. Ended by clean-up."""
        relay = Relay(server.address, most=BEGUN_BYTES)
        self.addCleanup(relay.close)
        channels = [grpc.insecure_channel(relay.address, OPTIONS) for _ in range(CALLS)]
        for channel in channels:
            self.addCleanup(channel.close)
            channel.unary_unary(LIST_RUNS)(b"")
        # Afterwards: where memory is short gRPC closes connections, which would fail this call.
        message = bytes(MESSAGE_BYTES - 100)
        return relay, [channel.unary_unary(EVALUATE).future(message) for channel in channels]

    def test_what_was_held_is_given_back(self):
        # Side by side, as jemalloc gives free memory back by and by.
        came_back = [self.unfinished_messages_that_end(), self.blocks_that_are_acked()]
        for wait in came_back:
            wait()

    def unfinished_messages_that_end(self):
        """Below the limit they hold all that they send, until they end. Returns what waits for that."""
        server = self.serve(grpc_memory_bytes=1 << 30)
        before = self.peak(server)
        relay, calls = self.begin(server)
        for _ in calls:
            self.assertTrue(relay.stalled.acquire(timeout=60))
        self.assertFalse(any(call.done() for call in calls))
        self.assertGreater(self.peak(server) - before, 0.8 * CALLS * BEGUN_BYTES)
        relay.close()
        bound = 0.3 * CALLS * BEGUN_BYTES
        return lambda: until(lambda: self.resident(server) - before, lambda size: size < bound, seconds=150)

    def blocks_that_are_acked(self):
        """Streams of Append that wait hold nothing of what they have sent. Returns what waits for that."""
        server = self.serve(grpc_memory_bytes=1 << 30, cache_bytes=256 << 20)
        before = self.resident(server)
        top_k, positions, workers = 50, 30_000, 8
        log_probs = np.tile(-np.arange(5, 5 + top_k, dtype=np.float32), (positions, 1))
        ids = np.tile(np.arange(top_k, dtype=np.int32), (positions, 1))
        client = self.connect(server)
        run = client.create_run("run", seed=1, vocabulary_size=64, top_k=top_k)
        streams = [client.append(run, sampling=sis.Sampling("raw")) for _ in range(workers)]
        for number, stream in enumerate(streams):
            self.addCleanup(stream.close)
            stream.block(
                str(number), first_position=0, policy_version=0, sampled_ids=ids[:, 0],
                sampled_log_probs=log_probs[:, 0], top_k_ids=ids, top_k_log_probs=log_probs,
            )  # fmt: skip
            stream.flush()
        bound = client.get_run("run").bytes + 0.4 * workers * (ids.nbytes + log_probs.nbytes)
        return lambda: until(lambda: self.resident(server) - before, lambda size: size < bound, seconds=150)

    def test_beyond_it_they_are_ended_and_others_are_served(self):
        server = self.serve(grpc_memory_bytes=LIMIT_BYTES)
        before = self.peak(server)
        relay, calls = self.begin(server)
        client = self.connect(server)

        def is_answered():
            """Not by a connection that is among those that are closed."""
            try:
                client.list_runs()
            except REFUSED:
                return False
            return True

        def calls_that_go_on():
            until(is_answered)
            return sum(not call.done() for call in calls)

        # Four fit. gRPC slows down those that it leaves, so more go on, each with a part of what it sends:
        # how many depends on how fast all are.
        until(calls_that_go_on, lambda number: number < CALLS)
        for call in calls:
            if call.done():
                self.assertIn(call.code(), (grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.UNAVAILABLE))
        self.assertLess(self.peak(server) - before, 3 * LIMIT_BYTES)
        relay.close()
        with grpc.insecure_channel(server.address, OPTIONS) as channel:
            evaluate = channel.unary_unary(EVALUATE)
            code = lambda: evaluate.future(bytes(MESSAGE_BYTES - 100)).code()
            # gRPC has room for zeros; protobuf can't parse them.
            until(code, lambda code: code == grpc.StatusCode.UNIMPLEMENTED)


class ShortMemoryTest(ServersTest):
    """A server whose gRPC memory is too small for the messages of a few clients."""

    CLIENTS, SEQUENCES = 16, 4

    def setUp(self):
        self.server = self.serve(f"--max_message_bytes={1 << 20}", f"--grpc_memory_bytes={2 << 20}")
        with sis.Client(self.server.address) as client:
            client.create_run("run", **large_sequences.CONFIG)

    def gets_through(self, work, number):
        try:
            with sis.Client(self.server.address, timeout=60) as client:
                work(client, client.get_run("run").run, range(number, number + self.SEQUENCES))
        except REFUSED:
            return False
        return True

    def evaluate(self, client, run, numbers):
        numbers = numbers[:2]  # the most that fit a message
        log_probs = large_sequences.recorded(numbers[0]).top_k_log_probs
        log_probs = np.tile(log_probs, (len(numbers), 1))
        slices = [sis.Slice(large_sequences.name(i), length=large_sequences.POSITIONS) for i in numbers]
        client.evaluate(run, slices, draw=0, log_probs=log_probs, sampled_log_probs=log_probs[:, 0].copy())

    def check_that_it_goes_on(self, work):
        enough = threading.Event()

        def repeat(number):
            while not enough.is_set():
                if not self.gets_through(work, number):
                    enough.set()

        with concurrent.futures.ThreadPoolExecutor(self.CLIENTS) as clients:
            repeated = [clients.submit(repeat, i * self.SEQUENCES) for i in range(self.CLIENTS)]
            came = enough.wait(timeout=100)
            enough.set()
        self.assertTrue(came)
        for client in repeated:
            client.result()
        self.assertIsNone(self.server.process.poll())
        until(lambda: self.gets_through(work, 0))

    def test_who_appends_is_refused_and_the_server_goes_on(self):
        self.check_that_it_goes_on(large_sequences.append)

    def test_who_evaluates_is_refused_and_the_server_goes_on(self):
        self.check_that_it_goes_on(self.evaluate)


class ThreadsTest(ServersTest):
    def test_a_call_takes_no_thread(self):
        server = self.serve(cache_bytes=16 << 20)
        before = most = process_status(server.process, "Threads")
        calls = []
        for _ in range(32):
            channel = self.enterContext(grpc.insecure_channel(server.address, OPTIONS))
            # A stream that says nothing, and calls that are answered.
            channel.stream_stream("/sis.v1.RatioService/Append")(iter(threading.Event().wait, None))
            list_runs = channel.unary_unary("/sis.v1.RatioService/ListRuns")
            calls += [list_runs.future(b"") for _ in range(60)]
        while not all(call.done() for call in calls):
            most = max(most, process_status(server.process, "Threads"))
        self.assertEqual({call.code() for call in calls}, {grpc.StatusCode.OK})
        # gRPC has a few per core for all calls together.
        self.assertLess(most - before, 8 + 4 * os.cpu_count())


if __name__ == "__main__":
    unittest.main()
