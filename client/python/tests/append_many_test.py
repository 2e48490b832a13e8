"""Many entries in one call: their results, and their stream."""

import random
import threading
import time
import unittest
import unittest.mock
from concurrent import futures

import grpc

import fake_service
import sis
from sis._append_streams import server_append as append_module

SAMPLING = sis.Sampling("processed", temperature=0.7)
TOP_K = 4
# Bytes per position in a block of fixed16.
POSITION_BYTES = 4 * TOP_K + 2 + 7


def block(sequence="s", first=0, rows=2, seed=0, attempt=0):
    return sis.Block(sequence, first, 3, attempt=attempt, **fake_service.block_arrays(rows, TOP_K, seed))


def one_by_one(stream, entry):
    values = entry._asdict()
    if isinstance(entry, sis.Block):
        stream.block(values.pop("sequence"), **values)
    else:
        stream.seal(entry.sequence, length=entry.length, attempt=entry.attempt)


class AppendManyTest(fake_service.ServiceTest):
    def setUp(self):
        super().setUp()
        self.run_ = self.create_run()

    def create_run(self, name="run"):
        return self.client.create_run(name, seed=1, vocabulary_size=32, top_k=TOP_K)

    def append(self, *entries, run=None, **options):
        return sis.append_many(self.client, run or self.run_, entries, sampling=SAMPLING, worker="w", **options)

    def stored(self, sequence="s", run="run"):
        return sorted(self.service.sequences[(run, sequence, 0)].rows)

    # Results of the entries.

    def entries_at_random(self, seed):
        """Some are refused: they come back, differ, or are sealed elsewhere."""
        generator = random.Random(seed)
        entries = []
        for _ in range(60):
            name, attempt = generator.choice("abc"), generator.choice((0, 0, 0, 1))
            if generator.random() < 0.9:
                first = generator.choice((0, 2, 4, 6, 8))
                entries.append(block(name, first, 2, seed=first + (generator.random() < 0.1), attempt=attempt))
            else:
                entries.append(sis.Seal(name, generator.choice((6, 8, 10)), attempt))
        return entries

    def test_many_are_as_one_by_one(self):
        refusals = 0
        for seed in range(10):
            entries = self.entries_at_random(seed)
            outcomes = []
            # Ends the streams of the one before: the service has threads for eight.
            self.client.close()
            self.client = sis.Client(self.address, timeout=20)
            for way in ("one by one", "in one call", "over a stream"):
                run = self.create_run(f"{way[:3]}-{seed}")
                refused = ()
                stream = self.client.append(run, sampling=SAMPLING, worker="w")
                try:
                    if way == "in one call":
                        committed = self.append(*entries, run=run)
                    elif way == "over a stream":
                        stream.append_many(entries)
                        committed = stream.flush()
                    else:
                        for entry in entries:
                            one_by_one(stream, entry)
                        committed = stream.flush()
                except sis.AppendError as error:
                    refused, committed = error.refused, None
                stream.close()
                held = {
                    key[1:]: (sequence.rows, sequence.sealed)
                    for key, sequence in self.service.sequences.items()
                    if key[0] == run.id
                }
                outcomes.append((held, refused, committed))
            self.assertEqual(outcomes[0], outcomes[1])
            self.assertEqual(outcomes[0], outcomes[2])
            refusals += len(outcomes[0][1])
        self.assertGreater(refusals, 20)

    def test_messages_have_so_many_bytes_and_entries(self):
        limit = 100_000
        rows = limit // POSITION_BYTES // 3
        with unittest.mock.patch.object(append_module, "MESSAGE_BYTES", limit):
            self.append(*(block(first=index * rows, rows=rows) for index in range(9)))
        sizes = [batch.ByteSize() for batch in self.service.batches]
        self.assertGreaterEqual(len(sizes), 3)
        self.assertLess(max(sizes), 2 * limit)
        del self.service.batches[:]
        self.append(*(sis.Seal(f"s{index}", 0) for index in range(2 * append_module.BATCH_ENTRIES + 1)))
        self.assertEqual(
            [len(batch.entries) for batch in self.service.batches],
            [append_module.BATCH_ENTRIES, append_module.BATCH_ENTRIES, 1],
        )

    def test_calls_side_by_side_hear_of_their_own_entries(self):
        self.service.before_batch = lambda batch: time.sleep(0.01)
        outcomes = {}

        def work(name):
            for turn in range(5):
                entries = [block(name, first=2 * turn), sis.Seal(name + "sealed", turn)]
                try:
                    outcomes[name, turn] = self.append(*entries)
                except sis.AppendError as error:
                    outcomes[name, turn] = [(r.sequence, r.entry) for r in error.refused]

        with futures.ThreadPoolExecutor(4) as threads:
            list(threads.map(work, (f"s{i}" for i in range(4))))
        for i in range(4):
            self.assertEqual(self.stored(f"s{i}"), list(range(10)))
            self.assertEqual(outcomes[f"s{i}", 0], {(f"s{i}", 0): 2, (f"s{i}sealed", 0): 0})
            for turn in range(1, 5):
                self.assertEqual(outcomes[f"s{i}", turn], [(f"s{i}sealed", f"seal at {turn}")])

    def test_arrays_are_the_callers_again_when_a_stream_has_taken_them(self):
        # Also those of entries that are sent again later.
        refused = []

        def refuse(entry):
            if entry.sequence.id == "b" and not refused:
                refused.append(entry)
                return fake_service.RESOURCE_EXHAUSTED, "no room", 0.05
            return None

        self.service.refuse = refuse
        entries = [block(name, seed=index) for index, name in enumerate("abc")]
        with self.client.append(self.run_, sampling=SAMPLING) as stream:
            stream.append_many(entries)
            for entry in entries:
                for array in entry[3:7]:
                    array[...] = 7
        self.assertEqual(len(refused), 1)
        self.append(*(block(name, seed=index) for index, name in enumerate("abc")))

    def test_no_room_is_tried_again_and_then_refused(self):
        refused = []

        def refuse(entry):
            if entry.WhichOneof("entry") == "block" and entry.sequence.id == "b":
                refused.append(time.monotonic())
                return fake_service.RESOURCE_EXHAUSTED, "no room", 0.05
            return None

        self.service.refuse = refuse
        with self.assertRaises(sis.AppendError) as raised:
            self.append(block("a"), block("b"), block("c"), retry_timeout=2)
        self.assertEqual([r.sequence for r in raised.exception.refused], ["b"])
        self.assertGreater(len(refused), 2)
        self.assertGreaterEqual(refused[1] - refused[0], 0.05)
        self.assertEqual((self.stored("a"), self.stored("c")), ([0, 1], [0, 1]))

    # The stream.

    def test_a_client_that_is_closed_cancels_its_calls(self):
        self.append(block())
        let_go, waits = threading.Event(), threading.Event()
        self.addCleanup(let_go.set)
        self.service.before_batch = lambda batch: waits.set() or let_go.wait(20)
        with futures.ThreadPoolExecutor() as threads:
            call = threads.submit(self.append, block(first=2))
            self.assertTrue(waits.wait(20))
            self.client.close()
            with self.assertRaises(sis.Error) as raised:
                call.result()
        self.assertEqual(raised.exception.code, grpc.StatusCode.CANCELLED)

    def test_a_flush_ends_with_its_stream(self):
        let_go, waits = threading.Event(), threading.Event()
        self.addCleanup(let_go.set)
        self.service.before_batch = lambda batch: waits.set() or let_go.wait(20)
        client = self.enterContext(sis.Client(self.address, timeout=None))
        with futures.ThreadPoolExecutor() as threads, client.append(self.run_, sampling=SAMPLING) as stream:
            stream.seal("a", length=0)
            flush = threads.submit(stream.flush)
            self.assertTrue(waits.wait(20))
            stream.abandon()
            with self.assertRaisesRegex(ValueError, "closed"):
                flush.result(10)

    def test_a_stream_that_breaks_is_the_calls_error(self):
        self.service.answer = lambda context: context.abort(grpc.StatusCode.UNAVAILABLE, "away")
        with self.assertRaisesRegex(sis.Unavailable, "away"):
            self.append(block())
        self.assertEqual(self.service.sequences, {})

    def test_no_ack_in_time_is_an_error_at_once(self):
        self.append(block())
        let_go = threading.Event()
        self.addCleanup(let_go.set)
        self.service.before_batch = lambda batch: let_go.wait(20)
        self.client._service._timeout = 0.2
        with self.assertRaises(sis.DeadlineExceeded):
            self.append(block(first=2))
        let_go.set()
        self.client._service._timeout = 20
        self.append(block(first=2))
        self.assertEqual(self.stored(), [0, 1, 2, 3])

    def test_a_run_that_was_superseded_is_an_error(self):
        self.append(block())
        new = self.client.create_run("run", seed=1, vocabulary_size=32, top_k=TOP_K, incarnation=2)
        # With nothing in memory, at the same address.
        self.server.stop(None).wait()
        self.service = fake_service.FakeService()
        self.start_again()
        self.client.create_run("run", seed=1, vocabulary_size=32, top_k=TOP_K, incarnation=2)
        with self.assertRaises(sis.FailedPrecondition):
            self.append(block())
        self.append(block(), run=new)


if __name__ == "__main__":
    unittest.main()
