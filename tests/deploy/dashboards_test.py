"""Laws of every panel: it has a description and a place, and queries metrics that exist."""

import json
import pathlib
import re
import subprocess
import tempfile
import unittest

from tests.deploy import dashboards


# Variables that Grafana gives values to by itself.
BUILT_IN = {"__rate_interval"}


class DashboardsTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.boards = {path.name: json.loads(path.read_text()) for path in dashboards.DASHBOARDS}

    def check_panels(self, check):
        """Calls check(board, panel) for each, and names those that fail."""
        for name, board in self.boards.items():
            for panel in dashboards.panels(board):
                with self.subTest(dashboard=name, panel=panel["title"]):
                    check(board, panel)

    def test_every_panel_says_what_is_normal_and_what_to_do_otherwise(self):
        def check(_, panel):
            for part in ("**Normal:** ", "**Else:** "):
                self.assertEqual(panel["description"].count(part), 1)
            self.assertLess(len(panel["description"]), 1000)

        self.check_panels(check)

    def test_every_panel_has_a_unit(self):
        self.check_panels(lambda _, panel: self.assertTrue(panel["fieldConfig"]["defaults"]["unit"]))

    def test_every_runbook_is_linked_and_there(self):
        linked = set()

        def check(_, panel):
            in_text = set(re.findall(r"\(\$\{runbooks\}/(\w+\.md)\)", panel["description"]))
            self.assertEqual(in_text, {link["url"].rpartition("/")[2] for link in panel.get("links", [])})
            linked.update(in_text)

        self.check_panels(check)
        self.assertEqual(linked, {path.name for path in pathlib.Path("docs/runbooks").glob("*.md")})

    def test_links_lead_to_places_that_the_chart_and_grafana_can_change(self):
        for board in self.boards.values():
            constants = {
                variable["name"]: variable["query"]
                for variable in board["templating"]["list"]
                if variable["type"] == "constant"
            }
            self.assertEqual(
                constants, {"runbooks": "docs/runbooks", "page": "http://localhost:9465"}
            )
            self.assertEqual([link["url"] for link in board["links"] if link["type"] == "link"], ["${page}"])
            links = [link["url"] for panel in dashboards.panels(board) for link in panel.get("links", [])]
            for url in links:
                self.assertRegex(url, r"^\$\{runbooks\}/")

    def test_titles_and_ids_are_unique(self):
        for board in self.boards.values():
            ids = [panel["id"] for panel in board["panels"]]
            titles = [panel["title"] for panel in dashboards.panels(board)]
            for values in (ids, titles):
                self.assertEqual(len(set(values)), len(values))

    def test_queries_use_variables_and_labels_that_there_are(self):
        def check(board, panel):
            known = {variable["name"] for variable in board["templating"]["list"]}
            for target in panel["targets"]:
                legend = target.get("legendFormat", "")
                used = set(re.findall(r"\$\{?(\w+)", target["expr"] + legend))
                self.assertEqual(used - known - BUILT_IN, set())
                self.assertEqual(target["datasource"]["uid"], "${datasource}")
                # A label that the query doesn't leave would be empty.
                for label in re.findall(r"{{(\$?\w+)}}", legend):
                    self.assertRegex(target["expr"], rf"by \([^)]*{re.escape(label)}\b")

        self.check_panels(check)

    def test_queries_ask_for_metrics_that_there_are(self):
        documented = dashboards.documented_metrics()

        def check(_, panel):
            for target in panel["targets"]:
                metrics = dashboards.metrics_in(target["expr"])
                self.assertTrue(metrics)
                self.assertEqual(metrics - documented, set())

        self.check_panels(check)

    def test_a_run_is_counted_once_while_its_replicas_disagree_about_its_labels(self):
        (query,) = [query for query in dashboards.queries() if query.panel == "KL divergence"]
        everything = dict.fromkeys(["job", "run", "task", "algorithm", "model"], ".*")
        series = {
            # A new incarnation with another model, which one replica doesn't know yet.
            'sis_run_info{job="sis", instance="a", run="r", incarnation="1", model="old"}': "1x20",
            'sis_run_info{job="sis", instance="b", run="r", incarnation="2", model="new"}': "1x20",
            'sis_k3_nats_total{job="sis", instance="a", run="r"}': "0+1x20",
            'sis_k3_nats_total{job="sis", instance="b", run="r"}': "0+3x20",
            'sis_tokens_total{job="sis", instance="a", run="r", decision="accepted"}': "0+100x20",
            'sis_tokens_total{job="sis", instance="b", run="r", decision="rejected"}': "0+100x20",
        }
        test = {
            "interval": "1m",
            "input_series": [{"series": name, "values": values} for name, values in series.items()],
            "promql_expr_test": [
                {
                    "expr": f"round({query.with_values({**everything, 'by': 'run', 'window': '5m'})}, 0.000001)",
                    "eval_time": "15m",
                    "exp_samples": [{"labels": '{run="r"}', "value": 0.02}],
                }
            ],
        }
        with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
            json.dump({"evaluation_interval": "1m", "tests": [test]}, file)  # which is YAML
            file.flush()
            result = subprocess.run(["promtool", "test", "rules", file.name], capture_output=True, text=True)
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)


if __name__ == "__main__":
    unittest.main()
