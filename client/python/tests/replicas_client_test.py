"""A client of several services in this process: what it asks of whom."""

import functools
import math
import threading
import time
import unittest
import unittest.mock

import grpc
import numpy as np

import fake_service
import sis
from sis._servers.circuit_breaker import CircuitBreaker
from sis._servers.placement import Placement
from sis._servers.replicas import Replicas
from sis.v1 import ratio_service_pb2 as pb

SAMPLING = sis.Sampling("raw")
TOP_K, VOCABULARY = 3, 16


class Service(fake_service.FakeService):
    """Notes which calls come. All of them wait for `let_go`, if there is one."""

    def __init__(self):
        super().__init__()
        self.asked = []
        self.let_go = None
        # It answers no Evaluate from this position on.
        self.gone_from = math.inf
        self.store_fails = False
        # Number of CreateRun calls that it doesn't answer.
        self.creates_no_run = 0


def noting(name):
    def call(self, request, context):
        self.asked.append(name)
        if self.let_go is not None:
            self.let_go.wait(20)
        if name == "CreateRun" and self.creates_no_run:
            self.creates_no_run -= 1
            context.abort(grpc.StatusCode.UNAVAILABLE, "not yet")
        if self.store_fails and name in ("Release", "Append"):
            context.set_trailing_metadata((("sis-answered", "1"),))
            context.abort(grpc.StatusCode.UNAVAILABLE, "redis gives no answer")
        if name == "Evaluate" and request.slices[0].first_position >= self.gone_from:
            context.abort(grpc.StatusCode.UNAVAILABLE, "it has gone")
        return getattr(super(Service, self), name)(request, context)

    return call


for _name in ("CreateRun", "GetRun", "ListRuns", "AdvanceVersion", "Append", "FetchTopK", "Evaluate", "Release"):
    setattr(Service, _name, noting(_name))


class ReplicasClientTest(fake_service.ServersTest):
    def setUp(self):
        self.services, self.servers, self.names = [], [], []
        for _ in range(2):
            self.services.append(Service())
            server, address = self.serve(self.services[-1])
            self.servers.append(server)
            self.names.append(address)
        self.client = self.enterContext(sis.Client(self.names, timeout=20))
        self.run_ = self.client.create_run("run", seed=1, vocabulary_size=VOCABULARY, top_k=TOP_K)

    def restart(self, replica, service):
        self.servers[replica].stop(None).wait()
        self.services[replica] = service
        self.servers[replica], _ = self.serve(service, self.names[replica])

    def sequence_of(self, replica):
        """The id of a sequence that this replica has."""
        placement = Placement(self.names)
        return next(f"s{i}" for i in range(1000) if placement.replica("run", f"s{i}") == replica)

    def evaluate(self, slices, **options):
        positions = sum(part.length for part in slices)
        names = ("sampled_log_probs", "log_envelopes", "covered_masses")
        values = dict.fromkeys(names, np.full(positions, -2.0))
        return self.client.evaluate(self.run_, slices, draw=1, **values, **options)

    def test_a_replica_that_hangs_costs_an_evaluate_one_timeout(self):
        self.hang_at("Evaluate")

    def test_a_replica_that_hangs_costs_a_fetch_one_timeout(self):
        self.hang_at("FetchTopK")

    def test_a_replica_that_hangs_costs_an_evaluate_of_many_requests_one_timeout(self):
        with unittest.mock.patch.object(Replicas, "micro_batch_bytes", 1):
            self.hang_at("Evaluate", parts=2)

    def test_labels_are_announced_to_all_replicas_and_merged(self):
        self.client.advance_version(self.run_, 2, "step-2")
        with sis.Client(self.names[1]) as one:
            one.advance_version(self.run_, 4, "step-4")
        labels = [{named.label for named in service.runs["run"].version_labels} for service in self.services]
        self.assertEqual(labels, [{"step-2"}, {"step-2", "step-4"}])
        status = self.client.get_run("run")
        self.assertEqual((status.policy_version, status.version_labels), (4, {"step-2": 2, "step-4": 4}))

    def test_answers_of_a_replica_before_it_was_lost_count(self):
        slices = [sis.Slice(self.sequence_of(1), 2 * part, 2) for part in range(4)]
        self.services[1].gone_from = 6
        with unittest.mock.patch.object(Replicas, "micro_batch_bytes", 1):
            missing = self.evaluate(slices).missing
        never, down = sis.MissingReason.NEVER_ARRIVED, sis.MissingReason.STORE_DOWN
        self.assertEqual({part.slice: part.reason for part in missing}, {0: never, 1: never, 2: never, 3: down})
        self.assertEqual(len(self.services[1].evaluations), 3)

    def hang_at(self, first, parts=1):
        """`first`: the call that meets the replica when it hangs. parts: slices of each sequence, each in a
        call of its own, side by side."""
        met = [first] * parts
        sequences = [self.sequence_of(replica) for replica in range(2)]
        slices = [sis.Slice(sequence, 2 * part, 2) for sequence in sequences for part in range(parts)]
        # Time stands still for those who ask how long ago the replica failed.
        stopped = functools.partial(CircuitBreaker, lambda: 100.0)
        with unittest.mock.patch("sis._client.CircuitBreaker", stopped):
            client = self.client = self.enterContext(sis.Client(self.names, timeout=2))
        run = client.get_run("run").run
        let_go = self.services[1].let_go = threading.Event()
        self.addCleanup(let_go.set)
        asked = self.services[1].asked
        del asked[:]
        down = sis.MissingRange(parts, 0, 2, sis.MissingReason.STORE_DOWN)
        if first == "FetchTopK":
            self.assertIn(down, client.fetch_top_k(run, slices).missing)
            self.assertEqual(asked, met)
        for _ in range(3):
            self.assertIn(down, self.evaluate(slices).missing)
            self.assertIn(down, client.fetch_top_k(run, slices).missing)
            self.assertEqual(asked, met)
        client.advance_version(run, 3)
        with client.append(run, sampling=SAMPLING) as stream:
            for sequence in sequences:
                stream.seal(sequence, length=0)
            with self.assertRaises(sis.AppendError) as raised:
                stream.flush()
        refused = raised.exception.refused
        self.assertEqual([(r.sequence, r.entry) for r in refused], [(sequences[1], "seal at 0")])
        self.assertIn("skipped until its next probe", refused[0].message)
        self.assertEqual(asked, met)

    def append_many(self, *entries, run=None):
        return sis.append_many(self.client, run or self.run_, entries, sampling=SAMPLING)

    def test_many_entries_go_to_the_replicas_of_their_sequences(self):
        names = [f"s{i}" for i in range(40)]
        for turn in range(3):
            committed = self.append_many(*(sis.Seal(name, 0) for name in names))
            self.assertEqual(committed, {(name, 0): 0 for name in names})
        placement = Placement(self.names)
        for replica, service in enumerate(self.services):
            own = [name for name in names if placement.replica("run", name) == replica]
            batch = [entry.sequence.id for entry in service.batches[-1].entries]
            self.assertEqual((batch, len(service.batches)), (own, 3))
            self.assertEqual(service.asked.count("Append"), 3)
        with self.assertRaises(sis.FailedPrecondition):
            self.append_many(sis.Seal("s", 0), run=sis.Run("run", 7, self.run_.config))

    def test_a_replica_that_was_restarted_takes_entries_at_once(self):
        lost, well = self.sequence_of(1), self.sequence_of(0)
        self.append_many(sis.Seal(lost, 0), sis.Seal(well, 0))
        self.restart(1, Service())
        self.assertEqual(self.append_many(sis.Seal(lost, 3), sis.Seal(well, 0)), {(lost, 0): 0, (well, 0): 0})
        self.assertEqual([service.asked.count("Append") for service in self.services], [2, 1])

    def test_a_stream_that_has_ended_flushes_nothing(self):
        stream = self.client.append(self.run_, sampling=SAMPLING)
        stream.seal(self.sequence_of(1), length=0)
        stream.abandon()
        with self.assertRaisesRegex(ValueError, "closed"):
            stream.flush()

    def test_a_stream_waits_until_a_replica_that_comes_back_has_its_run(self):
        """Without the run that replica would refuse the stream itself, with NOT_FOUND."""
        lost = self.sequence_of(1)
        stream = self.client.append(self.run_, sampling=SAMPLING)
        self.addCleanup(stream.abandon)
        stream.seal(lost, length=0)
        stream.flush()
        service = Service()
        service.creates_no_run = 2
        self.restart(1, service)
        refused = 0
        for _ in range(600):
            try:
                stream.seal(lost, length=3)
                self.assertEqual(stream.flush(), {(lost, 0): 0})
                break
            except sis.AppendError:
                refused += 1
                time.sleep(0.1)
        self.assertGreater(refused, 1)
        self.assertEqual(service.creates_no_run, 0)


class OneStoreTest(fake_service.ServersTest):
    """Three addresses of one service: what one stores, all have."""

    def setUp(self):
        self.service = Service()
        self.service.GetServer = lambda request, context: pb.GetServerResponse(shared_store=True)
        self.servers = {}
        for _ in range(3):
            server, address = self.serve(self.service)
            self.servers[address] = server
        self.client = self.enterContext(sis.Client(list(self.servers), timeout=20))
        self.run_ = self.client.create_run("run", seed=1, vocabulary_size=VOCABULARY, top_k=TOP_K)

    def gone(self, address):
        self.servers[address].stop(None).wait()

    def back(self, address):
        self.servers[address], _ = self.serve(self.service, address)

    def seal(self, names):
        return sis.append_many(self.client, self.run_, [sis.Seal(name, 0) for name in names], sampling=SAMPLING)

    def test_others_serve_the_sequences_of_an_unreachable_replica(self):
        names = [f"s{i}" for i in range(30)]
        slices = [sis.Slice(name, length=2) for name in names]
        values = dict.fromkeys(("sampled_log_probs", "log_envelopes", "covered_masses"), np.full(2 * len(names), -2.0))

        def reasons(missing):
            return {(part.slice, part.reason.name) for part in missing}

        there = {(number, "NEVER_ARRIVED") for number in range(len(names))}
        for turn, address in enumerate(self.servers):
            with self.subTest(address=address):
                self.gone(address)
                # The first call meets the loss, the second knows of it.
                for draw in (2 * turn, 2 * turn + 1):
                    evaluation = self.client.evaluate(self.run_, slices, draw=draw, **values)
                    self.assertEqual(reasons(evaluation.missing), there)
                    self.assertEqual(reasons(self.client.fetch_top_k(self.run_, slices).missing), there)
                self.assertEqual(self.seal(names), {(name, 0): 0 for name in names})
                self.assertEqual(self.client.release(self.run_, names), sis.Released(len(names), 0))
                self.back(address)
                time.sleep(1.1)

    def test_entries_that_a_loss_meets_are_refused_and_then_taken_by_others(self):
        names = [f"s{i}" for i in range(30)]
        self.seal(names)
        lost = list(self.servers)[0]
        self.gone(lost)
        with self.client.append(self.run_, sampling=SAMPLING) as stream:
            with self.assertRaises(sis.AppendError) as raised:
                for name in names:
                    stream.seal(name, length=0)
                stream.flush()
            refused = {refusal.sequence for refusal in raised.exception.refused}
            placement = Placement(list(self.servers))
            self.assertTrue(refused)
            self.assertLessEqual(refused, {name for name in names if placement.replica("run", name) == 0})
            for name in refused:
                stream.seal(name, length=0)
            self.assertEqual({sequence.id for sequence in stream.flush()}, refused)

    def test_a_store_that_fails_makes_no_client_skip_a_server(self):
        names = [f"s{i}" for i in range(30)]
        stream = self.client.append(self.run_, sampling=SAMPLING)
        self.addCleanup(stream.abandon)
        self.service.store_fails = True
        placement = Placement(list(self.servers))
        for _ in range(2):
            del self.service.asked[:]
            with self.assertRaisesRegex(sis.Unavailable, "redis gives no answer"):
                self.client.release(self.run_, names)
            # Each server for its own sequences, and none for those of another.
            self.assertEqual(self.service.asked.count("Release"), len({placement.replica("run", n) for n in names}))
        for append in (lambda: stream.append_many([sis.Seal(name, 0) for name in names]), lambda: self.seal(names)):
            with self.assertRaises(sis.AppendError) as raised:
                append()
                stream.flush()
            self.assertEqual({refusal.message for refusal in raised.exception.refused}, {"redis gives no answer"})
        self.service.store_fails = False
        del self.service.asked[:]
        stream.append_many([sis.Seal(name, 0) for name in names])
        self.assertEqual(len(stream.flush()), len(names))
        self.assertEqual(self.client.release(self.run_, names), sis.Released(len(names), 0))
        self.assertNotIn("ListRuns", self.service.asked, "which a client asks a server that it skipped")

    def test_one_replica_is_enough_to_delete_a_run(self):
        self.gone(list(self.servers)[1])
        self.assertTrue(self.client.delete_run("run"))
        self.assertEqual(self.service.runs, {})


if __name__ == "__main__":
    unittest.main()
