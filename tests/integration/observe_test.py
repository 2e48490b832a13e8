"""Refused corrections, and Prometheus' opinion of all metrics."""

import shutil
import subprocess
import unittest
import urllib.request

import sis
from tests.integration.evaluated_batch import EvaluatedBatchTest, Values


class ObserveTest(EvaluatedBatchTest):
    def evaluated(self, run_id, observe, **keywords):
        run, records = self.recorded(run_id)
        options = sis.EvaluateOptions(mask=self.mask & ~self.lost, advantages=self.advantages, observe=observe)
        Values(records, self.logits, "gathered").evaluate(self.client, run, records, draw=1, options=options, **keywords)
        return run

    def test_bad_weights(self):
        with self.assertRaisesRegex(ValueError, "observe.*weight 'often'"):
            self.evaluated("bad", {"a": sis.Sis(weight="often")})
        with self.assertRaisesRegex(ValueError, "observe.*weight 'mean'.*ratio, one, product"):
            self.evaluated("bad", {"a": sis.SequenceMask(0, 1, "mean")})

    @unittest.skipUnless(shutil.which("promtool"), "promtool is not installed")
    def test_promtool_finds_nothing_to_complain_of(self):
        run = self.evaluated("scraped", {"k4": sis.Sis(top_k=4)}, prefix_curve=(1, 4), total_variation=True)
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
