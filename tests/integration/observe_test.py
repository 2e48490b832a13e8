"""Corrections side by side through the client, on one server and on two, and what Prometheus thinks
of all metrics."""

import shutil
import subprocess
import unittest
import urllib.request

import numpy as np
import sis
from server.testing.live_server import two_replicas
from tests.integration.evaluated_batch import LENGTHS, EvaluatedBatchTest, Values

OBSERVE = {
    "k4": sis.Sis(top_k=4),
    "expected": sis.Sis(weight="expected"),
    "tis": sis.Tis(truncation=1.5),
    "ice_pop": sis.IcePop(),
    "grpo": sis.Grpo(),
    "mask": sis.SequenceMask(0.5, 2.0),
    "product": sis.SequenceMask(0.0, 1e9, "product"),
    "one": sis.SequenceMask(0.5, 2.0, "one"),
    "token": sis.TokenMask(0.1),
}


def weights_of(correction, log_p, log_q):
    """The weights [n] of one slice, in float64."""
    w = np.exp(log_p - log_q)
    if isinstance(correction, sis.Tis):
        return np.minimum(w, correction.truncation)
    if isinstance(correction, sis.TokenMask):
        return np.where(np.abs(np.exp(log_p) - np.exp(log_q)) > correction.max_distance, 0, w)
    product = np.prod(w)
    measure = product if correction.weight == "product" else product ** (1 / len(w))
    kept = {"ratio": w, "one": np.ones_like(w), "product": np.full_like(w, product)}[correction.weight]
    return kept if correction.lower <= measure <= correction.upper else np.zeros_like(w)


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

    def test_presets_of_frameworks_in_float64(self):
        run, records = self.recorded("presets")
        values = Values(records, self.logits, "gathered")
        keep = self.mask & ~self.lost
        ends = np.cumsum(list(LENGTHS.values()))
        slices = [np.arange(end - length, end)[keep[end - length : end]] for end, length in zip(ends, LENGTHS.values())]
        log_p, log_q = values.sampled.astype(np.float64), records.sampled_log_probs.astype(np.float64)
        # Presets drop whole slices of so distant policies. With bounds about the measure of b they keep b alone.
        b = slices[1]
        near = {"one": np.exp((log_p - log_q)[b].mean()), "product": np.exp((log_p - log_q)[b].sum())}
        near["ratio"] = near["one"]
        observe = dict(sis.PRESETS)
        for name, preset in sis.PRESETS.items():
            if isinstance(preset, sis.SequenceMask):
                center = near[preset.weight]
                observe[f"{name}_b"] = sis.SequenceMask(0.999 * center, 1.001 * center, preset.weight)
        options = sis.EvaluateOptions(mask=keep, advantages=self.advantages, observe=observe)
        found = values.evaluate(self.client, run, records, draw=1, options=options).corrections
        w = np.concatenate([np.exp(log_p - log_q)[rows] for rows in slices])
        advantages = np.abs(np.concatenate([self.advantages[rows] for rows in slices]))
        for name, correction in observe.items():
            weights = np.concatenate([weights_of(correction, log_p[rows], log_q[rows]) for rows in slices])
            totals, above = found[name], weights > 0
            self.assertEqual(totals.positions, len(weights))
            self.assertEqual(totals.zeroed, (~above).sum(), name)
            self.assertEqual(totals.touched, (np.abs(weights - w) > 1e-6 * w).sum(), name)
            for value, expected in (
                (totals.weight, weights.sum()),
                (totals.weight_squared, (weights**2).sum()),
                (totals.abs_log_weight, np.abs(np.log(weights[above])).sum()),
                (totals.gradient_mass, (weights * advantages).sum()),
            ):
                # Each weight is counted in steps of 2^-16.
                self.assertAlmostEqual(value, expected, delta=len(weights) * 2**-17 + 1e-5 * expected, msg=name)
            if name.endswith("_b"):
                self.assertEqual(totals.zeroed, len(weights) - len(b), name)
        self.assertTrue(0 < found["prime_rl"].zeroed < len(w) / 2 and found["tis"].touched)

    def test_bad_names_and_weights(self):
        with self.assertRaisesRegex(sis.InvalidArgument, "observe.0..name"):
            self.evaluated("bad", observe={"Not a label": sis.Tis()})
        with self.assertRaisesRegex(ValueError, "observe.*weight 'often'"):
            self.evaluated("bad", observe={"a": sis.Sis(weight="often")})
        with self.assertRaisesRegex(ValueError, "observe.*weight 'mean'.*ratio, one, product"):
            self.evaluated("bad", observe={"a": sis.SequenceMask(0, 1, "mean")})

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
