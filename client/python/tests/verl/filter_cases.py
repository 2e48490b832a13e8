"""Rollouts of verl that leave tokens out."""

import warnings

import numpy as np
from expected import gradients as expected_gradients
from training_worker import batch
from verl_case import WHOLE, K, VerlCase

from sis.integrations.verl import attach
from sis.integrations.verl._settings import truncates


class VerlFilterTest(VerlCase):
    def test_equal_policies_have_ratios_of_1_over_what_a_filter_keeps(self):
        """The gradient is that of the log-probs over the kept tokens, compared with float64."""
        samples, settings = self.recorded(self.model, 8, WHOLE, 10, top_p=0.8)
        data = batch(samples)
        expected, _ = expected_gradients(
            self.model, samples, data["advantages"], seed=1, draw=0, top_k=WHOLE, top_p=0.8
        )
        self.attached(settings, True)
        step, metrics = self.stepped(data)
        self.assertEqual((metrics["accept_rate"], metrics["incomplete"]), (1, 0))
        self.assertLess(metrics["d"], 1e-5)
        self.assert_close(step, expected)

    def test_a_filter_that_keeps_more_than_is_recorded(self):
        samples, settings = self.recorded(self.model, 8, K, 11, top_p=0.8)
        self.attached(settings, True)
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            metrics = [self.stepped(batch(samples))[1] for _ in range(2)]
        recorded = np.concatenate([turn.record.top_k_log_probs for sample in samples for turn in sample.turns])
        longer = int((np.exp(recorded.astype(float)).sum(1) < 0.999).sum())
        self.assertTrue(0 < longer < len(recorded))
        self.assertEqual([of_step["incomplete"] for of_step in metrics], [longer] * 2)
        self.assertEqual(sum("the 16 recorded tokens are not known" in str(warning.message) for warning in seen), 1)

    def test_filters_of_a_configuration(self):
        for rollouts, truncated in (
            ({"top_p": 1.0, "top_k": -1}, False),
            ({"top_p": 0.9, "top_k": -1}, True),
            ({"top_p": 1.0, "top_k": 50}, True),
        ):
            self.assertEqual(truncates({"use_kl_loss": False}, rollouts), truncated)
        truncates({"use_kl_loss": True}, {"top_p": 1.0, "logprobs_mode": "raw_logprobs"})
        with self.assertRaisesRegex(ValueError, "use_kl_loss is True.* Set it to False"):
            truncates({"use_kl_loss": True}, {"top_p": 0.9})
        with self.assertRaisesRegex(ValueError, "Set it to 'processed_logprobs'"):
            truncates({}, {"top_p": 0.9, "logprobs_mode": "raw_logprobs"})
        with self.assertRaisesRegex(ValueError, "mass is 0.97, and rollouts leave tokens out.*Set it to 0"):
            attach(self.worker, self.settings(mass=0.97), truncated=True)
