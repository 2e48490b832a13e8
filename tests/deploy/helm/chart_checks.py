"""What must hold of whatever the chart renders, and that its flags start real servers.

Run by chart_test.py, in an environment that has Helm and Kubernetes' schemas."""

import json
import os
import pathlib
import re
import tempfile
import time
import unittest
import unittest.mock

import helm_python
import kubernetes_validate
import numpy as np
import yaml

import sis
from client.demo import arms
from client.demo.settings import Settings
from client.study.miniature import Miniature
from deploy.helm import render
from server.testing import certificates
from tests.deploy import one_step
from tests.deploy.helm import rendered_servers, reset_flood
from tests.deploy.helm.rendered_chart import INSECURE, VALUES, documents

# The oldest that Chart.yaml allows, and the newest whose schemas are there.
KUBERNETES = ("1.29", "1.37")
# Of the Prometheus operator and cert-manager; Kubernetes has no schema of them.
CUSTOM = {"Certificate", "PodMonitor", "PrometheusRule"}
SELECTS_NOTHING = {"Certificate", "ConfigMap", "PrometheusRule", "HorizontalPodAutoscaler", "Job"}
# The demonstration, as small as it can be and still learn something.
DEMO = Settings(
    digits=1, warm_up_accuracy=0.15, rollouts=2, prompts=8, group=4, updates=3, learning_rate=3e-3
)
# Values that are refused, with what the refusal must name.
NONSENSE = (
    ({"form": "cluster"}, "form"),
    ({"serverz": 3}, "serverz"),
    ({"servers": 0}, "servers"),
    ({"servers": "three"}, "servers"),
    ({"memory": {"cacheMiB": 1}}, "cacheMiB"),
    ({"memory": {"sharedMiB": 64}}, "sharedMiB"),
    ({"memory": {"messageMiB": 2048}}, "messageMiB"),
    ({"form": "sidecar", "sidecar": {"trainer": {"image": "a"}}}, "sharedMiB"),
    ({"form": "sidecar", "memory": {"sharedMiB": 64}}, "sidecar.trainer.image"),
    ({"form": "fleet", "store": {"kind": "rocksdb"}}, "kind"),
    ({"autoscaler": {"enabled": True}}, "enabled"),
    ({"gpu": {"count": 2}}, "count"),
    ({}, "security"),
    ({"security": {"tlsSecret": "tls"}}, "security"),
    ({"security": {"identitiesSecret": "identities"}}, "security"),
    ({"security": {"insecure": True, "certManager": {"enabled": True}}}, "security.certManager"),
    ({"security": {"tlsSecret": "No Secret"}}, "tlsSecret"),
    ({"image": {"digest": "latest"}}, "digest"),
    ({"user": 0}, "user"),
    ({"ports": {"grpc": 443}}, "grpc"),
    ({**INSECURE, "flags": {"listen": "0.0.0.0:1"}}, "listen"),
    ({"flags": {"steps_kept": 4194304}}, "steps_kept"),
    ({**INSECURE, "proxy": {"enabled": True, "callsPerSecond": 0}}, "callsPerSecond"),
    ({"security": {"tlsSecret": "tls", "clientCertificates": True}, "proxy": {"enabled": True}}, "proxy.enabled"),
)


def pods(values):
    """The pod templates, with the object that holds each."""
    for document in documents(values):
        template = document.get("spec", {}).get("template")
        if template:
            yield document, template


def containers(template):
    return template["spec"].get("initContainers", []) + template["spec"]["containers"]


def selectors(document):
    """What a document selects pods by."""
    spec = document["spec"]
    if document["kind"] == "Service":
        return [spec["selector"]]
    found = []
    for name in ("selector", "podSelector"):
        if name in spec:
            found.append(spec[name]["matchLabels"])
    return found


class ChartChecks(unittest.TestCase):
    def test_lint_finds_nothing_but_the_missing_icon(self):
        found = helm_python.lint(str(render.CHART))
        self.assertEqual([message["error"] for message in found["messages"]], ["icon is recommended"])

    def test_the_schema_knows_every_value_and_no_other(self):
        def names(values, place=""):
            for name, value in values.items():
                yield place + name
                if isinstance(value, dict):
                    yield from names(value, f"{place}{name}.")

        def known(schema, place=""):
            for name, part in schema.get("properties", {}).items():
                yield place + name
                yield from known(part, f"{place}{name}.")

        schema = json.loads((render.CHART / "values.schema.json").read_text())
        defaults = yaml.safe_load((render.CHART / "values.yaml").read_text())
        free = "dashboards.labels."  # labels have names of their own
        has = {name for name in names(defaults) if not name.startswith(free)}
        self.assertEqual(has, set(known(schema)) - {"global"})

    def test_nonsense_is_refused_by_name(self):
        for values, name in NONSENSE:
            with self.subTest(values=values):
                with self.assertRaises(helm_python.HelmError) as refused:
                    render.render(values)
                self.assertIn(name, str(refused.exception))

    def test_the_manifests_are_what_the_chart_renders(self):
        folder = pathlib.Path("deploy/kubernetes")
        self.assertEqual({path.name for path in folder.glob("*.yaml")}, {path.name for path in render.examples()})
        for example in render.examples():
            self.assertEqual(
                (folder / example.name).read_text(),
                render.manifest(example),
                "run deploy/helm/render.py deploy/kubernetes",
            )

    def test_kubernetes_takes_all_of_it(self):
        for name, values in VALUES.items():
            with self.subTest(values=name):
                for document in documents(values):
                    if document["kind"] in CUSTOM:
                        continue
                    for version in KUBERNETES:
                        kubernetes_validate.validate(document, version, strict=True)

    def test_what_is_optional_is_there_when_it_is_asked_for(self):
        kinds = {document["kind"] for document in documents(VALUES["everything"])}
        self.assertLessEqual({"Certificate", "PodMonitor", "PrometheusRule", "ConfigMap"}, kinds)
        kinds = {document["kind"] for document in documents(INSECURE)}
        self.assertFalse(kinds & {"Certificate", "PodMonitor", "PrometheusRule", "ConfigMap"})

    def test_no_container_may_do_more_than_it_must(self):
        for name, values in VALUES.items():
            with self.subTest(values=name):
                for _, template in pods(values):
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
                        if container["name"] == "trainer":
                            continue  # whose image and needs are the user's
                        self.assertIs(may["readOnlyRootFilesystem"], True)
                        self.assertIn("memory", container["resources"]["limits"])
                        self.assertIn("readinessProbe", container)
                        self.assertIn("livenessProbe", container)

    def test_every_selector_finds_the_pods_that_it_means_and_no_others(self):
        for name, values in VALUES.items():
            with self.subTest(values=name):
                labels = [template["metadata"]["labels"] for _, template in pods(values)]
                for document in documents(values):
                    if document["kind"] in SELECTS_NOTHING:
                        continue
                    (selector,) = selectors(document)
                    found = [pod for pod in labels if selector.items() <= pod.items()]
                    component = document["metadata"]["labels"]["app.kubernetes.io/component"]
                    self.assertEqual([pod["app.kubernetes.io/component"] for pod in found], [component], document)

    def test_every_named_port_is_one_of_the_container(self):
        for name, values in VALUES.items():
            with self.subTest(values=name):
                for _, template in pods(values):
                    for container in containers(template):
                        ports = {port["name"] for port in container.get("ports", [])}
                        for probe in re.findall(r"'port': '(\w+)'", str(container)):
                            self.assertIn(probe, ports)

    def test_the_memory_limit_covers_what_the_server_may_take(self):
        def limit(**memory):
            values = {"memory": memory}
            if memory.get("sharedMiB"):
                values.update(form="sidecar", sidecar={"trainer": {"image": "trainer"}})
            ((_, template),) = pods({**INSECURE, **values})
            return int(containers(template)[0]["resources"]["limits"]["memory"].removesuffix("Mi"))

        least = limit(cacheMiB=64)
        self.assertGreater(least, 64)
        # A sixteenth more than the cache is for the totals of steps.
        self.assertEqual(limit(cacheMiB=64 + 16000) - least, 17000)
        self.assertEqual(limit(cacheMiB=64, sharedMiB=100) - least, 100)
        self.assertEqual(limit(cacheMiB=64, messageMiB=65) - least, 16)
        self.assertEqual(limit(cacheMiB=64, runs=65) - least, 3)

    def test_only_the_sidecar_has_shared_memory_and_dev_shm_holds_it(self):
        for name, values in VALUES.items():
            with self.subTest(values=name):
                flags = [flag for _, pod in pods(values) for c in containers(pod) for flag in c.get("args", [])]
                shared = [int(flag.split("=")[1]) for flag in flags if flag.startswith("--shared_memory_bytes=")]
                if values.get("form") != "sidecar":
                    self.assertEqual(shared, [])
                    continue
                ((_, template),) = pods({**INSECURE, **values})
                (volume,) = (v for v in template["spec"]["volumes"] if v["name"] == "shared-memory")
                self.assertGreaterEqual(int(volume["emptyDir"]["sizeLimit"].removesuffix("Mi")) << 20, shared[0])
                for container in containers(template):
                    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
                    self.assertEqual(mounts, {"shared-memory": "/dev/shm", "socket": "/run/sis"})


class RenderedServersChecks(unittest.TestCase):
    """The flags as they are rendered, but for addresses and folders, which are this machine's."""

    SMALL = {"cacheMiB": 64, "messageMiB": 16}

    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.folder = folder.name
        cls.checkpoint = os.path.join(cls.folder, "checkpoint.npy")
        np.save(cls.checkpoint, Miniature(DEMO.digits).warm_up(1, DEMO.warm_up_accuracy))

    def check_the_demonstration(self, address):
        """Its worker and its trainer, processes of their own, as they find addresses and
        credentials in a pod. address: of one server, or of all replicas."""
        deadline = time.monotonic() + 100
        (learned,) = arms.train_arms(
            address, [arms.SAME_ENGINE.arms[1]], DEMO, 1, self.checkpoint, self.folder, deadline, lambda learned: None
        )
        self.assertEqual(len(learned), DEMO.rollouts)
        for rollout in learned:
            self.assertEqual(len(rollout.updates), DEMO.updates)
            for totals in rollout.updates:
                self.assertEqual(totals.missing, 0)
                self.assertGreater(totals.accepted, 0)
                self.assertLessEqual(totals.d_sis, totals.d)

    def servers(self, *, secrets="", **values):
        servers = rendered_servers.RenderedServers(list(documents({**INSECURE, **values})), secrets)
        self.addCleanup(servers.close)
        return servers

    def test_replicas_hold_a_sequence_each(self):
        for store in ("memory", "rocksdb"):
            servers = self.servers(servers=3, memory=self.SMALL, store={"kind": store})
            self.assertEqual(len(servers.addresses), 3)
            servers.check_admin_ports(self)
            one_step.check_a_step(self, writes=servers.addresses, reads=servers.addresses)

    def test_any_server_of_a_fleet_answers_for_any_sequence(self):
        servers = self.servers(form="fleet", servers=2, memory=self.SMALL, memcached={"sizeMiB": 64})
        servers.check_admin_ports(self)
        one_step.check_a_step(self, writes=servers.addresses[:1], reads=servers.addresses[1:])

    def test_with_tls_and_tokens_only_who_has_one_may_call(self):
        with tempfile.TemporaryDirectory() as folder:
            secrets = pathlib.Path(folder)
            authority = certificates.Authority(folder, "authority")
            for name in ("tls", "identities"):
                (secrets / name).mkdir()
            for path, name in zip(authority.issue("localhost", "server"), ("tls.crt", "tls.key")):
                pathlib.Path(path).rename(secrets / "tls" / name)
            token = "a token that nobody guesses".replace(" ", "-")
            (secrets / "identities" / "identities").write_text(f"token {token} alice trainer\n")
            security = {"tlsSecret": "tls", "identitiesSecret": "identities"}
            for values in (
                {"servers": 3, "store": {"kind": "rocksdb"}},
                {"form": "fleet", "servers": 2, "memcached": {"sizeMiB": 64}},
                {"servers": 2, "proxy": {"enabled": True}},
            ):
                servers = self.servers(secrets=folder, memory=self.SMALL, security=security, **values)
                servers.check_admin_ports(self)
                with unittest.mock.patch.dict(os.environ, {"SIS_CA_FILE": authority.path}):
                    with sis.Client(servers.addresses[0]) as client, self.assertRaises(sis.Unauthenticated):
                        client.list_runs()
                    with unittest.mock.patch.dict(os.environ, {"SIS_TOKEN": token}):
                        one_step.check_a_step(self, writes=servers.addresses, reads=servers.addresses)
                        # Of a fleet clients know one name, behind which they find any of its servers.
                        fleet = "form" in values
                        self.check_the_demonstration(servers.addresses[0] if fleet else servers.addresses)

    def test_a_trainer_shares_memory_with_its_sidecar(self):
        servers = self.servers(
            form="sidecar",
            memory={**self.SMALL, "sharedMiB": 64},
            sidecar={"trainer": {"image": "trainer"}},
        )
        servers.check_admin_ports(self)
        one_step.check_a_step(self, writes=servers.addresses, reads=servers.addresses, shared_memory=True)
        self.check_the_demonstration(servers.addresses[0])

    def test_behind_a_proxy_a_flood_of_resets_costs_no_memory_and_nobody_waits(self):
        servers = self.servers(servers=1, memory=self.SMALL, proxy={"enabled": True, "callsPerSecond": 100})
        (address,) = servers.addresses
        one_step.check_a_step(self, writes=[address], reads=[address])
        before = servers.resident_bytes()
        with sis.Client(address) as client:
            flood = reset_flood.ResetFlood(address, seconds=5)
            answers = 0
            while flood.alive():
                self.assertEqual(len(client.list_runs()), 1)
                answers += 1
                time.sleep(0.05)
        sent, closed = flood.join()
        self.assertGreater(sent, 1000)
        self.assertGreater(closed, 0)
        self.assertGreater(answers, 0)
        self.assertLess(servers.resident_bytes() - before, 64 << 20)
        # The address of the flood is still refused; others connect as ever.
        with sis.Client(address) as client:
            self.assertEqual(len(client.list_runs()), 1)

    def test_without_a_device_the_gpu_values_serve_too(self):
        servers = self.servers(servers=1, memory=self.SMALL, gpu={"count": 1, "cacheMiB": 64})
        one_step.check_a_step(self, writes=servers.addresses, reads=servers.addresses)


if __name__ == "__main__":
    unittest.main()
