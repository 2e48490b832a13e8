"""Sequences that are recorded while they are generated."""

import threading
import time
import types
import unittest
import unittest.mock
import warnings

import fake_service
import grpc
import numpy as np
from in_a_fork import in_a_fork

import sis
from sis._servers.placement import Placement
from sis.engines import Columns, MalformedOutput, Recorder, Told, VersionRange
from sis.engines._adapter import Adapter

VOCABULARY, TOP_K = 50, 4


class Engine(Adapter):
    """An adapter of outputs whose tokens are the numbers of their positions."""

    sampling = sis.Sampling("processed")

    def __init__(self, cumulative):
        self.cumulative = cumulative
        self.calls = []

    def told(self, output):
        return Told(len(output.positions), output.ended, [VersionRange(*each) for each in output.versions])

    def columns(self, pieces):
        self.calls.append(len(pieces))
        tokens = np.concatenate([piece.output.positions[piece.start : piece.stop] for piece in pieces]).astype(np.int32)
        if (tokens < 0).any():
            raise ValueError("a bad output")
        rows = len(tokens)
        ids = np.broadcast_to(np.arange(TOP_K, dtype=np.int32), (rows, TOP_K)) + 1
        log_probs = np.broadcast_to(np.linspace(-1.5, -2.0, TOP_K, dtype=np.float32), (rows, TOP_K))
        own = np.where(tokens == 40, np.nan, np.float32(-3))
        return Columns(ids, log_probs, tokens, own, None)


def output(first, stop, ended=None, versions=()):
    """versions: arguments of VersionRange, of the request."""
    return types.SimpleNamespace(positions=np.arange(first, stop), ended=ended, versions=versions)


class RecorderTest(fake_service.ServiceTest):
    def setUp(self):
        super().setUp()
        self.run_ = self.client.create_run("r", seed=1, vocabulary_size=VOCABULARY, top_k=TOP_K)

    def recorder(self, cumulative=False, **options):
        options = {"interval": 0.01, "policy_version": 0, **options}
        recorder = Recorder(self.client, self.run_, Engine(cumulative), **options)
        self.addCleanup(recorder.abandon)
        return recorder

    def held(self, name, attempt=0):
        return self.service.sequences.get(("r", name, attempt), fake_service.Sequence())

    def assert_recorded(self, name, length, attempt=0):
        rows = self.held(name, attempt).rows
        self.assertEqual(sorted(rows), list(range(length)))
        for position, row in rows.items():
            self.assertEqual(np.frombuffer(row[0], np.int32)[0], position)

    def test_the_committed_length_grows_before_the_request_ends(self):
        for cumulative in (False, True):
            name = f"s{cumulative}"
            with self.recorder(cumulative) as recorder:
                for stop in (3, 7, 12):
                    recorder.add(name, output(0 if cumulative else stop - {3: 3, 7: 4, 12: 5}[stop], stop))
                    self.wait_for(lambda: self.held(name).committed == stop)
                    self.assertIsNone(self.held(name).sealed)
                recorder.add(name, output(0 if cumulative else 12, 13, "finished"))
            self.assert_recorded(name, 13)
            self.assertEqual(self.held(name).sealed, 13)

    def test_many_outputs_are_read_at_once(self):
        recorder = self.recorder(interval=60)
        for first in range(10):
            for name in "abc":
                recorder.add(name, output(first, first + 1))
        self.assertEqual(recorder.flush(), {sis.SequenceRef(name): 10 for name in "abc"})
        self.assertEqual(recorder._adapter.calls, [30])
        for name in "abc":
            self.assert_recorded(name, 10)
        self.assertEqual(recorder.flush(), {})

    def test_outputs_that_repeat_are_read_once(self):
        recorder = self.recorder(cumulative=True, interval=60)
        for stop in range(1, 11):
            recorder.add("a", output(0, stop))
        recorder.flush()
        self.assertEqual(recorder._adapter.calls, [1])
        recorder.add("a", output(0, 12, "finished"))
        recorder.flush()
        self.assert_recorded("a", 12)

    def test_an_aborted_request_stays_open_and_continues(self):
        for cumulative in (False, True):
            name = f"s{cumulative}"
            with self.recorder(cumulative) as recorder:
                recorder.add(name, output(0, 5, "aborted"))
                recorder.flush()
                self.assertIsNone(self.held(name).sealed)
                # The next request begins with what was generated as its prompt.
                recorder.add(name, output(5, 8))
                recorder.add(name, output(5 if cumulative else 8, 9, "finished"))
            self.assert_recorded(name, 9)
            self.assertEqual(self.held(name).sealed, 9)

    def test_turns_of_an_agent_are_one_sequence_with_gaps_where_tools_wrote(self):
        for cumulative in (False, True):
            name = f"s{cumulative}"
            with self.recorder(cumulative, interval=60) as recorder:
                recorder.add(name, output(0, 5, "finished"), more=True)
                recorder.skip(name, 3)
                recorder.add(name, output(0, 2, "finished"), more=True)
                recorder.flush()
                self.assertIsNone(self.held(name).sealed)
                recorder.skip(name, 1)
                recorder.add(name, output(0, 4, "finished"))
            self.assertEqual(sorted(self.held(name).rows), [*range(5), 8, 9, *range(11, 15)])
            self.assertEqual(self.held(name).sealed, 15)

    def test_a_retry_is_another_attempt(self):
        with self.recorder() as recorder:
            recorder.add("a", output(0, 5, "aborted"))
            self.assertEqual(recorder.retry("a"), sis.SequenceRef("a", 1))
            recorder.add("a", output(0, 3, "finished"))
        self.assert_recorded("a", 5)
        self.assert_recorded("a", 3, attempt=1)
        self.assertEqual((self.held("a").sealed, self.held("a", 1).sealed), (None, 3))

    def test_an_output_of_older_weights_is_labelled_with_their_version(self):
        with self.recorder(interval=60, policy_version=7) as recorder:
            recorder.add("a", output(0, 2))
            recorder.policy_version = 8
            recorder.add("a", output(2, 3), policy_version=7)
            recorder.add("a", output(3, 5))
            recorder.add_many([("a", output(5, 6))], policy_version=7)
        self.assertEqual(self.blocks("a"), [(0, 3, 7), (3, 2, 8), (5, 1, 7)])

    def test_one_block_per_version_that_the_engine_names(self):
        for cumulative in (False, True):
            name = f"s{cumulative}"
            with self.recorder(cumulative, interval=60, policy_version=None) as recorder:
                # The ranges of a request that runs grow with it.
                recorder.add(name, output(0, 3, versions=[("7", 0, 3)]))
                first = 0 if cumulative else 3
                recorder.add(name, output(first, 6, versions=[("7", 0, 4), ("8", 4)]))
                first = 0 if cumulative else 6
                recorder.add(name, output(first, 9, "aborted", versions=[("7", 0, 4), ("8", 4, 9)]))
                # The request that goes on counts from its own first token.
                recorder.add(name, output(9, 11, versions=[("8", 0, 1), ("10", 1, 2)]))
                first = 9 if cumulative else 11
                last = output(first, 12, "finished", versions=[("8", 0, 1), ("10", 1, 3)])
                recorder.add(name, last, more=True)
                recorder.skip(name, 2)
                recorder.add(name, output(14, 16, "finished", versions=[("10",)]))
            self.assertEqual(self.blocks(name), [(0, 4, 7), (4, 6, 8), (10, 2, 10), (14, 2, 10)])
            self.assertEqual(self.held(name).sealed, 16)
            self.assertEqual(sorted(self.held(name).rows), [*range(12), 14, 15])

    def test_a_label_is_the_version_that_the_trainer_announced_with_it(self):
        self.client.advance_version(self.run_, 3, "step-3")
        with self.recorder(interval=0.05, policy_version=None) as recorder:
            recorder.add("a", output(0, 5, "finished", versions=[("step-3", 0, 2), ("v4", 2, 5)]))
            recorder.add("b", output(0, 2, "finished", versions=[("step-3",)]))
            # The engine has weights before the trainer announces them: they wait, and nothing else does.
            self.wait_for(lambda: self.held("b").sealed == 2 and self.held("a").committed == 2)
            time.sleep(0.2)
            self.assertEqual((self.held("a").sealed, self.held("a").gaps), (None, {}))
            self.client.advance_version(self.run_, 4, "v4")
            self.assertEqual(recorder.flush(), {sis.SequenceRef("a"): 5, sis.SequenceRef("b"): 2})
            self.assertEqual(recorder.unusable, {})
        self.assertEqual(self.blocks("a"), [(0, 2, 3), (2, 3, 4)])
        self.assertEqual(self.held("a").sealed, 5)

    def test_weights_of_unknown_version_are_a_gap_and_named_once(self):
        with self.recorder(policy_version=None, retry_timeout=0.3) as recorder:
            for version, why in (("v9", "label 'v9'"), ("default", "label 'default'"), (None, "names no weight")):
                versions = [] if version is None else [(version, 0, 2), ("5", 2)]
                recorder._warned.clear()
                with self.assertWarnsRegex(RuntimeWarning, f"sequence '{version}', position 0: .*{why}.*UNKNOWN_VERSION"):
                    recorder.add(f"{version}", output(0, 3, "finished", versions=versions))
                    recorder.flush()
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                # It was waited for: now it costs no time.
                recorder._retry_timeout = 1e9
                recorder.add("again", output(0, 3, "finished", versions=[("v9",)]))
                recorder.flush()
        unknown = sis.MissingReason.UNKNOWN_VERSION
        for name in ("v9", "default"):
            self.assertEqual((self.held(name).gaps, self.blocks(name)), ({0: unknown, 1: unknown}, [(2, 1, 5)]))
        self.assertEqual((len(self.held("None").gaps), len(self.held("again").gaps)), (3, 3))
        self.assertEqual(recorder.unusable, {unknown: 10})

    def test_labels_are_asked_for_no_more_than_twice_a_second(self):
        asked = []
        get_run = self.client.get_run
        self.client.get_run = lambda run_id: asked.append(time.monotonic()) or get_run(run_id)
        with self.recorder(policy_version=None, retry_timeout=1.2) as recorder, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            recorder.add("a", output(0, 3, "finished", versions=[("v9",)]))
            recorder.flush()
        self.assertGreaterEqual(len(asked), 2)
        self.assertGreaterEqual(min(np.diff(asked)), 0.45)

    def test_no_more_than_a_number_of_positions_wait_for_labels(self):
        with self.recorder(policy_version=None) as recorder:
            recorder.add("first", output(0, 3, "finished", versions=[("v1",)]))
            with unittest.mock.patch("sis.engines._labels.MAX_UNLABELLED", 10), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                recorder.add_many((f"s{number}", output(0, 4, versions=[("v2",)])) for number in range(2))
                self.wait_for(lambda: self.held("first").sealed == 3)
            self.client.advance_version(self.run_, 2, "v2")
        self.assertEqual(self.held("first").gaps, dict.fromkeys(range(3), sis.MissingReason.UNKNOWN_VERSION))
        self.assertEqual((self.blocks("s0"), self.blocks("s1")), ([(0, 4, 2)], [(0, 4, 2)]))

    def test_a_version_by_hand_is_for_engines_that_name_none(self):
        with self.recorder(policy_version=4, retry_timeout=0.2) as recorder:
            for version in ("4", "default", "nobody's", None):
                recorder.add(f"{version}", output(0, 3, "finished", versions=[] if version is None else [(version,)]))
            recorder.flush()
            self.assertEqual(recorder.unusable, {})
        for version in ("4", "default", "nobody's", None):
            self.assertEqual(self.blocks(f"{version}"), [(0, 3, 4)])

    def test_an_engine_that_contradicts_the_caller_is_refused_by_name(self):
        self.client.advance_version(self.run_, 5, "v5")
        with self.recorder(policy_version=4) as recorder:
            recorder.add("good", output(0, 2, "finished", versions=[("4",)]))
            recorder.add("bad", output(0, 4, "finished", versions=[("4", 0, 1), ("v5", 1, 3), ("4", 3)]))
            with self.assertRaisesRegex(
                MalformedOutput, "^sequence 'bad', position 1: policy_version is 4, .* weights are 'v5', version 5$"
            ):
                recorder.flush()
            self.assertEqual(recorder.unusable, {sis.MissingReason.UNKNOWN_VERSION: 2})
        self.assertEqual(self.blocks("good"), [(0, 2, 4)])
        self.assertEqual(self.blocks("bad"), [(0, 1, 4), (3, 1, 4)])
        self.assertEqual((list(self.held("bad").gaps), self.held("bad").sealed), ([1, 2], 4))

    def test_an_error_names_so_many_outputs_and_counts_the_others(self):
        recorder = self.recorder()
        for number in range(25):
            recorder.add(f"s{number}", None)
            recorder.add(f"s{number}", output(0, 3, "finished"))
        recorder.add("good", output(0, 3, "finished"))
        with self.assertRaisesRegex(MalformedOutput, "sequence 's0', position 0: .*'s19'.*; and 5 more"):
            recorder.flush()
        recorder.flush()
        self.assert_recorded("good", 3)
        self.assertEqual((recorder._sequences, self.held("s0").rows, self.held("s0").sealed), ({}, {}, None))

    def test_the_next_flush_raises_the_servers_refusal(self):
        recorder = self.recorder()
        refused = lambda entry: (fake_service.INVALID_ARGUMENT, "no", 0) if entry.sequence.id == "a" else None
        self.service.refuse = refused
        recorder.add("a", output(0, 3))
        recorder.add("b", output(0, 3))
        self.wait_for(lambda: self.held("b").committed == 3)
        recorder.add("b", output(3, 5, "finished"))
        with self.assertRaises(sis.AppendError):
            self.wait_for(lambda: recorder.flush() and False)
        recorder.flush()
        self.assert_recorded("b", 5)
        self.assertEqual(self.held("b").sealed, 5)

    def test_what_follows_a_refusal_is_stored_when_the_recorder_closes(self):
        self.service.refuse = lambda entry: (fake_service.INVALID_ARGUMENT, "no", 0) if entry.sequence.id == "a" else None
        recorder = self.recorder(interval=1)
        recorder.add("a", output(0, 3))
        self.wait_for(lambda: recorder._failure)
        recorder.add("b", output(0, 3))
        with self.assertRaises(sis.AppendError):
            recorder.close()
        self.assert_recorded("b", 3)

    def test_a_stream_that_failed_is_opened_again(self):
        recorder = self.recorder(interval=60)
        self.service.answer = lambda context: context.abort(grpc.StatusCode.INTERNAL, "reset")
        recorder.add("a", output(0, 3))
        with self.assertRaisesRegex(sis.Error, "reset"):
            recorder.flush()
        self.service.answer = lambda context: None
        recorder.add("b", output(0, 3))
        recorder.flush()
        self.assert_recorded("b", 3)

    def test_no_error_leaves_a_flush_waiting(self):
        recorder = self.recorder(policy_version=None)
        recorder.add("a", output(0, 3, versions=[("not announced",)]))
        self.client.close()
        with self.assertRaisesRegex(ValueError, "closed"):
            recorder.flush()

    def test_refusals_of_one_replica_let_another_come_back(self):
        other = fake_service.FakeService()
        server, address = self.serve(other)
        names = [self.address, address]
        client = self.enterContext(sis.Client(names, timeout=20))
        run = client.create_run("r", seed=1, vocabulary_size=VOCABULARY, top_k=TOP_K)
        server.stop(None).wait()
        placement = Placement(names)
        here, there = (next(f"s{i}" for i in range(99) if placement.replica("r", f"s{i}") == which) for which in (0, 1))
        recorder = Recorder(client, run, Engine(False), policy_version=0, interval=0.01)
        self.addCleanup(recorder.abandon)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            recorder.add(here, output(39, 42))
            recorder.add(there, output(39, 42))
            self.wait_for(lambda: self.held(here).committed == 3)
            # As if the trainer had released the first sequence, which must not be sent again.
            self.service.refuse = lambda entry: (fake_service.INVALID_ARGUMENT, "released", 0)
            self.serve(other, address)
            recorder.flush()
        self.assertEqual(len(other.sequences["r", there, 0].rows), 2)
        self.assertEqual(recorder.unusable, {sis.MissingReason.INVALID_LOG_PROB: 2})

    def test_in_a_forked_process_the_error_names_the_remedy(self):
        recorder = self.recorder()
        recorder.add("a", output(0, 3))
        recorder.flush()
        for call in (
            lambda: recorder.add("a", output(3, 5)),
            lambda: recorder.skip("a", 1),
            lambda: recorder.retry("a"),
            lambda: recorder.forget("a"),
            recorder.flush,
            recorder.close,
        ):
            error = in_a_fork(call)
            self.assertIsInstance(error, RuntimeError)
            self.assertRegex(str(error), "this recorder .* Make a sis.Client here, after the fork")
        self.assertIsNone(in_a_fork(recorder.abandon))
        # Whoever has made it goes on.
        recorder.add("a", output(3, 5, "finished"))
        recorder.close()
        self.assert_recorded("a", 5)

    def test_sealed_sequences_are_forgotten(self):
        with self.recorder() as recorder:
            for number in range(100):
                recorder.add(f"s{number}", output(0, 3, "finished"))
                recorder.flush()
            self.assertEqual((recorder._sequences, recorder._last), ({}, {}))
            # But for how often it was tried.
            for attempt in (1, 2):
                self.assertEqual(recorder.retry("s7"), sis.SequenceRef("s7", attempt))
                recorder.add("s7", output(0, 4, "finished"))
            # More is to come of these.
            recorder.add("turns", output(0, 2, "finished"), more=True)
            recorder.add("aborted", output(0, 2, "aborted"))
            recorder.flush()
            self.assertEqual(set(recorder._sequences), {"s7", "turns", "aborted"})
            recorder.add("turns", output(2, 4, "finished"))
            recorder.add("aborted", output(2, 4, "finished"))
        self.assertEqual(set(recorder._sequences), {"s7"})
        for attempt, length in enumerate((3, 4, 4)):
            self.assert_recorded("s7", length, attempt)
        self.assert_recorded("turns", 4)
        self.assert_recorded("aborted", 4)

    def test_a_server_that_comes_back_gets_what_it_missed(self):
        recorder = self.recorder()
        recorder.add("a", output(0, 3))
        recorder.flush()
        self.server.stop(None).wait()
        recorder.add("a", output(3, 5))
        flushed = []
        flushing = threading.Thread(target=lambda: flushed.append(recorder.flush()))
        flushing.start()
        time.sleep(0.2)
        self.assertEqual(flushed, [])
        self.start_again()
        flushing.join(30)
        self.assertEqual(flushed, [{sis.SequenceRef("a"): 5}])
        self.assert_recorded("a", 5)

    def test_outputs_for_a_lost_server_are_dropped_with_a_warning(self):
        recorder = self.recorder(retry_timeout=0.1)
        self.server.stop(None).wait()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            recorder.add("a", output(0, 3))
            self.wait_for(lambda: caught)
        self.assertIn("3 positions were not stored", str(caught[0].message))
        recorder.add("a", output(3, 4))
        with self.assertRaises(sis.Error) as raised:
            recorder.flush()
        self.assertEqual(raised.exception.code, grpc.StatusCode.UNAVAILABLE)


if __name__ == "__main__":
    unittest.main()
