"""The recording rules and alerts: Prometheus takes them, every one has tests that it passes, and
every alert has its page."""

import pathlib
import re
import subprocess
import tempfile
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

    def test_alerts_of_runs_fire_for_their_findings(self):
        """Not before their time, and of findings about draws not once a run has ended."""
        for alert in self.alerts_of_runs():
            of_training = "sis_training_findings" in alert["expr"]
            series = [
                (f'sis_run_findings{{job="sis", instance="{instance}", run="{run}", rule="{rule}"}}', "1x60")
                for instance, run, rule in (
                    ("a:9464", "a", alert["alert"]), ("b:9464", "ended", alert["alert"]), ("b:9464", "other", "Other")
                )
            ]  # fmt: skip
            tokens = 'sis_tokens_total{job="sis", run="%s", decision="missing", age="unknown"}'
            series += [(tokens % "a", "0+9x60"), (tokens % "ended", "9x60"), (tokens % "other", "0+9x60")]
            (label,) = re.findall(r"\$labels\.(\w+)", alert["annotations"]["summary"])
            firing = [("a", "a:9464")] if of_training else [("a", "a:9464"), ("ended", "b:9464")]
            expected = [
                {
                    "exp_labels": {**alert["labels"], "job": "sis", label: dict(run=run, instance=instance)[label]},
                    "exp_annotations": {
                        name: text.replace("{{ $labels.run }}", run).replace("{{ $labels.instance }}", instance)
                        for name, text in alert["annotations"].items()
                    },
                }
                for run, instance in firing
            ]
            minutes = int(alert.get("for", "0m")[:-1])
            case = {
                "interval": "1m",
                "input_series": [{"series": name, "values": values} for name, values in series],
                "alert_rule_test": [
                    {"eval_time": "40m", "alertname": alert["alert"], "exp_alerts": expected},
                    *([{"eval_time": f"{minutes - 1}m", "alertname": alert["alert"], "exp_alerts": []}] if minutes else []),
                ],
            }
            rules = [str(path.resolve()) for path in (dashboards.RULES, dashboards.ALERTS)]
            with self.subTest(alert["alert"]), tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
                yaml.safe_dump({"rule_files": rules, "evaluation_interval": "1m", "tests": [case]}, file)
                file.flush()
                self.promtool("test", "rules", file.name)

    def alerts_of_runs(self):
        return [alert for alert in self.alerts if f'{{rule="{alert["alert"]}"}}' in alert["expr"]]

    def test_every_alert_is_seen_to_fire_and_to_be_silent(self):
        fires, silent = set(), set()
        for test in yaml.safe_load((FOLDER / "alerts.test.yaml").read_text())["tests"]:
            for case in test["alert_rule_test"]:
                (fires if case["exp_alerts"] else silent).add(case["alertname"])
        of_runs = {alert["alert"] for alert in self.alerts_of_runs()}
        self.assertGreater(len(of_runs), 10)
        names = {alert["alert"] for alert in self.alerts} - of_runs
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
            # In the repository. The chart puts links.runbooks in its place.
            place, _, name = alert["annotations"]["runbook_url"].rpartition("/")
            self.assertEqual(place, "docs/runbooks")
            page = RUNBOOKS / name
            pages.add(page)
            text = page.read_text()
            self.assertEqual(text.splitlines()[0], f"# {alert['alert']}")
            for part in ("**How to see it.**", "**What to do"):
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
