"""verl's actor on two ranks, with data or the tokens of sequences in parallel."""

import dataclasses

import numpy as np
from expected import gradients as expected_gradients
from takes_minutes import takes_minutes
from training_worker import append, batch, rollout
from verl_case import WHOLE, K, VerlCase

import sis
from sis.integrations.verl import SisConfig


class VerlRankTest(VerlCase):
    def test_two_ranks_decide_as_one(self):
        samples = rollout(self.coarse, 8, K, 5)
        run = self.settings().create_run(self.client, WHOLE, algorithm="verl")
        append(self.client, run, samples)
        self.attached(self.settings())
        step, metrics = self.stepped(batch(samples))
        alone = self.client.list_steps(run, draws=[0])[0].totals
        told = {"address": self.address, "run": "two-ranks", "top_k": K, "seed": 1}
        append(self.client, SisConfig(**told).create_run(self.client, WHOLE, algorithm="verl"), samples)
        answers = [answer for (answer,) in self.two_ranks([(samples, told, False)])]
        together = self.client.list_steps(sis.Run("two-ranks", 0, run.config), draws=[0])[0].totals
        for name in ("accepted", "rejected", "outside_top_k", "missing"):
            self.assertEqual(getattr(together, name), getattr(alone, name), name)
        self.assertAlmostEqual(together.d, alone.d, delta=1e-4)
        for answer in answers:
            # Both ranks log what both did.
            logged = answer["metrics"]
            self.assertEqual(logged["sis/accept_rate"], [[metrics["accept_rate"]]] * 2)
            self.assertAlmostEqual(logged["sis/d"][0][0], together.mean_d, delta=1e-12)
            self.assert_close(answer["gradients"], step)

    @takes_minutes
    def test_sequence_parallelism_over_two_ranks(self):
        """Each has half of the tokens of a micro-batch, and a range may be on both."""
        drawn, settings = self.recorded(self.coarse, 8, K, 21)
        filtered, of_kept = self.recorded(self.model, 8, WHOLE, 22, top_p=0.8)
        targeted, of_mass = self.recorded(self.coarse, 8, K, 25, mass=0.7)
        damped = dataclasses.replace(settings, run=f"{settings.run}-damped", damped_truncation=True)
        append(self.client, damped.create_run(self.client, WHOLE, algorithm="verl"), drawn)
        steps = [
            (drawn, vars(settings), False), (filtered, vars(of_kept), True),
            (targeted, vars(of_mass), False), (drawn, vars(damped), False),
        ]  # fmt: skip
        arrangement = {"remove_padding": True, "sequence_parallel": 2}
        first, second = self.two_ranks(steps, arrangement)
        advantages = batch(drawn)["advantages"]
        expected, share = expected_gradients(self.model, drawn, advantages, seed=1, draw=0, top_k=K)
        of_damped, _ = expected_gradients(
            self.model, drawn, advantages, seed=1, draw=0, top_k=K, rule="damped_truncation"
        )
        of_filtered, _ = expected_gradients(
            self.model, filtered, batch(filtered)["advantages"], seed=1, draw=0, top_k=WHOLE, top_p=0.8
        )
        advantages = batch(targeted)["advantages"]
        of_targeted, share_of_mass = expected_gradients(
            self.model, targeted, advantages, seed=1, draw=0, top_k=K, mass=0.7
        )
        for answers in (first, second):
            self.assert_close(answers[0]["gradients"], expected)
            self.assert_close(answers[1]["gradients"], of_filtered)
            self.assert_close(answers[2]["gradients"], of_targeted)
            self.assert_close(answers[3]["gradients"], of_damped)
        # As verl: what is logged comes from the first.
        self.assertEqual([answer["metrics"] for answer in second], [{}] * 4)
        logged = first[0]["metrics"]
        self.assertEqual(logged["sis/missing"], [[0.0]])
        self.assertAlmostEqual(logged["sis/accept_rate"][0][0], share, delta=1e-12)
        self.assertEqual(first[1]["metrics"]["sis/accept_rate"], [[1.0]])
        self.assertEqual(first[1]["metrics"]["sis/incomplete"], [[0.0]])
        # Sets end where their mass is reached: parts of ragged records were cut out, and decided.
        run = self.client.get_run(of_mass.run).run
        counts = self.client.fetch_top_k(run, [turn.name for sample in targeted for turn in sample.turns]).counts
        self.assertGreater(len(np.unique(counts)), 4)
        self.assertAlmostEqual(first[2]["metrics"]["sis/accept_rate"][0][0], share_of_mass, delta=1e-12)
        self.assertEqual(first[2]["metrics"]["sis/missing"], [[0.0]])
        # Every token counts once.
        totals = self.client.list_steps(self.client.get_run(settings.run).run, draws=[0])[0].totals
        self.assertEqual((totals.scored, totals.missing), (sum(sum(sample.mask) for sample in drawn), 0))
        self.assertAlmostEqual(totals.accept_rate, share, delta=1e-12)
