"""How many pods there are, where they run, and what must not take them away together.

Run by chart_test.py, in an environment that has Helm."""

import pathlib
import re
import shutil
import tempfile
import unittest

from deploy.helm import render
from tests.deploy.helm.rendered_chart import (
    INSECURE, VALUES, documents, forms, labels, matches, merged, of_kind, pods, port_names, selected,
)  # fmt: skip


def terms(key):
    """A nodeAffinity that wants nodes with a label."""
    wanted = {"nodeSelectorTerms": [{"matchExpressions": [{"key": key, "operator": "Exists"}]}]}
    return {"requiredDuringSchedulingIgnoredDuringExecution": wanted}


def lasting(objects):
    """The workloads whose pods are replaced when they go: not Jobs."""
    return [(document, template) for document, template in pods(objects) if document["kind"] != "Job"]


def of_servers(objects):
    """The lasting workloads without the Redis that the chart starts."""
    return [found for found in lasting(objects) if "admin" in port_names(found[1])]


class WorkloadChecks(unittest.TestCase):
    def test_a_disruption_takes_one_pod_of_a_workload_at_a_time(self):
        for name, values, objects in forms():
            with self.subTest(values=name):
                budgets = of_kind("PodDisruptionBudget", objects)
                for _, template in of_servers(objects):
                    (budget,) = (budget for budget in budgets if template in selected(budget, objects))
                    self.assertEqual(budget["spec"]["maxUnavailable"], 1)
                    self.assertNotIn("minAvailable", budget["spec"])
                self.assertEqual(len(budgets), len(of_servers(objects)))
                without = documents({**values, "disruptionBudget": {"enabled": False}})
                self.assertEqual(of_kind("PodDisruptionBudget", without), [])

    def test_the_values_say_how_many_there_are(self):
        for name, values, objects in forms():
            with self.subTest(values=name):
                for workload, _ in of_servers(objects):
                    scaled = values.get("autoscaling", {}).get("enabled")
                    self.assertEqual(workload["spec"].get("replicas"), None if scaled else values.get("replicaCount", 3))
                    scalers = [scaler["spec"] for scaler in of_kind("HorizontalPodAutoscaler", objects)]
                    self.assertEqual(len(scalers), 1 if scaled else 0)
                    for spec in scalers:
                        self.assertEqual(spec["scaleTargetRef"]["name"], workload["metadata"]["name"])

    def test_pods_of_a_workload_are_spread_wherever_the_values_place_them(self):
        for name, values, objects in forms():
            with self.subTest(values=name):
                for _, template in of_servers(objects):
                    spec, own = template["spec"], labels(template)
                    spread = {term["topologyKey"]: term for term in spec["topologySpreadConstraints"]}
                    self.assertEqual(set(spread), {"kubernetes.io/hostname", "topology.kubernetes.io/zone"})
                    for term in spread.values():
                        self.assertTrue(matches(term["labelSelector"], own))
                        # One node must do where there is no other.
                        self.assertEqual((term["maxSkew"], term["whenUnsatisfiable"]), (1, "ScheduleAnyway"))
                    for _, other in pods(objects):
                        if other is not template:
                            for term in spec.get("topologySpreadConstraints", []):
                                self.assertFalse(matches(term["labelSelector"], labels(other)))

    def test_servers_are_placed_by_the_values(self):
        placed = {
            "nodeSelector": {"nvidia.com/gpu.present": "true"},
            "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}],
            "affinity": {"nodeAffinity": terms("gpu")},
            "runtimeClassName": "nvidia",
        }
        for values in (placed, {}):
            for _, template in lasting(documents({**VALUES["redis"], **values})):
                expected = values if "admin" in port_names(template) else {}
                for name in placed:
                    self.assertEqual(template["spec"].get(name), expected.get(name))

    def test_an_upgrade_changes_nothing_that_kubernetes_keeps(self):
        """Covers workloads that last. A Job's pod template is immutable as a whole."""
        changeable = {
            "StatefulSet": {
                "minReadySeconds", "persistentVolumeClaimRetentionPolicy", "replicas", "template", "updateStrategy",
            },
        }  # fmt: skip

        def kept(objects):
            for document, _ in lasting(objects):
                kind, spec = document["kind"], document["spec"]
                yield kind, document["metadata"]["name"], {
                    field: spec[field] for field in spec.keys() - changeable[kind]
                }

        def differs(before, after):
            return list(kept(documents(before))) != list(kept(documents(after)))

        rocksdb = {**INSECURE, "store": {"kind": "rocksdb"}}
        with tempfile.TemporaryDirectory() as folder:
            newer = pathlib.Path(folder, "chart")
            shutil.copytree(render.CHART, newer)
            chart = (newer / "Chart.yaml").read_text()
            (newer / "Chart.yaml").write_text(re.sub(r"(?m)^(version|appVersion): .*", r"\1: 9.9.9", chart))
            for name, values, objects in forms():
                with self.subTest(values=name):
                    upgraded = list(documents(values, newer))
                    self.assertNotEqual(upgraded, objects)
                    self.assertEqual(list(kept(upgraded)), list(kept(objects)))
        for change in (
            {"replicaCount": 5},
            {"memory": {"cacheMiB": 8192}},
            {"flags": {"reader_absence": "30m"}},
            {"security": {"tlsSecret": "tls", "identitiesSecret": "identities"}},
            {"podLabels": {"a": "b"}},
            {"updateStrategy": {"type": "OnDelete"}},
        ):
            self.assertFalse(differs(rocksdb, {**rocksdb, **change}), change)
        for change in (
            {"store": {}},
            {"store": {"kind": "rocksdb", "rocksdb": {"sizeGiB": 128}}},
            {"store": {"kind": "rocksdb", "rocksdb": {"storageClass": "fast"}}},
            {"nameOverride": "ratios"},
            {"fullnameOverride": "ratios"},
        ):
            self.assertTrue(differs(rocksdb, {**rocksdb, **change}), change)

    def test_pods_are_replaced_when_a_file_changes_that_they_read_once(self):
        """As the configuration of a proxy. Secrets are read again."""

        def of_servers(**proxy):
            objects = list(documents(merged(VALUES["proxied"], {"proxy": proxy})))
            files = [document["data"] for document in of_kind("ConfigMap", objects)]
            return files, [template for _, template in pods(objects) if "admin" in port_names(template)]

        (files, templates), (other_files, other_templates) = of_servers(), of_servers(callsPerSecond=1)
        self.assertNotEqual(files, other_files)
        self.assertNotEqual(templates, other_templates)
        self.assertEqual(templates, of_servers()[1])


if __name__ == "__main__":
    unittest.main()
