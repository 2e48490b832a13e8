import threading
import time
import unittest
from concurrent import futures

import grpc
import numpy as np

import fake_service
import sis
from sis._append_streams import server_append as append_module

SAMPLING = sis.Sampling("processed", temperature=0.7, top_p=0.9)
TOP_K = 4
# Bytes per position in a block of fixed16.
POSITION_BYTES = 4 * TOP_K + 2 + 7


class AppendTest(fake_service.ServiceTest):
    def setUp(self):
        super().setUp()
        self.run_ = self.client.create_run("run", seed=1, vocabulary_size=32, top_k=TOP_K)

    def append(self, **options):
        return self.client.append(self.run_, sampling=SAMPLING, worker="worker-0", **options)

    def block(self, stream, sequence="s", first=0, rows=2, **options):
        arrays = fake_service.block_arrays(rows, TOP_K, seed=first)
        stream.block(sequence, first_position=first, policy_version=3, **arrays, **options)

    def stored(self, sequence="s", attempt=0):
        return sorted(self.service.sequences[("run", sequence, attempt)].rows)

    def entries(self):
        return [entry for batch in self.service.batches for entry in batch.entries]

    def test_header_says_who_and_how(self):
        with self.append():
            pass
        (header,) = self.service.headers
        self.assertEqual((header.run.run_id, header.run.incarnation), ("run", 1))
        self.assertEqual((header.worker, header.vocabulary_size), ("worker-0", 32))
        self.assertEqual(header.sampling.log_probs, sis._client.pb.Sampling.LOG_PROBS_PROCESSED)
        self.assertEqual((header.sampling.temperature, header.sampling.top_p), (0.7, 0.9))
        self.assertFalse(header.sampling.HasField("min_p"))

    def test_small_calls_travel_together_and_flush_returns_committed_lengths(self):
        with self.append() as stream:
            for first in range(0, 20, 2):
                self.block(stream, first=first)
            self.block(stream, "other", rows=3, attempt=1)
            stream.seal("s", length=20)
            self.assertEqual(stream.flush(), {("s", 0): 20, ("other", 1): 3})
            self.assertEqual(len(self.service.batches), 1)
            self.assertEqual(stream.flush(), {})
        self.assertEqual(self.service.sequences[("run", "s", 0)].sealed, 20)

    def test_a_slow_server_holds_the_caller_back(self):
        let_go = threading.Event()
        self.addCleanup(let_go.set)
        self.service.before_batch = lambda batch: let_go.wait(20)
        rows = append_module.BATCH_BYTES // POSITION_BYTES + 1
        sent = []

        def work():
            with self.append() as stream:
                for index in range(append_module.MAX_IN_FLIGHT + 5):
                    self.block(stream, first=index * rows, rows=rows)
                    sent.append(index)

        worker = threading.Thread(target=work)
        worker.start()
        while len(sent) < append_module.MAX_IN_FLIGHT:
            time.sleep(0.01)
        time.sleep(0.2)
        self.assertEqual(len(sent), append_module.MAX_IN_FLIGHT)
        let_go.set()
        worker.join()
        self.assertEqual(len(self.stored()), rows * (append_module.MAX_IN_FLIGHT + 5))

    def test_refusals_are_listed_and_the_others_stored(self):
        with self.append() as stream:
            self.block(stream, "a")
            stream.seal("a", length=2)
            self.block(stream, "a", first=2)
            stream.gap("a", first_position=2, length=3)
            self.block(stream, "b")
            stream.seal("b", length=1)
            with self.assertRaises(sis.AppendError) as raised:
                stream.flush()
            self.assertEqual(
                [(r.sequence, r.entry, r.code) for r in raised.exception.refused],
                [
                    ("a", "block [2, 4)", grpc.StatusCode.FAILED_PRECONDITION),
                    ("a", "gap [2, 5)", grpc.StatusCode.FAILED_PRECONDITION),
                    ("b", "seal at 1", grpc.StatusCode.FAILED_PRECONDITION),
                ],
            )
            self.assertEqual(raised.exception.code, grpc.StatusCode.FAILED_PRECONDITION)
            self.assertIn("sealed at 2", str(raised.exception))
            self.assertEqual(stream.flush(), {})
        self.assertEqual((self.stored("a"), self.stored("b")), ([0, 1], [0, 1]))

    def test_while_there_is_no_room_nothing_else_is_sent(self):
        refused = []

        def refuse(entry):
            if not refused:
                refused.append(entry)
                return fake_service.RESOURCE_EXHAUSTED, "no room", 1.0
            return None

        self.service.refuse = refuse
        with self.append() as stream:
            stream.block("first", first_position=0, policy_version=3, **fake_service.block_arrays(4000, TOP_K))
            stream.append_many([])
            while not stream._waiting_for_room:
                time.sleep(0.01)
            self.block(stream, "second", rows=4000)
        names = [entry.sequence.id for entry in self.entries()]
        self.assertEqual(names, ["first", "first", "second"])

    def test_a_wrong_header_shows_in_a_flush_without_entries(self):
        for end in ("flush", "close"):
            stream = self.client.append(sis.Run("run", 7, self.run_.config), sampling=SAMPLING)
            self.addCleanup(stream.abandon)
            with self.assertRaises(sis.FailedPrecondition):
                getattr(stream, end)()
        stream = self.append()
        self.addCleanup(stream.abandon)
        self.assertEqual((stream.flush(), stream.flush()), ({}, {}))
        # One question is enough.
        self.assertEqual([len(batch.entries) for batch in self.service.batches], [0])

    def test_too_few_acks_are_an_error(self):
        self.service.apply = lambda run, entry: fake_service.pb.Ack()
        original = self.service.Append

        def one_ack_less(requests, context):
            for response in original(requests, context):
                del response.acks[-1]
                yield response

        # The server holds the bound method of the servicer; a new server holds this one.
        self.service.Append = one_ack_less
        _, address = self.serve(self.service)
        with sis.Client(address) as client, self.assertRaisesRegex(sis.Error, "0 acks for a batch of 1"):
            with client.append(self.run_, sampling=SAMPLING) as stream:
                self.block(stream)

    def test_an_exception_in_the_block_is_not_hidden(self):
        with self.assertRaises(KeyError):
            with self.append() as stream:
                self.block(stream)
                raise KeyError("engine")
        with self.assertRaisesRegex(ValueError, "closed"):
            self.block(stream)

    def test_threads_share_a_stream(self):
        with self.append() as stream:

            def work(name):
                for first in range(0, 3000, 30):
                    self.block(stream, name, first=first, rows=30)
                stream.flush()

            with futures.ThreadPoolExecutor(4) as threads:
                list(threads.map(work, (f"s{i}" for i in range(4))))
        for i in range(4):
            self.assertEqual(self.stored(f"s{i}"), list(range(3000)))

    def test_shapes_types_and_values_are_checked_before_anything_is_sent(self):
        good = fake_service.block_arrays(2, TOP_K)
        wrong = {
            "sampled_log_probs": (np.zeros(3), r"sampled_log_probs has shape \[3\], must be \[2\]"),
            "top_k_ids": (np.zeros((2, 5), int), r"top_k_ids has shape \[2, 5\], must be \[2, 4\]"),
            "top_k_log_probs": (np.zeros((4, 2)), r"top_k_log_probs has shape \[4, 2\]"),
            "sampled_ids": (np.array([0.5, 1.5]), "sampled_ids has dtype float64, must be integers"),
        }
        of_values = {
            "sampled_ids": (np.array([1, 32]), r"sampled_ids at position 1: 32 is not in \[0, 32\)"),
            "top_k_log_probs": (good["top_k_log_probs"][:, ::-1], "top_k_log_probs at position 0, slot 1: .* is above"),
        }
        with self.append() as stream:
            for name, (value, message) in [*wrong.items(), *of_values.items()]:
                with self.assertRaisesRegex(ValueError, message):
                    stream.block("s", first_position=0, policy_version=0, **{**good, name: value})
            with self.assertRaisesRegex(ValueError, "do not fit 32 bits"):
                big = {**good, "sampled_ids": np.array([1, 1 << 32])}
                stream.block("s", first_position=0, policy_version=0, **big)
        self.assertEqual(self.entries(), [])


if __name__ == "__main__":
    unittest.main()
