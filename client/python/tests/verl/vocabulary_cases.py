"""Logits whose columns two ranks have, in verl's Megatron engine."""

import unittest.mock

import torch
from expected import gradients as expected_gradients
from takes_minutes import takes_minutes
from training_worker import batch
from verl_case import K, VerlCase

from sis.integrations.verl._vocabulary import Vocabulary


class VerlVocabularyTest(VerlCase):
    def test_what_fails_on_the_first_rank_fails_on_all(self):
        """No rank waits for one that raised."""
        told = []

        def broadcast(found, **_):
            if told:
                found[:] = told[0]
            told.append(list(found))

        def fail():
            raise KeyError("no such run")

        with (
            unittest.mock.patch("torch.distributed.broadcast_object_list", broadcast),
            unittest.mock.patch("torch.distributed.get_rank", lambda group: group),
        ):
            with self.assertRaises(KeyError):
                Vocabulary(0).asked(fail)
            with self.assertRaisesRegex(RuntimeError, "first rank .*no such run"):
                Vocabulary(1).asked(self.fail)
            told.clear()
            self.assertEqual(Vocabulary(0).asked(lambda: "records"), "records")
            self.assertEqual(Vocabulary(1).asked(self.fail), "records")

    @takes_minutes
    def test_two_ranks_decide_as_one_that_has_all_columns(self):
        """One of them asks the service, for both."""
        samples, settings = self.recorded(self.coarse, 8, K, 35)
        expected, share = expected_gradients(
            self.model, samples, batch(samples)["advantages"], seed=1, draw=0, top_k=K
        )
        (first,), (second,) = self.two_ranks([(samples, vars(settings), False)], script="split_vocabulary.py")
        heads = [answer["gradients"].pop("head") for answer in (first, second)]
        for answer in (first, second):
            of_body = {f"model.{name[len('body.'):]}": value for name, value in answer["gradients"].items()}
            self.assert_close({**of_body, "lm_head.weight": torch.cat(heads)}, expected)
        self.assertEqual(second["metrics"], {})
        # Without what verl's worker makes of it.
        self.assertEqual((first["metrics"]["sis/missing"], first["metrics"]["sis/envelope_violations"]), ([0.0], [0.0]))
        self.assertAlmostEqual(first["metrics"]["sis/accept_rate"][0], share, delta=1e-12)
        status = self.client.get_run(settings.run)
        totals = self.client.list_steps(status.run, draws=[0])[0].totals
        self.assertEqual(totals.scored, sum(sum(sample.mask) for sample in samples))
