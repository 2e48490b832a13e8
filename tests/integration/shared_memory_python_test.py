"""The Python client's shared memory: the same bits as over the wire, and memory that is used
again."""

import functools
import gc
import tempfile
import time
import unittest
import unittest.mock

import grpc
import numpy as np
import torch

import sis
from server.testing.live_server import LiveServer
from sis.servers.single_server import SingleServer
from sis.v1 import ratio_service_pb2 as pb
from tests.integration.same_evaluation import assert_same_evaluation

TOP_K, VOCABULARY = 5, 40
# Of a server of 0.1.0 micro-batches may begin after the first two, and after all but the last.
LENGTHS = {"a": 90, "b": 38, "c": 64, "d": 128, "e": 3}
OUTPUTS = ("decisions", "ratios", "log_ratios", "acceptance_probabilities", "surrogates", "coefficients")
MEBIBYTE = 1 << 20


def log_softmax(generator, rows):
    logits = generator.normal(size=(rows, VOCABULARY))
    return (logits - np.logaddexp.reduce(logits, axis=1, keepdims=True)).astype(np.float32)


class SharedMemoryTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = LiveServer(shared_memory_bytes=8 * MEBIBYTE)
        cls.addClassCleanup(cls.server.close)
        cls.client = sis.Client(cls.server.address, timeout=30)
        cls.addClassCleanup(cls.client.close)
        cls.run_ = cls.client.create_run("run", seed=1, vocabulary_size=VOCABULARY, top_k=TOP_K)
        generator = np.random.default_rng(3)
        with cls.client.append(cls.run_, sampling=sis.Sampling("raw")) as stream:
            for name, length in LENGTHS.items():
                values = log_softmax(generator, length)
                sampled = generator.integers(VOCABULARY, size=length)
                record = sis.canonical(
                    np.broadcast_to(np.arange(VOCABULARY), values.shape),
                    values,
                    sampled,
                    np.take_along_axis(values, sampled[:, None], 1)[:, 0],
                    TOP_K,
                )
                stream.block(name, first_position=0, policy_version=0, **record._asdict())
        cls.records = cls.client.fetch_top_k(cls.run_, list(LENGTHS))
        total = cls.total = len(cls.records)
        cls.log_probs = np.sort(log_softmax(generator, total)[:, :TOP_K], axis=1)[:, ::-1].copy()
        cls.sampled_log_probs = cls.log_probs[:, 1].copy()
        cls.options = sis.EvaluateOptions(
            mask=generator.random(total) < 0.8,
            own_log_probs=-generator.random(total),
            algorithm=sis.Grpo(),
            advantages=generator.normal(size=total),
            sampled_ids=cls.records.sampled_ids,
        )
        cls.draw = 0

    def setUp(self):
        type(self).draw += 1
        self.segment = self.lease(MEBIBYTE)
        self.addCleanup(self.segment.close)

    def lease(self, size):
        """Waits while the server has not seen that leases before have ended."""
        until = time.monotonic() + 60
        while True:
            try:
                return self.client.lease_segment(size)
            except sis.ResourceExhausted:
                if time.monotonic() > until:
                    raise
            time.sleep(0.01)

    def put(self, array):
        """A copy in the segment."""
        copy = self.segment.empty(array.shape, array.dtype)
        copy[...] = array
        return copy

    def evaluate(self, log_probs, sampled_log_probs, records=None, **keywords):
        return self.client.evaluate(
            self.run_,
            records or self.records,
            draw=self.draw,
            log_probs=log_probs,
            sampled_log_probs=sampled_log_probs,
            **keywords,
        )

    def sent(self):
        """The requests that are sent from now on."""
        requests = []
        real = SingleServer.evaluate_all

        def evaluate_all(service, makers, answers):
            requests.extend(pb.EvaluateRequest.FromString(make().serialize()) for make in makers)
            return real(service, makers, answers)

        patch = unittest.mock.patch.object(SingleServer, "evaluate_all", evaluate_all)
        patch.start()
        self.addCleanup(patch.stop)
        return requests

    def test_the_same_answers_as_over_the_wire_however_they_are_cut(self):
        keywords = {"outputs": OUTPUTS, "options": self.options, "prefix_curve": [1, 3]}
        expected = self.evaluate(self.log_probs, self.sampled_log_probs, **keywords)
        self.assertEqual(expected.totals.scored + expected.totals.masked, self.total)
        requests = self.sent()
        for alignment, limit, pieces in ((1, 1 << 30, 1), (1, 1, 5), (64, 1, 4)):
            del requests[:]
            self.segment.alignment = alignment
            with unittest.mock.patch.object(SingleServer, "segment_batch_bytes", limit):
                got = self.evaluate(self.put(self.log_probs), self.put(self.sampled_log_probs), **keywords)
            assert_same_evaluation(self, got, expected)
            self.assertEqual(len(requests), pieces)
            for request in requests:
                self.assertEqual(request.segment, self.segment.name)
                self.assertGreater(request.answers.bytes, 0)
                for array in (request.gathered.log_probs, request.gathered.sampled_log_probs, request.mask,
                              request.own_log_probs, request.advantages):
                    self.assertEqual(len(array), 16)

    def test_every_form(self):
        records, draw = self.records, self.draw
        envelopes, masses = sis.reduce(records, self.log_probs)
        calls = (
            ("evaluate", {"log_probs": self.log_probs, "sampled_log_probs": self.sampled_log_probs}),
            ("evaluate_reduced", {"sampled_log_probs": self.sampled_log_probs, "log_envelopes": envelopes,
                                  "covered_masses": masses}),
        )
        requests = self.sent()
        for name, arrays in calls:
            with self.subTest(name, arrays=list(arrays)):
                call = functools.partial(getattr(self.client, name), self.run_, records, draw=draw)
                expected = call(**arrays, outputs=OUTPUTS[:4])
                placed = {key: self.put(value) for key, value in arrays.items()}
                del requests[:]
                assert_same_evaluation(self, call(**placed, outputs=OUTPUTS[:4]), expected)
                (request,) = requests
                self.assertEqual(request.segment, self.segment.name)
                form = getattr(request, request.WhichOneof("form"))
                sent = [value for field, value in form.ListFields() if field.type == field.TYPE_BYTES]
                self.assertCountEqual(sent, map(self.segment.refer, placed.values()))

    def test_a_gather_of_pytorch_writes_straight_into_it(self):
        source = torch.tensor(log_softmax(np.random.default_rng(5), self.total))
        ids = torch.from_numpy(np.maximum(self.records.ids, 0).astype(np.int64))
        log_probs = torch.from_numpy(self.segment.empty((self.total, TOP_K)))
        torch.gather(source, 1, ids, out=log_probs)
        sampled = torch.from_numpy(self.segment.empty((self.total, 1)))
        torch.gather(source, 1, torch.from_numpy(self.records.sampled_ids.astype(np.int64))[:, None], out=sampled)
        requests = self.sent()
        assert_same_evaluation(self, 
            self.evaluate(log_probs, sampled[:, 0]), self.evaluate(*sis.gather(self.records, source.numpy()))
        )
        self.assertEqual([request.segment for request in requests], [self.segment.name, ""])
        place = requests[0].gathered.log_probs
        self.assertEqual(self.segment.refer(log_probs.numpy()), place)

    def test_rows_that_begin_anywhere_are_read_there_or_copied_for_a_server_of_0_1_0(self):
        some = self.records.select([1, 2])
        rows = slice(LENGTHS["a"], LENGTHS["a"] + len(some))
        expected = self.evaluate(self.log_probs[rows], self.sampled_log_probs[rows], records=some)
        log_probs, sampled = self.put(self.log_probs), self.put(self.sampled_log_probs)
        requests = self.sent()
        places = [self.segment.refer(array[rows]) for array in (log_probs, sampled)]
        for alignment in (1, 64):
            self.segment.alignment = alignment
            assert_same_evaluation(self, self.evaluate(log_probs[rows], sampled[rows], records=some), expected)
            request = requests.pop()
            self.assertEqual(request.segment, self.segment.name)
            sent = [request.gathered.log_probs, request.gathered.sampled_log_probs]
            self.assertEqual([place in places for place in sent], [alignment == 1] * 2)

    def test_the_server_says_how_arrays_are_aligned_and_one_of_0_1_0_does_not(self):
        self.assertEqual(self.segment.alignment, 1)
        real = SingleServer._send

        def without_alignment(service, ask):
            response = real(service, ask)
            response.ClearField("alignment")
            return response

        with unittest.mock.patch.object(SingleServer, "_send", without_alignment), self.lease(4096) as segment:
            self.assertEqual(segment.alignment, 64)
            array = segment.empty(64)
            self.assertIsNone(segment.refer_all([array[1:]]))
            self.assertIsNotNone(segment.refer_all([array[16:]]))
        # What it would be told otherwise.
        with unittest.mock.patch.object(self.segment, "refer", lambda array: b"\x04" * 16):
            with self.assertRaisesRegex(sis.InvalidArgument, "beyond the segment"):
                self.evaluate(self.put(self.log_probs), self.put(self.sampled_log_probs))

    def test_records_come_into_it_as_over_the_wire(self):
        slices = ["e", sis.Slice("a", 7, 100), "none", sis.Slice("none", length=3), "c"]
        expected = self.client.fetch_top_k(self.run_, slices)
        got = self.client.fetch_top_k(self.run_, slices, segment=self.segment, lease_seconds=60)
        for name in ("ids", "log_probs", "sampled_ids", "sampled_log_probs"):
            array = getattr(got, name)
            self.assertEqual(array.tobytes(), getattr(expected, name).tobytes(), name)
            self.assertEqual(array.shape, getattr(expected, name).shape)
            self.assertTrue(self.segment.holds(array), name)
            self.assertEqual(array.__array_interface__["data"][0] % 64, 0)
        self.assertEqual((got.slices, got.missing), (expected.slices, expected.missing))
        self.assertGreater(got.lease_id, 0)
        self.client.release(self.run_, lease_ids=[got.lease_id])
        for names in (("ids", "sampled_ids"), ("log_probs",), ("sampled_log_probs",)):
            some = self.client.fetch_top_k(self.run_, slices, segment=self.segment, arrays=names)
            self.assertEqual(set(some.arrays), set(names))
            for name, array in some.arrays.items():
                self.assertEqual(array.tobytes(), getattr(expected, name).tobytes(), name)
                self.assertEqual(array.shape, getattr(expected, name).shape)
                self.assertTrue(self.segment.holds(array), name)

    def test_memory_is_used_again_when_arrays_are_gone(self):
        # The records stand behind the first array, and what is left behind them.
        first = self.segment.empty(1000)
        records = self.client.fetch_top_k(self.run_, list(LENGTHS), segment=self.segment)
        ids = records.ids.copy()
        with self.assertRaisesRegex(MemoryError, "no 1048576 in a row"):
            self.segment.empty(MEBIBYTE, np.uint8)
        rest = self.segment.empty((MEBIBYTE - 64 * 1024) // 4)
        rest[...] = 1
        self.assertEqual(records.ids.tobytes(), ids.tobytes())
        with self.assertRaises(MemoryError):
            self.segment.empty(rest.shape)
        view = torch.from_numpy(rest[5:].reshape(-1, 1))
        del rest
        gc.collect()
        with self.assertRaises(MemoryError):  # the view holds it
            self.segment.empty(view.numel())
        del view, records, first
        gc.collect()
        self.segment.empty(MEBIBYTE, np.uint8)

    def test_answers_give_their_room_back(self):
        log_probs, sampled = self.put(self.log_probs), self.put(self.sampled_log_probs)
        for _ in range(400):  # all of them together would not fit
            self.evaluate(log_probs, sampled, outputs=OUTPUTS[:4])
        with self.assertRaises(sis.InvalidArgument):
            self.evaluate(log_probs + 9, sampled)
        sampled[3] = np.nan
        for _ in range(400):
            with self.assertRaisesRegex(sis.InvalidArgument, "sampled_log_probs"):
                self.evaluate(log_probs, sampled, outputs=OUTPUTS[:4])
        sampled[3] = -3
        requests = self.sent()
        self.evaluate(log_probs, sampled)
        self.assertGreater(requests[0].answers.bytes, 0)

    def test_without_room_answers_come_in_messages(self):
        log_probs, sampled = self.put(self.log_probs), self.put(self.sampled_log_probs)
        held = [self.segment.empty(size, np.uint8) for size in (1 << shift for shift in range(19, 5, -1))
                for _ in range(2) if self.has_room(size)]
        requests = self.sent()
        got = self.evaluate(log_probs, sampled, outputs=OUTPUTS[:4])
        self.assertFalse(requests[0].HasField("answers"))
        assert_same_evaluation(self, got, self.evaluate(self.log_probs, self.sampled_log_probs, outputs=OUTPUTS[:4]))
        self.assertTrue(held)

    def has_room(self, size):
        try:
            self.segment.empty(size, np.uint8)
        except MemoryError:
            return False
        return True

    def test_a_segment_too_small_for_the_records_says_what_they_need(self):
        with self.lease(4096) as small:
            with self.assertRaisesRegex(sis.InvalidArgument, r"answers.bytes: 4096, but \d+ are needed"):
                self.client.fetch_top_k(self.run_, list(LENGTHS), segment=small)
            self.assertEqual(small.empty(4096, np.uint8).nbytes, 4096)

    def test_a_lease_that_has_ended_is_a_clear_error_and_its_arrays_stay(self):
        log_probs, sampled = self.put(self.log_probs), self.put(self.sampled_log_probs)
        self.evaluate(log_probs, sampled)
        self.segment.close()
        self.assertEqual(log_probs.tobytes(), self.log_probs.tobytes())
        for call in (
            lambda: self.evaluate(log_probs, sampled),
            lambda: self.client.fetch_top_k(self.run_, ["a"], segment=self.segment),
        ):
            with self.assertRaisesRegex(sis.NotFound, f"'{self.segment.name}': its lease has ended"):
                call()
        self.evaluate(log_probs.copy(), sampled.copy())
        del log_probs, sampled
        with self.assertRaisesRegex(sis.NotFound, "its lease has ended"):
            self.segment.empty(1)

    def test_it_leaves_nothing_behind(self):
        with open("/proc/self/maps", encoding="ascii") as maps:
            mapped = [line for line in maps if "/dev/shm/sis-" in line]
        self.assertTrue(mapped)
        for line in mapped:
            self.assertIn("(deleted)", line)
        for _ in range(20):  # together they would be more than the server has
            with self.lease(6 * MEBIBYTE) as segment:
                segment.empty(MEBIBYTE, np.uint8)[...] = 1

    def test_a_lease_that_is_not_granted(self):
        with self.assertRaises(sis.ResourceExhausted):
            self.client.lease_segment(9 * MEBIBYTE)
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        server = LiveServer(listen=f"127.0.0.1:0,unix:{folder.name}/socket", shared_memory_bytes=MEBIBYTE)
        self.addCleanup(server.close)
        network, _, _ = server.address.partition(",")
        with sis.Client(network) as client:
            with self.assertRaises(sis.Error) as raised:
                client.lease_segment(MEBIBYTE)
            self.assertEqual(raised.exception.code, grpc.StatusCode.PERMISSION_DENIED)
        with sis.Client([self.server.address, network]) as client:
            with self.assertRaisesRegex(ValueError, "one server"):
                client.lease_segment(MEBIBYTE)


if __name__ == "__main__":
    unittest.main()
