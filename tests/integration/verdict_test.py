"""Runs with known faults, on a real server: each gets the verdict that says so, and a healthy one none."""

import unittest

import numpy as np
import sis
from server.testing.live_server import LiveServer
from tests.integration.faulty_training import FaultyTraining


class VerdictTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = LiveServer(cache_bytes=256 << 20)
        cls.addClassCleanup(cls.server.close)
        cls.client = sis.Client(cls.server.address)
        cls.addClassCleanup(cls.client.close)

    def evaluated(self, name, draws=4, load=None, **fault):
        """Returns the server's verdict on a run after `draws` draws with this fault."""
        training = FaultyTraining(self.client, name, **(load or {}))
        for draw in range(draws):
            training.evaluate(draw, **fault)
        return self.judged(training)

    def judged(self, training):
        """The rules that a run is beyond, as all who tell them do."""
        status = self.client.get_run(training.run.id)
        (listed,) = [run for run in self.client.list_runs() if run.run.id == training.run.id]
        rules = [finding.rule for finding in status.findings]
        self.assertEqual((listed.verdict, [finding.rule for finding in listed.findings]), (status.verdict, rules))
        worst = max([sis.Verdict.HEALTHY, *(finding.verdict for finding in status.findings)])
        self.assertEqual(status.verdict, worst)
        metrics, label = self.server.metrics(), f'run="{training.run.id}"'
        self.assertEqual(metrics[f"sis_run_verdict{{{label}}}"], status.verdict - sis.Verdict.HEALTHY)
        counted = [name for name in metrics if name.startswith("sis_run_findings{") and label in name]
        self.assertEqual(sorted(counted), sorted(f'sis_run_findings{{rule="{rule}",{label}}}' for rule in rules))
        for finding in status.findings:
            self.assertTrue(finding.reason and finding.action)
        return status, rules

    def test_a_collapse_of_the_accept_rate(self):
        training = FaultyTraining(self.client, "collapse")
        for draw in range(8):
            training.evaluate(draw)
        self.assertEqual(self.judged(training)[1], [])
        for draw in range(8, 12):
            training.evaluate(draw, noise=0.6)
        self.assertIn("SisAcceptRateCollapsing", self.judged(training)[1])

    def test_missing_tokens(self):
        status, rules = self.evaluated("missing", lost=40)
        self.assertEqual(rules, ["SisMissingTokens"])
        self.assertIn("2.6% never arrived", status.findings[0].reason)

    def test_unusable_log_probs(self):
        status, rules = self.evaluated("unusable", lost=40, reason=sis.MissingReason.NO_LOG_PROB)
        self.assertEqual(rules, ["SisUnusableLogProbs"])
        self.assertIn("none 2.6%", status.findings[0].reason)

    def test_unknown_versions(self):
        status, rules = self.evaluated("unknown", lost=1, reason=sis.MissingReason.UNKNOWN_VERSION)
        self.assertEqual(rules, ["SisUnknownVersion"])
        self.assertIn("did not announce", status.findings[0].reason)

    def test_refused_entries(self):
        training = FaultyTraining(self.client, "refused")
        for draw in range(2):
            training.evaluate(draw)
        top = {
            "top_k_ids": np.arange(40, dtype=np.int32)[None],
            "top_k_log_probs": np.full((1, 40), -5, np.float32),
            "sampled_ids": np.ones(1, np.int32),
            "sampled_log_probs": np.full(1, -5, np.float32),
        }
        with self.assertRaises(sis.Error), training.append() as stream:
            for version in (0, 1):
                stream.block("changed", first_position=0, policy_version=version, **top)
        status, rules = self.judged(training)
        self.assertEqual(rules, ["SisEntriesRefused"])
        self.assertIn("ALREADY_EXISTS", status.findings[0].reason)

    def test_failing_evaluations(self):
        training = FaultyTraining(self.client, "failing")
        training.evaluate(0)
        (part, *_) = training.records.slices
        wrong = sis.Slice(part.sequence, length=part.length, record_digest=1)
        with self.assertRaises(sis.FailedPrecondition):
            self.client.evaluate(
                training.run,
                [wrong],
                draw=1,
                log_probs=np.full((part.length, 40), -9, np.float32),
                sampled_log_probs=np.full(part.length, -9, np.float32),
            )
        status, rules = self.judged(training)
        self.assertEqual(rules, ["SisEvaluationsRefused"])
        self.assertEqual(status.verdict, sis.Verdict.BROKEN)
        self.assertRegex(status.findings[0].reason, r"\d of the last \d evaluations failed \(FAILED_PRECONDITION\)")


if __name__ == "__main__":
    unittest.main()
