"""The recording rules and alerts: Prometheus takes them, every one has tests that it passes, and
every alert has its page."""

import pathlib
import subprocess
import unittest

import yaml

from tests.deploy import dashboards

FOLDER = pathlib.Path("tests/deploy")
RUNBOOKS = pathlib.Path("docs/runbooks")


class RulesTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.alerts, cls.recorded = dashboards.rules_in(dashboards.ALERTS), dashboards.rules_in(dashboards.RULES)

    def promtool(self, *arguments):
        result = subprocess.run(["promtool", *map(str, arguments)], capture_output=True, text=True)
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)

    def test_prometheus_takes_them_with_the_example_of_a_configuration(self):
        self.promtool("check", "rules", "--lint=all", "--lint-fatal", dashboards.RULES, dashboards.ALERTS)
        self.promtool("check", "config", "--lint-fatal", "deploy/prometheus/prometheus.yml")

    def test_they_pass_their_tests(self):
        self.promtool("test", "rules", FOLDER / "rules.test.yaml", FOLDER / "alerts.test.yaml")

    def test_every_alert_is_seen_to_fire_and_to_be_silent(self):
        fires, silent = set(), set()
        for test in yaml.safe_load((FOLDER / "alerts.test.yaml").read_text())["tests"]:
            for case in test["alert_rule_test"]:
                (fires if case["exp_alerts"] else silent).add(case["alertname"])
        names = {alert["alert"] for alert in self.alerts}
        self.assertGreater(len(names), 10)
        self.assertEqual(fires, names)
        self.assertEqual(silent, names)

    def test_every_recording_rule_has_a_value_in_a_test(self):
        tests = yaml.safe_load((FOLDER / "rules.test.yaml").read_text())["tests"]
        tested = [case["expr"] for test in tests for case in test["promql_expr_test"] if case["exp_samples"]]
        for rule in self.recorded:
            self.assertTrue([text for text in tested if rule["record"] in text], rule["record"])

    def test_every_alert_has_a_page_that_says_what_to_do(self):
        pages = set()
        for alert in self.alerts:
            # Of example.org, in whose place the chart puts links.runbooks.
            place, _, name = alert["annotations"]["runbook_url"].rpartition("/")
            self.assertEqual(place, "https://example.org/docs/runbooks")
            page = RUNBOOKS / name
            pages.add(page)
            text = page.read_text()
            self.assertEqual(text.splitlines()[0], f"# {alert['alert']}")
            for part in ("**What it means.**", "**How to see it.**", "**What to do"):
                self.assertIn(part, text, page)
        self.assertEqual(pages, set(RUNBOOKS.glob("*.md")))

    def test_they_ask_for_metrics_that_there_are(self):
        documented = dashboards.documented_metrics()
        for rule in self.alerts + self.recorded:
            self.assertEqual(dashboards.metrics_in(rule["expr"]) - documented, set(), rule)

    def test_what_is_recorded_is_read_and_the_other_way_round(self):
        recorded = {rule["record"] for rule in self.recorded}
        read = {name for rule in self.alerts + self.recorded for name in dashboards.recorded_in(rule["expr"])}
        self.assertEqual(read, recorded)


if __name__ == "__main__":
    unittest.main()
