"""Sequences that are recorded while they are generated."""

import threading
import time
import types
import unittest
import warnings

import fake_service
import grpc
import numpy as np
from in_a_fork import in_a_fork

import sis
from sis.engines import Columns, MalformedOutput, Recorder
from sis.engines._adapter import Adapter

VOCABULARY, TOP_K = 50, 4


class Engine(Adapter):
    """An adapter of outputs whose tokens are the numbers of their positions."""

    sampling = sis.Sampling("processed")

    def __init__(self, cumulative):
        self.cumulative = cumulative
        self.calls = []

    def length(self, output):
        return len(output.positions)

    def ended(self, output):
        return output.ended

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


def output(first, stop, ended=None):
    return types.SimpleNamespace(positions=np.arange(first, stop), ended=ended)


class RecorderTest(fake_service.ServiceTest):
    def setUp(self):
        super().setUp()
        self.run_ = self.client.create_run("r", seed=1, vocabulary_size=VOCABULARY, top_k=TOP_K)

    def recorder(self, cumulative=False, **options):
        options = {"interval": 0.01, **options}
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

    def wait_for(self, condition):
        deadline = time.monotonic() + 20
        while not condition():
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.01)

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

    def test_the_outputs_of_a_step_are_added_at_once(self):
        recorder = self.recorder()
        for first in range(10):
            recorder.add_many((name, output(first, first + 1, "finished" if first == 9 else None)) for name in "abc")
        self.assertEqual(recorder.flush(), {sis.SequenceRef(name): 10 for name in "abc"})
        for name in "abc":
            self.assert_recorded(name, 10)
            self.assertEqual(self.held(name).sealed, 10)

    def test_outputs_that_repeat_are_read_once(self):
        recorder = self.recorder(cumulative=True, interval=60)
        for stop in range(1, 11):
            recorder.add("a", output(0, stop))
        recorder.flush()
        self.assertEqual(recorder._adapter.calls, [1])
        recorder.add("a", output(0, 12, "finished"))
        recorder.flush()
        self.assert_recorded("a", 12)

    def test_an_aborted_request_stays_open_and_goes_on(self):
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

    def test_each_position_has_the_version_of_the_weights_that_were_there(self):
        with self.recorder(interval=60, policy_version=7) as recorder:
            recorder.add("a", output(0, 2))
            recorder.policy_version = 8
            recorder.add("a", output(2, 5))
        entries = [entry for batch in self.service.batches for entry in batch.entries if entry.HasField("block")]
        blocks = map(fake_service.header_of, entries)
        self.assertEqual([(block.first_position, block.policy_version) for block in blocks], [(0, 7), (2, 8)])

    def test_a_position_without_a_log_prob_is_a_gap_and_the_first_is_named(self):
        with self.recorder() as recorder:
            with self.assertWarnsRegex(RuntimeWarning, "sequence 'a', position 40: the sampled log-prob is nan"):
                recorder.add("a", output(0, 45, "finished"))
                recorder.flush()
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                recorder.add("b", output(38, 42, "finished"))
                recorder.flush()
            self.assertEqual(recorder.invalid_log_probs, 2)
        self.assertEqual(sorted(self.held("a").rows), [*range(40), *range(41, 45)])
        self.assertEqual(self.held("a").gaps, {40: sis.MissingReason.INVALID_LOG_PROB})
        self.assertEqual(self.held("a").sealed, 45)
        self.assertEqual((sorted(self.held("b").rows), list(self.held("b").gaps)), ([0, 1, 3], [2]))

    def test_an_output_of_older_weights_is_labelled_with_their_version(self):
        with self.recorder(interval=60, policy_version=7) as recorder:
            recorder.add("a", output(0, 2))
            recorder.policy_version = 8
            recorder.add("a", output(2, 3), policy_version=7)
            recorder.add("a", output(3, 5))
            recorder.add_many([("a", output(5, 6))], policy_version=7)
        entries = [entry for batch in self.service.batches for entry in batch.entries if entry.HasField("block")]
        blocks = map(fake_service.header_of, entries)
        self.assertEqual([(block.first_position, block.policy_version) for block in blocks], [(0, 7), (3, 8), (5, 7)])

    def test_a_bad_output_costs_nothing_but_itself(self):
        recorder = self.recorder(interval=60)
        recorder.add("a", output(0, 3, "finished"))
        recorder.add("bad", output(-2, 1, "finished"))
        recorder.add("c", output(0, 4, "finished"))
        with self.assertRaisesRegex(MalformedOutput, r"sequence 'bad', positions \[0, 2\): a bad output"):
            recorder.flush()
        recorder.add("c2", output(0, 2, "finished"))
        recorder.flush()
        for name, length in (("a", 3), ("c", 4), ("c2", 2)):
            self.assert_recorded(name, length)
        self.assertEqual((list(self.held("bad").rows), list(self.held("bad").gaps)), ([2], [0, 1]))
        self.assertEqual(self.held("bad").sealed, 3)
        self.assertEqual(recorder.invalid_log_probs, 2)

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
