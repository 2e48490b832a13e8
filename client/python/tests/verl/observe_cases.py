"""While SIS only observes, verl trains the same as without SIS."""

from training_worker import Gradients, append, batch, detach, rollout
from verl_case import WHOLE, K, VerlCase, metrics_of


class VerlObserveTest(VerlCase):
    def test_gradients_are_those_of_verl_bit_for_bit(self):
        for truncated, filters in ((False, {}), (True, {"top_p": 0.8})):
            with self.subTest(truncated=truncated):
                samples = rollout(self.coarse, 8, WHOLE, 31, **filters)
                data = batch(samples)
                data["old_log_probs"] = data["rollout_log_probs"] - 0.1
                expected = self.stock(data.clone())
                detach(self.worker)
                settings = self.settings(
                    run=f"observe-{truncated}", observe=True, top_k=WHOLE, log_prob_encoding="float32"
                )
                append(self.client, settings.create_run(self.client, WHOLE, algorithm="verl"), samples)
                gradients = Gradients(self.worker)
                training = self.attached(settings, truncated)
                metrics = {
                    name: value[0][0]
                    for name, value in metrics_of(self.worker.train_batch(data.clone())).items()
                    if "sis/" in name
                }
                self.assert_same(gradients.steps, expected)
                self.assertEqual(metrics["sis/missing"], 0)
                totals = self.client.list_steps(training.run, draws=[0])[0].totals
                self.assertAlmostEqual(metrics["sis/accept_rate"], totals.accept_rate, places=9)
                self.assertAlmostEqual(metrics["sis/sis/d"], totals.mean_d_sis, places=6)
                for name in ("damped_truncation", "soft_acceptance", "tis", "icepop"):
                    self.assertTrue(0 < metrics[f"sis/{name}/effective"] <= 1, name)

    def test_decisions_change_gradients(self):
        """Without `observe`, decisions change the gradients."""
        samples = rollout(self.coarse, 8, K, 31)
        data = batch(samples)
        expected = self.stock(data.clone())
        detach(self.worker)
        settings = self.settings(run="decides")
        append(self.client, settings.create_run(self.client, WHOLE, algorithm="verl"), samples)
        gradients = Gradients(self.worker)
        self.attached(settings)
        self.worker.train_batch(data.clone())
        with self.assertRaises(AssertionError):
            self.assert_same(gradients.steps, expected)
