"""That the Prometheus operator finds the rendered servers under the name for which the rendered rules and
dashboards ask.

Run by chart_test.py, in an environment that has Helm."""

import json
import pathlib
import re
import shutil
import tempfile
import unittest

import helm_python

from deploy.helm import render
from tests.deploy.helm.rendered_chart import INSECURE, documents, labels, of_kind, selected

MONITORED = {name: {"enabled": True} for name in ("serviceMonitor", "prometheusRules", "dashboards")}
FORMS = (
    {"form": "replicas"},
    {"form": "sidecar", "sidecar": {"trainer": {"image": "trainer"}}},
)


def job_of(monitor, pod):
    """The label `job` of what a ServiceMonitor's endpoints scrape, as the operator and Prometheus make it."""
    spec = monitor["spec"]
    for endpoint in spec["endpoints"]:
        target = {"job": monitor["metadata"]["name"]}
        if "jobLabel" in spec:
            target["job"] = labels(pod).get(spec["jobLabel"], target["job"])
        for relabeling in endpoint.get("relabelings", []):
            assert relabeling.keys() == {"action", "targetLabel", "replacement"}, relabeling
            assert relabeling["action"] == "replace", relabeling
            target[relabeling["targetLabel"]] = relabeling["replacement"]
        yield target["job"]


def asked_for(expression):
    """Yields the matchers of `job` as regular expressions, except variables that a reader chooses."""
    for operator, value in re.findall(r'\bjob(=~?)"([^"]*)"', expression):
        if not value.startswith("$"):
            yield re.escape(value) if operator == "=" else value


def texts(node):
    """All strings of a document."""
    if isinstance(node, str):
        yield node
    elif isinstance(node, (dict, list)):
        for part in node.values() if isinstance(node, dict) else node:
            yield from texts(part)


class MonitoringChecks(unittest.TestCase):
    def test_links_lead_where_the_values_say(self):
        def said(**links):
            objects = list(documents({**INSECURE, **MONITORED, "links": links}))
            (rules,) = of_kind("PrometheusRule", objects)
            alerts = [rule for group in rules["spec"]["groups"] for rule in group["rules"] if "alert" in rule]
            files = [text for document in of_kind("ConfigMap", objects) for text in document["data"].values()]
            return alerts, list(map(json.loads, files))

        example = ("docs/runbooks", "http://localhost:9465")
        self.assertEqual(said(), said(runbooks=example[0], page=example[1]))
        runbooks, page = "https://wiki.example.com/sis?page=", "https://sis.example.com:8443/page"
        alerts, boards = said(runbooks=runbooks, page=page)
        for alert, before in zip(alerts, said()[0], strict=True):
            name = before["annotations"]["runbook_url"].removeprefix(example[0])
            self.assertEqual(alert["annotations"]["runbook_url"], runbooks + name)
        for board in boards:
            constants = {variable["name"]: variable.get("query") for variable in board["templating"]["list"]}
            self.assertEqual((constants["runbooks"], constants["page"]), (runbooks, page))
        for place in example:
            self.assertNotIn(place, json.dumps([alerts, boards]))

    def test_dashboards_that_were_not_generated_are_refused(self):
        with tempfile.TemporaryDirectory() as folder:
            chart = pathlib.Path(folder, "chart")
            shutil.copytree(render.CHART, chart, ignore=shutil.ignore_patterns("rl_run.json", "service.json"))
            with self.assertRaisesRegex(helm_python.HelmError, "deploy.grafana.generate"):
                render.render({**INSECURE, **MONITORED}, chart)
            render.render(INSECURE, chart)

    def test_rules_and_dashboards_ask_for_the_job_that_the_monitor_makes(self):
        for form in FORMS:
            with self.subTest(form=form):
                objects = list(documents({**INSECURE, **MONITORED, **form}))
                (monitor,) = of_kind("ServiceMonitor", objects)
                (pod,) = selected(monitor, objects)
                (job,) = job_of(monitor, pod)
                files = [text for document in of_kind("ConfigMap", objects) for text in document["data"].values()]
                dashboards = list(map(json.loads, files))
                self.assertEqual(len(dashboards), 2)
                found = texts(of_kind("PrometheusRule", objects) + dashboards)
                asked = [matcher for text in found for matcher in asked_for(text)]
                self.assertTrue(asked)
                for matcher in asked:
                    self.assertRegex(job, f"^(?:{matcher})$")


if __name__ == "__main__":
    unittest.main()
