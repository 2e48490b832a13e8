"""Laws of everything that the chart renders: Helm's, Kubernetes', and those of the chart's examples.

Run by chart_test.py, in an environment that has Helm and Kubernetes' schemas."""

import pathlib
import tempfile
import unittest
from unittest import mock

import helm_python
import yaml

from deploy.helm import render
from tests.deploy.helm.rendered_chart import (
    ADDITIONS, INSECURE, VALUES, containers, documents, forms, is_own, kubernetes_takes, labels, matches, merged,
    of_kind, pods, selected, selector, servers,
)  # fmt: skip

SELECTS_NOTHING = {
    "Certificate", "ConfigMap", "HorizontalPodAutoscaler", "Job", "Pod", "PrometheusRule", "ServiceAccount",
}  # fmt: skip


def selects(document, pod):
    return document["kind"] not in SELECTS_NOTHING and matches(selector(document), labels(pod))


class ChartChecks(unittest.TestCase):
    def test_lint_finds_nothing_but_the_missing_icon(self):
        for values in ({}, *VALUES.values()):
            found = helm_python.lint(str(render.CHART), values)
            self.assertEqual([message["error"] for message in found["messages"]], ["icon is recommended"])

    def test_manifests_for_kubectl_are_the_examples(self):
        with tempfile.TemporaryDirectory() as folder, mock.patch("sys.argv", ["render.py", folder]):
            render.main()
            written = {path.name: path.read_text() for path in pathlib.Path(folder).iterdir()}
        self.assertEqual(set(written), {f"kubernetes-{example.name}" for example in render.examples()})
        for name, text in written.items():
            with self.subTest(manifest=name):
                kubernetes_takes(list(filter(None, yaml.safe_load_all(text))))

    def test_kubernetes_takes_all_of_it(self):
        for name, _, objects in forms():
            with self.subTest(values=name):
                kubernetes_takes(objects)

    def test_what_is_optional_is_there_when_it_is_asked_for(self):
        kinds = {document["kind"] for document in documents(VALUES["everything"])}
        self.assertLessEqual({"Certificate", "ServiceMonitor", "PrometheusRule", "ConfigMap"}, kinds)
        kinds = {document["kind"] for document in documents(INSECURE)}
        self.assertFalse(kinds & {"Certificate", "ServiceMonitor", "PrometheusRule", "ConfigMap"})

    def test_helm_test_has_a_pod_where_it_can_call(self):
        """Its containers are as those of servers, and no manifest for kubectl has it."""
        tokens = {"tlsSecret": "tls", "identitiesSecret": "identities"}
        client = {"test": {"clientSecret": "client"}}
        for values, called in (
            (INSECURE, 3),
            ({**INSECURE, "replicaCount": 9}, 9),
            ({"security": tokens, **client}, 3),
            ({"security": tokens}, 0),
            ({"security": {"insecure": True, "tlsSecret": "tls"}}, 0),
            ({"security": {"insecure": True, "identitiesSecret": "identities"}}, 3),
            (VALUES["certified"], 0),
            ({**VALUES["certified"], **client}, 3),
            (VALUES["sidecar"], 0),
        ):
            with self.subTest(values=values):
                objects = list(documents(values))
                found = of_kind("Pod", objects)
                self.assertEqual(sum(len(pod["spec"]["containers"]) for pod in found), called)
                for pod in found:
                    self.assertEqual(pod["metadata"]["annotations"]["helm.sh/hook"], "test")
                    self.assertEqual(pod["spec"]["restartPolicy"], "Never")
                    (server,) = servers(objects)
                    for container in pod["spec"]["containers"]:
                        for same in ("image", "imagePullPolicy", "securityContext"):
                            self.assertEqual(container[same], server[same])
                    # Nothing stands in the way, and it is nobody's client or server.
                    self.assertEqual([], [document for document in objects if selects(document, pod)])
        for example in render.examples():
            self.assertNotIn("helm.sh/hook", render.manifest(example))

    def test_no_container_may_do_more_than_it_must(self):
        for name, _, objects in forms():
            with self.subTest(values=name):
                for _, template in pods(objects):
                    pod = template["spec"]
                    self.assertIs(pod["automountServiceAccountToken"], False)
                    self.assertIs(pod["securityContext"]["runAsNonRoot"], True)
                    self.assertGreater(pod["securityContext"]["runAsUser"], 0)
                    self.assertEqual(pod["securityContext"]["seccompProfile"], {"type": "RuntimeDefault"})
                    for container in containers(template):
                        may = container["securityContext"]
                        self.assertIs(may["allowPrivilegeEscalation"], False)
                        self.assertEqual(may["capabilities"], {"drop": ["ALL"]})
                        self.assertNotIn("privileged", may)
                        if not is_own(container):
                            continue  # whose image and needs are the user's
                        self.assertIs(may["readOnlyRootFilesystem"], True)
                        self.assertIn("memory", container["resources"]["limits"])

    def test_every_selector_finds_the_pods_that_it_means_and_no_others(self):
        for name, _, objects in forms():
            with self.subTest(values=name):
                for document in objects:
                    if document["kind"] in SELECTS_NOTHING:
                        continue
                    found = [labels(pod)["app.kubernetes.io/component"] for pod in selected(document, objects)]
                    self.assertEqual(found, [document["metadata"]["labels"]["app.kubernetes.io/component"]], document)

    def test_no_two_objects_of_a_kind_have_one_name(self):
        for name, _, objects in forms():
            with self.subTest(values=name):
                names = [(document["kind"], document["metadata"]["name"]) for document in objects]
                self.assertEqual(len(set(names)), len(names))

    def test_everything_is_called_as_the_values_say(self):
        for given, name, of_chart in (
            ({}, "sis-ratio-service", "sis-ratio-service"),
            ({"nameOverride": "ratios"}, "sis-ratio-service-ratios", "ratios"),
            ({"nameOverride": "ratio"}, "sis-ratio-service", "ratio"),  # which the release's name has in it
            ({"fullnameOverride": "a", "nameOverride": "b"}, "a", "b"),
        ):
            for form, values in VALUES.items():
                with self.subTest(given=given, form=form):
                    values = {key: value for key, value in values.items() if not key.endswith("Override")}
                    for document in documents({**values, **given}):
                        metadata = document["metadata"]
                        if metadata["name"] != values.get("serviceAccount", {}).get("name"):
                            self.assertRegex(metadata["name"], rf"^{name}(-\D|$)")
                        self.assertLessEqual(len(metadata["name"]), 63)
                        self.assertEqual(metadata["labels"]["app.kubernetes.io/name"], of_chart)

    def test_servers_pods_have_what_is_added(self):
        for values in ({**INSECURE, "store": {"kind": "rocksdb"}}, VALUES["sidecar"]):
            ((_, template),) = pods(documents(merged(values, ADDITIONS)))
            spec = template["spec"]
            self.assertEqual(spec["runtimeClassName"], "nvidia")
            self.assertEqual([added for added in ADDITIONS["extraVolumes"] if added not in spec["volumes"]], [])
            (server,) = (container for container in containers(template) if container["name"] == "server")
            self.assertEqual([added for added in ADDITIONS["extraVolumeMounts"] if added not in server["volumeMounts"]], [])
            self.assertEqual([added for added in ADDITIONS["extraContainers"] if added not in spec["containers"]], [])
            # A sidecar's server is an init container that goes on.
            self.assertEqual(spec["initContainers"][:1], ADDITIONS["extraInitContainers"])

    def test_all_pods_run_as_the_account_of_the_values(self):
        for account, name, made in (
            ({}, render.RELEASE, True),
            ({"name": "own"}, "own", True),
            ({"create": False, "name": "theirs"}, "theirs", False),
            ({"create": False}, "default", False),
        ):
            for form in ("redis", "sidecar"):
                with self.subTest(account=account, form=form):
                    objects = list(documents({**VALUES[form], "serviceAccount": account}))
                    self.assertEqual({template["spec"]["serviceAccountName"] for _, template in pods(objects)}, {name})
                    accounts = [each["metadata"]["name"] for each in of_kind("ServiceAccount", objects)]
                    self.assertEqual(accounts, [name] if made else [])

    def test_volumes_stay_unless_the_values_say_otherwise(self):
        for given, scaled in (({}, "Retain"), ({"whenScaled": "Delete"}, "Delete")):
            rocksdb = {"kind": "rocksdb", "rocksdb": {"persistentVolumeClaimRetentionPolicy": given}}
            (workload,) = of_kind("StatefulSet", documents({**INSECURE, "store": rocksdb}))
            kept = workload["spec"]["persistentVolumeClaimRetentionPolicy"]
            self.assertEqual(kept, {"whenDeleted": "Retain", "whenScaled": scaled})

    def test_the_values_replace_computed_resources_and_contexts_field_by_field(self):
        values = {"resources": {"requests": {"cpu": "500m"}, "limits": {"memory": "9Gi"}}}
        values |= {"podSecurityContext": {"fsGroup": 7}, "securityContext": {"runAsUser": 8}, "extraEnv": [{"name": "A"}]}
        before, after = ({"objects": list(documents({**INSECURE, **more}))} for more in ({}, values))
        for rendered in (before, after):
            (rendered["server"],) = servers(rendered["objects"])
            ((_, template),) = pods(rendered["objects"])
            rendered["pod"] = template["spec"]["securityContext"]
        computed, given = before["server"]["resources"], after["server"]["resources"]
        self.assertEqual(given, {"requests": {**computed["requests"], "cpu": "500m"}, "limits": {"memory": "9Gi"}})
        self.assertEqual(after["pod"], {**before["pod"], "fsGroup": 7})
        self.assertEqual(
            after["server"]["securityContext"], {**before["server"]["securityContext"], "runAsUser": 8}
        )
        self.assertEqual((before["server"].get("env"), after["server"]["env"]), (None, [{"name": "A"}]))

    def test_the_memory_limit_covers_what_the_server_may_take(self):
        def limit(gpu=0, store="memory", **memory):
            values = {"memory": memory, "gpu": {"count": gpu}, "store": {"kind": store}}
            (server,) = servers(documents({**INSECURE, **values}))
            self.assertEqual(server["resources"]["requests"]["memory"], server["resources"]["limits"]["memory"])
            return int(server["resources"]["limits"]["memory"].removesuffix("Mi"))

        least = limit(cacheMiB=64)
        self.assertGreater(least, 64)
        # A sixteenth more than the cache is for the totals of steps.
        self.assertEqual(limit(cacheMiB=64 + 16000) - least, 17000)
        # Messages as they are received, and as they are parsed.
        self.assertEqual(limit(cacheMiB=64, messageMiB=65) - least, 16 + 16)
        self.assertEqual(limit(cacheMiB=64, runs=65) - least, 3)
        # Write buffers and block cache of RocksDB (docs/configuration.md, "Memory").
        self.assertEqual(limit(cacheMiB=64, store="rocksdb") - least, 96 + 32)
        # 40 MiB are pinned for the device, and its driver takes memory of its own.
        self.assertGreater(limit(cacheMiB=64, gpu=1) - least, 40)


if __name__ == "__main__":
    unittest.main()
