"""Records that are written where the server reads them are those that travel, byte for byte; and
none is lost when there is no room, no server, or no lease any more."""

import collections
import os
import signal
import tempfile
import time
import types
import unittest
import unittest.mock

import numpy as np
from in_a_fork import skip_unless_grpc_lets_fork
from server.testing.live_server import LiveServer

import sis
from sis import owner, ragged, record_memory
from sis.append_streams import server_append
from sis.engines import Columns, Recorder
from sis.engines.adapter import Adapter

VOCABULARY, TOP_K, COLUMNS = 300, 5, 7
SHARED = 8 << 20


class Engine(Adapter):
    """Its outputs are Columns. Positions whose token is 7 have no log-prob; a few rows are short."""

    sampling = sis.Sampling("processed")
    cumulative = False

    def length(self, output):
        return len(output.columns.sampled_ids)

    def ended(self, output):
        return output.ended

    def columns(self, pieces):
        parts = [[array[piece.start : piece.stop] for array in piece.output.columns[:4]] for piece in pieces]
        made = Columns(*map(np.concatenate, zip(*parts)), sampled_column="first")
        own = np.where(made.sampled_ids == 7, np.float32(np.nan), made.sampled_log_probs)
        return made._replace(sampled_log_probs=own)


def columns(positions, random):
    logits = random.standard_normal((positions, VOCABULARY))
    log_probs = (logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))).astype(np.float32)
    sampled = random.integers(0, VOCABULARY, positions).astype(np.int32)
    best = np.argsort(-log_probs, axis=1)[:, : COLUMNS - 1]
    ids = np.concatenate([sampled[:, None], best], axis=1).astype(np.int32)
    values = np.take_along_axis(log_probs, ids, axis=1)
    ids[::11, 4:] = -1
    return Columns(ids, values, sampled, values[:, 0], "first")


def output(positions, random, ended=None):
    return types.SimpleNamespace(columns=columns(positions, random), ended=ended)


def add_some(recorder, seed=1):
    """Of several lengths, versions and fates. The names."""
    random = np.random.default_rng(seed)
    lengths = (1, 15, 16, 17, 130, 1000)
    for index, positions in enumerate(lengths):
        recorder.add(f"whole{index}", output(positions, random, "finished"))
    for step in range(40):
        recorder.add_many([(name, output(1, random)) for name in ("a", "b")])
        if step == 20:
            recorder.policy_version = 1
    recorder.add("b", output(50, random, "finished"))
    recorder.add("a", output(2, random, "aborted"))
    return [*(f"whole{index}" for index in range(len(lengths))), "a", "b"]


class InPlaceTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.listen = f"unix:{folder.name}/socket"
        # How many entries with arrays were sent: in a segment, and in messages.
        self.sent = collections.Counter()
        made = server_append.encoded_entries.request

        def request(batch, segment):
            self.sent["in place" if segment else "copied"] += sum(entry.kind == "block" for entry in batch)
            return made(batch, segment)

        patch = unittest.mock.patch.object(server_append.encoded_entries, "request", request)
        patch.start()
        self.addCleanup(patch.stop)

    def start(self, *, shared=SHARED):
        self.server = LiveServer(listen=f"127.0.0.1:0,{self.listen}", shared_memory_bytes=shared)
        self.addCleanup(self.server.kill)
        self.tcp = next(one for one in self.server.address.split(",") if not one.startswith("unix:"))

    def client(self, address=None, **options):
        client = sis.Client(address or self.listen, **options)
        self.addCleanup(client.close)
        return client

    def run_of(self, client, name="r"):
        return client.create_run(
            name, seed=1, vocabulary_size=VOCABULARY, top_k=TOP_K, log_prob_encoding="float32"
        )

    def recorder(self, client, name="r", **options):
        recorder = Recorder(client, self.run_of(client, name), Engine(), **{"interval": 60, **options})
        self.addCleanup(recorder.abandon)
        return recorder

    def held(self, client, name, sequences):
        records = client.fetch_top_k(self.run_of(client, name), sequences)
        arrays = (records.ids, records.log_probs, records.sampled_ids, records.sampled_log_probs, records.present)
        return [array.tobytes() for array in arrays] + [list(records.missing)]

    def assert_same_as_copied(self, client, names, seed=1):
        """As the run "r" holds."""
        copying = self.client(self.tcp)
        with self.recorder(copying, f"copied{seed}") as recorder:
            add_some(recorder, seed)
        self.assertEqual(self.held(copying, "r", names), self.held(copying, f"copied{seed}", names))

    def test_what_is_written_in_place_is_what_is_copied(self):
        self.start()
        client = self.client()
        with self.recorder(client) as recorder:
            names = add_some(recorder)
        self.assertGreater(self.sent["in place"], len(names))
        self.assertEqual(self.sent["copied"], 0)
        self.assert_same_as_copied(client, names)
        self.assertGreater(self.sent["copied"], 0)

    def test_what_is_left_out_of_what_travels_is_what_the_server_cuts(self):
        self.start()
        client = self.client()
        create = self.run_of

        def run_with_mass(client, name="r"):
            config = create(client, f"{name}-whole").config
            return client.create_run(name, **{**vars(config), "mass": 0.08})

        with (
            unittest.mock.patch.object(self, "run_of", run_with_mass),
            unittest.mock.patch.object(ragged, "FEWEST_SLOTS", 1),
        ):  # fmt: skip
            with self.recorder(client) as recorder:
                names = add_some(recorder)
            self.assertEqual(self.sent["copied"], 0)
            narrow = []
            cut = ragged.cut
            with unittest.mock.patch.object(ragged, "cut", lambda *given: narrow.append(cut(*given)) or narrow[-1]):
                self.assert_same_as_copied(client, names)
            self.assertTrue(narrow and all(len(arrays) == 5 for arrays in narrow))
            self.assertEqual(len(narrow[0][2]), narrow[0][4].sum())
        self.assertGreater(self.sent["copied"], len(names))

    def test_memory_is_used_again(self):
        """But not before the server has read it."""
        self.start()
        rounds = range(20)
        with unittest.mock.patch.object(record_memory, "SEGMENT_BYTES", [1 << 20]):
            for client, name in ((self.client(), "r"), (self.client(self.tcp), "copied")):
                with self.recorder(client, name) as recorder:
                    for seed in rounds:
                        names = add_some(recorder, seed)
                        recorder.flush()
                        for sequence in names:
                            recorder.retry(sequence)
                if name == "r":
                    self.assertEqual(self.sent["copied"], 0)
        sequences = [sis.SequenceRef(name, attempt) for attempt in rounds for name in names]
        self.assertEqual(self.held(client, "r", sequences), self.held(client, "copied", sequences))

    def test_what_finds_no_room_is_copied(self):
        self.start()
        with unittest.mock.patch.object(record_memory, "SEGMENT_BYTES", [1 << 30, 1 << 16]):
            client = self.client()
            run = self.run_of(client)
            hoarded = client.empty_top_k(run, 1000)
            with self.recorder(client) as recorder:
                names = add_some(recorder)
                recorder.flush()
                self.assertEqual(self.sent["in place"], 0)
                del hoarded
                recorder.add("c", output(3, np.random.default_rng(9), "finished"))
        self.assertEqual(self.sent["in place"], 1)
        self.assert_same_as_copied(client, names)

    def test_a_server_that_shares_none_gets_copies(self):
        for shared, address in ((0, None), (SHARED, "tcp")):
            with self.subTest(shared=shared, address=address):
                self.sent.clear()
                self.start(shared=shared)
                client = self.client(self.tcp if address else None)
                with self.recorder(client) as recorder:
                    names = add_some(recorder)
                self.assertEqual(self.sent["in place"], 0)
                self.assertEqual(self.server.metrics()["sis_segments"], 0)
                self.assert_same_as_copied(client, names)
                self.server.kill()

    def test_memory_that_this_process_does_not_see(self):
        """As in a container that has the socket alone: it is given back."""
        self.start()
        client = self.client()
        with unittest.mock.patch.object(os, "open", side_effect=FileNotFoundError):
            with self.recorder(client) as recorder:
                names = add_some(recorder)
        self.assertEqual(self.sent["in place"], 0)
        self.wait_until(lambda: self.server.metrics()["sis_segments"] == 0)
        self.assert_same_as_copied(client, names)

    def test_a_server_that_hangs_is_not_waited_for(self):
        self.start()
        client = self.client(timeout=None)
        run = self.run_of(client)
        os.kill(self.server.process.pid, signal.SIGSTOP)
        try:
            self.assertEqual(client.empty_top_k(run, 3).top_k_ids.shape, (3, TOP_K))
            with self.assertRaisesRegex(sis.DeadlineExceeded, "no segment within 0.25 s"):
                self.client(timeout=0.25).lease_segment(1 << 16)
        finally:
            os.kill(self.server.process.pid, signal.SIGCONT)

    def test_a_client_that_forks_or_is_closed_leases_nothing(self):
        skip_unless_grpc_lets_fork()
        self.start()
        leased = lambda: self.server.metrics()["sis_segments"]
        client = self.client()
        run = self.run_of(client)
        kept = client.empty_top_k(run, 3).top_k_ids
        self.assertEqual(leased(), 1)
        if os.fork() == 0:
            os._exit(0)
        os.wait()
        self.wait_until(lambda: leased() == 0)
        kept[:] = 7  # the arrays stay
        client.empty_top_k(run, 3)
        self.assertEqual(leased(), 1)
        # Another thread, which the child hasn't got, holds the lock.
        with client._record_memory._lock, unittest.mock.patch.object(owner, "_ended_before_forks", []):
            child = os.fork()
            if child == 0:
                owner._ended_before_forks.append(client._record_memory)
                owner._before_fork()
                os._exit(0)
        self.wait_until(lambda: os.waitpid(child, os.WNOHANG)[0] == child)
        client.close()
        self.wait_until(lambda: leased() == 0)
        self.assertEqual(client._record_memory.empty(3, TOP_K).top_k_ids.shape, (3, TOP_K))
        self.assertEqual(leased(), 0)

    def test_what_names_memory_whose_lease_has_ended_is_sent_again(self):
        self.start()
        client = self.client()
        run = self.run_of(client)
        made = columns(100, np.random.default_rng(3))
        with client.append(run, sampling=Engine.sampling) as stream:
            for name in "xyz":
                stream.block(name, first_position=0, policy_version=0, **made.record(
                    TOP_K, out=client.empty_top_k(run, 100))._asdict())  # fmt: skip
                stream.seal(name, length=100)
            # They were not sent yet.
            self.assertEqual(sum(self.sent.values()), 0)
            client._record_memory._segment.close()
            self.wait_until(lambda: self.server.metrics()["sis_segments"] == 0)
            self.assertEqual(stream.flush(), {sis.SequenceRef(name): 100 for name in "xyz"})
            # A seal in a message with what lies there.
            stream.block("t", first_position=0, policy_version=0, **made.record(TOP_K)._asdict())
            stream.seal("other", length=0)
            stream.block("t", first_position=100, policy_version=0, **made.record(
                TOP_K, out=client.empty_top_k(run, 100))._asdict())  # fmt: skip
            client._record_memory._segment.close()
            self.wait_until(lambda: self.server.metrics()["sis_segments"] == 0)
            self.assertEqual(stream.flush(), {sis.SequenceRef("t"): 200, sis.SequenceRef("other"): 0})
        self.assertEqual(self.sent, {"in place": 4, "copied": 5})
        client.append_many(run, [sis.Block("w", 0, 0, *made.record(TOP_K))], sampling=Engine.sampling)
        self.assertEqual(self.held(client, "r", ["x"]), self.held(client, "r", ["w"]))

    def test_what_a_stream_that_broke_left_there_is_not_kept_for_ever(self):
        self.start()
        with unittest.mock.patch.object(record_memory, "SEGMENT_BYTES", [1 << 16]):
            client = self.client()
            run = self.run_of(client)
            record = columns(1000, np.random.default_rng(3)).record(TOP_K, client.empty_top_k(run, 1000))
            first = client._record_memory._segment
            self.assertTrue(first.holds(record.top_k_ids))
            with unittest.mock.patch.object(server_append.ServerAppendStream, "_read_acks"):
                stream = client.append(run, sampling=Engine.sampling)
            stream.append_many([sis.Block("s", 0, 0, *record)])
            stream.abandon()
            del record, stream
            # The server may still be reading it.
            self.assertFalse(first.holds(client.empty_top_k(run, 1000).top_k_ids))
            again = client.empty_top_k(run, 1000).top_k_ids
            self.assertTrue(client._record_memory._segment.holds(again))
            self.assertIsNot(client._record_memory._segment, first)

    def test_a_server_that_comes_back_without_memory(self):
        self.start()
        patch = unittest.mock.patch.object(record_memory, "ASK_AGAIN_SECONDS", 0.1)
        patch.start()
        self.addCleanup(patch.stop)
        client = self.client()
        recorder = self.recorder(client, interval=0.1)
        add_some(recorder, seed=5)
        recorder.flush()
        self.assertEqual(self.sent["copied"], 0)
        self.server.kill()
        random = np.random.default_rng(2)
        recorder.add("later", output(70, random))
        self.start()
        recorder.add("later", output(30, random, "finished"))
        self.assertEqual(recorder.flush(), {sis.SequenceRef("later"): 100})
        time.sleep(0.2)
        self.sent.clear()
        recorder.add("last", output(40, random, "finished"))
        recorder.close()
        self.assertGreater(self.sent["in place"], 0)
        self.assertEqual(self.sent["copied"], 0)
        random = np.random.default_rng(2)
        copying = self.client(self.tcp)
        with self.recorder(copying, "copied") as other:
            other.add("later", output(70, random))
            other.add("later", output(30, random, "finished"))
            other.add("last", output(40, random, "finished"))
        names = ["later", "last"]
        self.assertEqual(self.held(copying, "r", names), self.held(copying, "copied", names))

    def wait_until(self, condition):
        deadline = time.monotonic() + 20
        while not condition():
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.02)


if __name__ == "__main__":
    unittest.main()
