"""Corrections side by side through the client, on one server and on two, and what Prometheus thinks
of all metrics."""

import shutil
import subprocess
import unittest
import urllib.request

import sis
from server.testing.live_server import two_replicas
from tests.integration.evaluated_batch import EvaluatedBatchTest, Values

OBSERVE = {
    "k4": sis.Sis(top_k=4),
    "expected": sis.Sis(weight="expected"),
    "tis": sis.Tis(truncation=1.5),
    "ice_pop": sis.IcePop(),
    "grpo": sis.Grpo(),
    "mask": sis.SequenceMask(0.5, 2.0),
}


class ObserveTest(EvaluatedBatchTest):
    def evaluated(self, run_id, form="gathered", **options):
        run, records = self.recorded(run_id)
        keep = ~self.lost
        options = sis.EvaluateOptions(mask=self.mask & keep, advantages=self.advantages, **options)
        evaluation = Values(records, self.logits, form).evaluate(
            self.client, run, records, draw=3, outputs=("ratios", "decisions"), options=options
        )
        return run, self.mask & keep, evaluation

    def test_micro_batches_and_replicas_add_up(self):
        _, _, whole = self.evaluated("whole", observe=OBSERVE)
        servers = two_replicas(self.addCleanup)
        one = self.client
        for name, addresses in (("small", [self.server.address]), ("replicas", [s.address for s in servers])):
            self.client = sis.Client(addresses if len(addresses) > 1 else addresses[0])
            self.addCleanup(self.client.close)
            self.client._service.micro_batch_bytes = 64
            run, _, parts = self.evaluated(name, observe=OBSERVE)
            # Decisions are keyed by the sequences' ids, not by the run's.
            self.assertEqual(dict(parts.corrections), dict(whole.corrections), name)
            step = self.client.list_steps(run, draws=[3])[3]
            self.assertEqual({k: step.corrections[k] for k in whole.corrections}, dict(whole.corrections), name)
            self.assertEqual(sum(step.distributions.residual_mass.counts), parts.totals.scored)
        self.client = one

    def test_bad_names_and_weights(self):
        with self.assertRaisesRegex(sis.InvalidArgument, "observe.0..name"):
            self.evaluated("bad", observe={"Not a label": sis.Tis()})
        with self.assertRaisesRegex(ValueError, "observe.*weight 'often'"):
            self.evaluated("bad", observe={"a": sis.Sis(weight="often")})

    @unittest.skipUnless(shutil.which("promtool"), "promtool is not installed")
    def test_promtool_finds_nothing_to_complain_of(self):
        run, records = self.recorded("scraped")
        options = sis.EvaluateOptions(
            mask=self.mask & ~self.lost, advantages=self.advantages, observe=OBSERVE
        )
        Values(records, self.logits, "gathered").evaluate(
            self.client, run, records, draw=1, options=options, prefix_curve=(1, 4), total_variation=True
        )
        with self.assertRaises(sis.NotFound):
            self.client.list_steps(run, draws=[99])
        address = self.server.said["admin"]
        page = urllib.request.urlopen(f"http://{address}/metrics").read().decode()
        for name in (
            "sis_tokens_total", "sis_abs_log_ratio_nats_bucket", "sis_correction_weight_total",
            "sis_prefix_tokens_total", "grpc_server_handled_total", "process_cpu_seconds_total",
            "sis_build_info",
        ):
            self.assertIn(f"\n{name}{{" if name != "process_cpu_seconds_total" else f"\n{name} ", page)
        self.assertIn('correction="k4"', page)
        self.assertIn('grpc_code="NotFound",grpc_method="GetStep"', page)
        checked = subprocess.run(
            ["promtool", "check", "metrics"], input=page, text=True, capture_output=True, check=False
        )
        self.assertEqual(checked.stdout + checked.stderr, "")
        self.assertEqual(checked.returncode, 0)


if __name__ == "__main__":
    unittest.main()
