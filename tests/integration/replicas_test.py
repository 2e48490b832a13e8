"""Three servers behind one client: the counts of one server that holds everything, and what is left when one goes.
micro_batches_test compares the bits."""

import dataclasses
import itertools
import unittest

import numpy as np

import sis
from server.testing.random_records import drawn, log_softmax
from sis._servers.placement import Placement
from tests.integration.live_server import ServersTest

VOCABULARY, TOP_K = 48, 7
LENGTHS = [13, 1, 40, 7, 8, 22, 3, 64, 5, 9, 31, 2]
OUTPUTS = ["decisions", "ratios", "log_ratios", "acceptance_probabilities"]
CONFIG = {"seed": 3, "vocabulary_size": VOCABULARY, "top_k": TOP_K, "max_staleness": 2}


def policy(rows, seed):
    return log_softmax(2 * np.random.default_rng(seed).normal(size=(rows, VOCABULARY)))


def record(rows, seed):
    return drawn(policy(rows, seed), np.random.default_rng(seed + 1), TOP_K)


def append(client, run, sequences, lengths=LENGTHS, version=0):
    with client.append(run, sampling=sis.Sampling("raw"), worker="w") as stream:
        for index, (sequence, length) in enumerate(zip(sequences, lengths)):
            stream.block(
                sequence, first_position=0, policy_version=version, **record(length, seed=10 * index)._asdict()
            )
            stream.seal(sequence, length=length)
        return stream.flush()


class ReplicasTest(ServersTest):
    def setUp(self):
        self.servers = [self.serve() for _ in range(3)]
        self.names = [server.address for server in self.servers]
        self.client = self.connect(*self.servers)
        self.run_ = self.client.create_run("run", **CONFIG)
        # The names are ports that were free, so the placement is another each time: each replica
        # gets four of the ids.
        self.sequences, self.owners = [], []
        for i in itertools.count():
            owner = self.owner(f"prompt-{i}")
            if self.owners.count(owner) < 4:
                self.sequences.append(f"prompt-{i}")
                self.owners.append(owner)
            if len(self.owners) == len(LENGTHS):
                break

    def owner(self, sequence):
        return Placement(self.names).replica("run", sequence)

    def one_server(self):
        client = self.connect(self.serve())
        run = client.create_run("run", **CONFIG)
        append(client, run, self.sequences)
        return client, run

    def evaluate(self, client, records, draw=1, outputs=OUTPUTS, **options):
        values = policy(2 * sum(LENGTHS), seed=5)[: len(records)]
        log_probs, sampled = sis.gather(records, values, np.full(len(records), 3))
        return client.evaluate(
            self.run_, records, draw=draw, log_probs=log_probs, sampled_log_probs=sampled, outputs=outputs, **options
        )

    def assert_same_steps(self, one, other):
        """Except for the times."""
        one, other = (
            {draw: dataclasses.replace(step, begun_at=0, ended_at=0) for draw, step in steps.items()}
            for steps in (one, other)
        )
        self.assertEqual(one, other)

    def test_a_step_adds_up_over_the_replicas_whatever_each_was_asked(self):
        committed = append(self.client, self.run_, self.sequences)
        self.assertEqual(committed, {(s, 0): n for s, n in zip(self.sequences, LENGTHS)})
        one, _ = self.one_server()
        for number, (sequence, length) in enumerate(zip(self.sequences, LENGTHS)):
            asked = [sis.Slice(sequence, 0, length + number % 3), sis.Slice(f"lost {number}", 0, 2)]
            for client in (one, self.client):
                records = client.fetch_top_k(self.run_, asked)
                self.evaluate(client, records, outputs=[], prefix_curve=[1 + number % 3, TOP_K][: number % 4])
        step = self.client.list_steps(self.run_, draws=[1])[1]
        self.assert_same_steps({1: one.list_steps(self.run_, draws=[1])[1]}, {1: step})
        self.assertEqual(self.client.list_steps(self.run_), {1: dataclasses.replace(step, distributions=None)})
        missing = sum(number % 3 + 2 for number in range(len(LENGTHS)))
        self.assertEqual(dict(step.missing), {sis.MissingReason.NEVER_ARRIVED: missing})
        self.assertEqual(step.totals.missing, missing)
        self.assertEqual([point.top_k for point in step.prefix_curve], [1, 2, 3, TOP_K])
        positions = [
            sum(length for number, length in enumerate(LENGTHS) if number % 3 == k and number % 4) for k in range(3)
        ]
        self.assertEqual([point.positions for point in step.prefix_curve[:3]], positions)
        # Steps of which some servers know nothing, as batches of one sequence are one server's.
        for draw, sequence in enumerate(self.sequences, start=10):
            for client in (one, self.client):
                self.evaluate(client, client.fetch_top_k(self.run_, [sequence]), draw)
        steps = self.client.list_steps(self.run_)
        self.assert_same_steps(one.list_steps(self.run_), steps)
        some = self.client.list_steps(self.run_, after=10)
        self.assertEqual((some, steps.unanswered), ({draw: steps[draw] for draw in list(steps)[2:]}, ()))

    def test_runs_and_releases_are_merged(self):
        append(self.client, self.run_, self.sequences)
        one, _ = self.one_server()
        for client in (one, self.client):
            records = client.fetch_top_k(self.run_, self.sequences)
            client.fetch_top_k(self.run_, self.sequences[:5], keep_seconds=60)
            self.assertEqual(client.get_run("run").kept_sequences, 5)
            self.evaluate(client, records, draw=12)
            with self.assertRaisesRegex(sis.InvalidArgument, "overlap"):
                self.evaluate(client, client.fetch_top_k(self.run_, self.sequences[5:] + self.sequences[5:6]))
            released = client.release(self.run_, [*self.sequences[:5], "none"])
            self.assertEqual(released, sis.Released(5, 1))
            self.assertEqual(client.advance_version(self.run_, 5), len(self.sequences) - 5)
        # Some replicas have counted what others refused.
        last = {"last_totals": None, "last_evaluated_at": None}
        for asked in (lambda client: [client.get_run("run")], sis.Client.list_runs):
            a, b = ([dataclasses.replace(run, **last) for run in asked(client)] for client in (one, self.client))
            self.assertEqual(a, b)
        for client in (one, self.client):
            with self.assertRaises(sis.NotFound):
                client.get_run("none")
            with self.assertRaises(sis.NotFound):
                client.list_steps(self.run_, draws=[99])
            with self.assertRaises(sis.AlreadyExists):
                client.create_run("run", **{**CONFIG, "seed": 4})
            with self.assertRaises(sis.InvalidArgument):
                client.fetch_top_k(self.run_, [])
            self.assertTrue(client.delete_run("run", incarnation=1))
            self.assertFalse(client.delete_run("run"))
            with self.assertRaises(sis.NotFound):
                client.get_run("run")
            with self.assertRaises(sis.NotFound):
                client.fetch_top_k(self.run_, self.sequences)
            # A run created later under this name is another incarnation.
            self.assertEqual(client.create_run("run", **CONFIG).incarnation, 2)
            with self.assertRaises(sis.FailedPrecondition):
                client.fetch_top_k(self.run_, self.sequences)

    def test_one_killed_costs_its_share_and_no_more(self):
        append(self.client, self.run_, self.sequences)
        records = self.client.fetch_top_k(self.run_, self.sequences, keep_seconds=60)
        outputs = ["decisions", "acceptance_probabilities"]
        whole = self.evaluate(self.client, records, outputs=outputs)
        self.servers[1].kill()
        first, second, third = self.client.get_servers()
        self.assertTrue(first.ready and third.ready)
        self.assertIsInstance(second, sis.Unavailable)
        share = [number for number, owner in enumerate(self.owners) if owner == 1]
        down = tuple(
            sis.MissingRange(n, 0, LENGTHS[n], sis.MissingReason.STORE_DOWN) for n in share
        )
        rows = np.isin(np.repeat(np.arange(len(LENGTHS)), LENGTHS), share)
        part = self.evaluate(self.client, records, outputs=outputs)
        self.assertEqual(part.missing, down)
        for name in ("accepted", *outputs):
            self.assertEqual(getattr(part, name)[~rows].tobytes(), getattr(whole, name)[~rows].tobytes())
        self.assertTrue((part.decisions[rows] == sis.Decision.MISSING).all())
        self.assertFalse(part.accepted[rows].any() or part.acceptance_probabilities[rows].any())
        self.assertEqual(part.totals.missing, rows.sum())
        self.assertEqual(part.totals.scored, (~rows).sum())
        for n, totals in enumerate(part.slice_totals):
            self.assertEqual(totals, sis.Totals(missing=LENGTHS[n]) if n in share else whole.slice_totals[n])
        mask = np.random.default_rng(5).random(len(rows)) < 0.5
        part = self.evaluate(self.client, records, outputs=["decisions"], options=sis.EvaluateOptions(mask=mask))
        self.assertEqual((part.decisions == sis.Decision.MASKED).tolist(), (~mask).tolist())
        self.assertEqual((part.decisions == sis.Decision.MISSING).tolist(), (rows & mask).tolist())
        self.assertEqual((part.totals.masked, part.totals.missing), ((~mask).sum(), (rows & mask).sum()))
        named = f"'{self.sequences[share[0]]}' attempt 0 position 0 is missing \\(store_down\\)"
        # Outputs with a value at every position need every replica. Only a server can compute them for
        # missing positions, from the trainer's own log-probs.
        own = np.full(len(records), -1.0)
        policy_gradient = {"algorithm": sis.ImportanceSampling(), "advantages": np.ones(len(records))}
        for output, needed in {
            "ratios": {}, "log_ratios": {}, "surrogates": policy_gradient, "coefficients": policy_gradient,
        }.items():  # fmt: skip
            for options in ({}, {"own_log_probs": own}):
                with self.subTest(output, own=len(options)), self.assertRaisesRegex(sis.FailedPrecondition, named):
                    self.evaluate(
                        self.client, records, outputs=[output], options=sis.EvaluateOptions(**needed, **options)
                    )
        with self.assertRaisesRegex(sis.FailedPrecondition, named):
            self.evaluate(self.client, records, outputs=["accepted"], options=sis.EvaluateOptions(algorithm=sis.Gspo()))
        # All other calls go on as well.
        self.assertEqual(self.client.advance_version(self.run_, 1), 0)
        self.assertEqual(self.client.get_run("run").sequences, len(self.sequences) - len(share))
        self.assertEqual(self.client.create_run("run", **CONFIG), self.run_)
        self.client.create_run("another", **CONFIG)


if __name__ == "__main__":
    unittest.main()
