"""While SIS only observes, verl trains the same as without SIS."""

from training_worker import batch
from verl_case import WHOLE, VerlCase


class VerlObserveTest(VerlCase):
    def test_gradients_are_those_of_verl_bit_for_bit(self):
        for truncated, filters in ((False, {}), (True, {"top_p": 0.8})):
            with self.subTest(truncated=truncated):
                samples, settings = self.recorded(self.coarse, 8, WHOLE, 31 + truncated, observe=True, **filters)
                data = batch(samples)
                data["old_log_probs"] = data["rollout_log_probs"] - 0.1
                expected = self.stock(data.clone())
                training = self.attached(settings, truncated)
                step, metrics = self.stepped(data.clone())
                self.assert_same(step, expected)
                self.assertEqual(metrics["missing"], 0)
                totals = self.client.list_steps(training.run, draws=[0])[0].totals
                self.assertAlmostEqual(metrics["accept_rate"], totals.accept_rate, places=9)
                self.assertAlmostEqual(metrics["sis/d"], totals.mean_d_sis, places=6)
                for name in ("damped_truncation", "soft_acceptance", "tis", "icepop"):
                    self.assertTrue(0 < metrics[f"{name}/effective"] <= 1, name)
