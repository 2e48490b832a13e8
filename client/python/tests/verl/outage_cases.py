"""verl's actor without records, without a server, and with the records of an earlier training."""

import time
import unittest.mock

import numpy as np
import torch
from server.testing.live_server import LiveServer
from training_worker import append, batch, detach, rollout
from verl_case import WHOLE, K, VerlCase, free_port, warned

import sis
from sis.integrations._names import name_in


def answered(call):
    """Returns the result of a call to a server that has just started. Retries, because gRPC pauses between attempts."""
    for _ in range(100):
        try:
            return call()
        except sis.Unavailable:
            time.sleep(0.1)
    return call()


class VerlOutageTest(VerlCase):
    def on_sampling_log_probs(self, samples):
        data = batch(samples)
        data["old_log_probs"] = data["rollout_log_probs"]
        return self.stock(data)

    def test_without_records_gradients_are_those_of_verl_on_the_sampling_log_probs(self):
        samples = rollout(self.coarse, 8, K, 1)
        expected = self.on_sampling_log_probs(samples)
        training = self.attached(self.settings())
        data = batch(samples)
        before = data.clone()
        step, metrics = self.stepped(data)
        self.assert_same(step, expected)
        self.assertEqual([metrics[name] for name in ("missing", "missing_never_arrived", "missing_stale")], [1, 1, 0])
        self.assertNotIn("accept_rate", metrics)
        totals = self.client.list_steps(training.run, draws=[0])[0].totals
        self.assertEqual(totals.missing, sum(sum(sample.mask) for sample in samples))
        # The trainer's own data is unchanged.
        for name in ("old_log_probs", "rollout_log_probs", "response_mask", "advantages"):
            self.assertTrue(torch.equal(data[name], before[name]), name)
        self.assertFalse({"sis_row", "distillation_use_topk"} & set(data.keys()))

    def test_without_a_server_training_goes_on_and_acceptance_returns_with_it(self):
        samples = rollout(self.coarse, 8, K, 2)
        expected = self.on_sampling_log_probs(samples)
        port = free_port()
        training = self.attached(self.settings(address=f"127.0.0.1:{port}"))
        with warned(self):
            step, metrics = self.stepped(batch(samples))
        self.assert_same(step, expected)
        self.assertEqual(metrics["missing"], 1)
        server = LiveServer(listen=f"127.0.0.1:{port}")
        self.addCleanup(server.kill)
        with sis.Client(server.address) as client:
            append(client, answered(lambda: self.settings().create_run(client, WHOLE, algorithm="verl")), samples)
            answered(training.service.client.list_runs)
            _, metrics = self.stepped(batch(samples))
            self.assertEqual(metrics["missing"], 0)
            self.assertGreater(metrics["accept_rate"], 0.3)
            # Killed between two steps.
            server.kill()
            with warned(self):
                for _ in range(2):
                    _, metrics = self.stepped(batch(samples))
            self.assertEqual(metrics["missing"], 1)

    def test_a_training_that_is_resumed_under_its_name_begins_anew(self):
        settings = self.settings(max_staleness=1)
        samples = rollout(self.coarse, 8, K, 9)
        first = self.attached(settings)
        append(self.client, first.run, samples)
        self.worker.train_batch(batch(samples))
        self.client.advance_version(first.run, 150)
        detach(self.worker)
        # From a checkpoint of step 100, with all its processes.
        resumed = self.attached(settings)
        self.assertEqual((first.run.incarnation, resumed.run.incarnation), (1, 2))
        rollouts = settings.create_run(self.client, WHOLE, algorithm="verl")
        self.assertEqual(rollouts, resumed.run)
        self.client.advance_version(rollouts, 101)
        append(self.client, rollouts, samples, policy_version=101)
        _, metrics = self.stepped(batch(samples))
        self.assertEqual(metrics["missing"], 0)
        self.assertEqual(self.client.list_steps(resumed.run, draws=[resumed.draw])[resumed.draw].totals.missing, 0)
        # One that has told nothing and evaluated nothing is that which others have opened.
        joined = self.attached(self.settings(run="joined"))
        self.assertEqual(self.attached(self.settings(run="joined")).run, joined.run)

    def test_a_session_that_was_evicted_is_missing_for_that_reason(self):
        """Its content name is not asked for: the session's own was there."""
        samples = rollout(self.coarse, 8, K, 26)
        for number, sample in enumerate(samples):
            for turn in sample.turns:
                context = [*sample.prompt, *sample.tokens[: turn.start]]
                turn.name = name_in(f"uid_{number}", context)
        server = LiveServer(cache_bytes=16 << 20)
        self.addCleanup(server.close)
        settings = self.settings(address=server.address)
        client = sis.Client(server.address)
        self.addCleanup(client.close)
        run = settings.create_run(client, WHOLE, algorithm="verl")
        append(client, run, samples)
        # Sequences that were read are evicted first, kept ones never.
        victim, names = samples[4].turns[0], [turn.name for sample in samples for turn in sample.turns]
        client.fetch_top_k(run, [victim.name])
        client.fetch_top_k(run, [name for name in names if name != victim.name], keep_seconds=600)
        filler = client.create_run("filler", seed=0, vocabulary_size=WHOLE, top_k=K, evict_unread=True)
        columns = [np.repeat(column, 100, axis=0) for column in victim.record]
        for number in range(4000):
            block = sis.Block(f"{number}", 0, 0, *columns)
            sis.append_many(client, filler, [block], sampling=sis.Sampling("processed"))
            if client.get_run(run.id).sequences < len(names):
                break

        training = self.attached(settings)
        data = batch(samples, uid="uid")
        data["session_id"] = torch.arange(len(samples))
        with unittest.mock.patch.object(training.service.client, "fetch_top_k", wraps=training.service.client.fetch_top_k) as fetch:
            _, metrics = self.stepped(data)
        self.assertEqual(fetch.call_count, 1)
        share = len(victim.log_probs) / sum(sum(sample.mask) for sample in samples)
        told = [metrics[name] for name in ("missing", "missing_evicted", "missing_never_arrived")]
        self.assertEqual(told, [share, share, 0])
        self.assertGreater(metrics["accept_rate"], 0.3)
