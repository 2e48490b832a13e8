"""values.yaml and its schema: what is said of each value, and which values are refused.

Run by chart_test.py, in an environment that has Helm."""

import json
import re
import unittest

import helm_python
import yaml

from deploy.helm import render
from tests.deploy.helm.rendered_chart import INSECURE, VALUES

TLS = {"tlsSecret": "tls", "identitiesSecret": "identities"}
CERTIFICATES = {"tlsSecret": "tls", "clientCertificates": True}
SIDECAR = {"form": "sidecar", "sidecar": {"trainer": {"image": "trainer"}}}


def redis(**values):
    return {**INSECURE, "store": {"kind": "redis", "redis": values}}


# Values that are refused, with what the refusal must name.
NONSENSE = (
    ({"form": "cluster"}, "form"),
    ({"serverz": 3}, "serverz"),
    ({"replicaCount": 0}, "replicaCount"),
    ({"replicaCount": "three"}, "replicaCount"),
    ({"memory": {"cacheMiB": 1}}, "cacheMiB"),
    ({"memory": {"messageMiB": 2048}}, "messageMiB"),
    ({**INSECURE, "memory": {"runs": 8, "runsPerOwner": 9}}, "memory.runsPerOwner: 9 "),
    ({"form": "sidecar"}, "sidecar.trainer.image"),
    ({"gpu": {"count": 2}}, "count"),
    ({}, "security: "),
    ({"security": {"tlsSecret": "tls"}}, "security: "),
    ({"security": {"identitiesSecret": "identities"}}, "security: "),
    ({"security": {"insecure": True, "certManager": {"enabled": True}}}, "security.certManager"),
    ({"security": {"tlsSecret": "No Secret"}}, "tlsSecret"),
    ({"security": CERTIFICATES}, "security.clientCertificates: "),
    ({"security": {**CERTIFICATES, "insecure": True}}, "security.clientCertificates: "),
    ({"security": {"insecure": True, "clientCertificates": True}}, "clientCertificates: needs security.tlsSecret"),
    ({"security": TLS, "flags": {"certificate_role": "trainer"}}, "flags.certificate_role"),
    ({"security": {**TLS, "insecure": True}}, "security.insecure"),
    ({"security": CERTIFICATES, "flags": {"certificate_role": "trainer", "insecure": "true"}}, "flags.insecure"),
    ({"security": TLS, "flags": {"insecure": "true"}}, "flags.insecure"),
    ({**SIDECAR, "security": TLS}, "security.tlsSecret"),
    ({"image": {"digest": "latest"}}, "digest"),
    ({"podSecurityContext": {"runAsUser": 0}}, "runAsUser"),
    ({"podSecurityContext": {"runAsNonRoot": False}}, "runAsNonRoot"),
    ({"securityContext": {"privileged": True}}, "privileged"),
    ({**INSECURE, "autoscaling": {"enabled": True}}, "autoscaling.enabled: needs store.kind"),
    ({**redis(enabled=True), "autoscaling": {"enabled": True, "minReplicas": 9}}, "autoscaling.minReplicas: 9 "),
    ({**SIDECAR, "autoscaling": {"enabled": True}}, "autoscaling"),
    ({"ports": {"grpc": 443}}, "grpc"),
    ({**INSECURE, "ports": {"grpc": 9464}}, "9464 is the port of ports.admin"),
    ({**INSECURE, "proxy": {"enabled": True}, "ports": {"behindProxy": 50051}}, "ports.behindProxy: 50051 "),
    ({**INSECURE, "proxy": {"enabled": True}, "ports": {"behindProxy": 9464}}, "ports.behindProxy: 9464 "),
    ({**INSECURE, "flags": {"metric_runs": True}}, "metric_runs"),
    ({**INSECURE, "podLabels": {"app.kubernetes.io/component": "server"}}, "app.kubernetes.io/component"),
    ({**INSECURE, "priorityClassName": "No Class"}, "priorityClassName"),
    ({**INSECURE, "imagePullSecrets": ["No Secret"]}, "imagePullSecrets"),
    ({**INSECURE, "store": {"rocksdb": {"storageClass": "No Class"}}}, "storageClass"),
    ({**INSECURE, "runtimeClassName": "No Class"}, "runtimeClassName"),
    ({**INSECURE, "serviceAccount": {"name": "No Account"}}, "serviceAccount"),
    ({**INSECURE, "fullnameOverride": "Ratios"}, "fullnameOverride"),
    ({**INSECURE, "fullnameOverride": "a" * 41}, "fullnameOverride"),
    ({**INSECURE, "nameOverride": "1st"}, "nameOverride"),
    ({**INSECURE, "extraVolumes": [{"name": "tls", "emptyDir": {}}]}, "extraVolumes"),
    ({**INSECURE, "extraVolumes": [{"name": "nothing"}]}, "extraVolumes"),
    ({**INSECURE, "extraContainers": [{"name": "proxy", "image": "mine"}]}, "extraContainers"),
    ({**INSECURE, "extraInitContainers": [{"image": "mine"}]}, "name"),
    ({**SIDECAR, "store": {"kind": "rocksdb"}}, "kind"),
    ({**SIDECAR, "updateStrategy": {"type": "OnDelete"}}, "updateStrategy"),
    ({**SIDECAR, "store": {"kind": "redis"}}, "kind"),
    (redis(), "store.redis: give address"),
    (redis(enabled=True, address="redis:6379"), "store.redis: give address"),
    (redis(enabled=True, tls=True), "store.redis.enabled"),
    (redis(enabled=True, user="sis"), "store.redis.enabled"),
    (redis(address="redis:6379"), "networkPolicy.egress"),
    (redis(address="redis:6379", user="sis"), "store.redis.user"),
    (redis(address="redis:6379", caSecret="authority"), "store.redis.caSecret"),
    (redis(address="redis"), "address"),
    (redis(address="redis://redis:6379"), "address"),
    (redis(address="redis:6379 redis:6380"), "address"),
    (redis(address="redis:6379", passwordSecret="No Secret"), "passwordSecret"),
    (redis(enabled=True, user="a:b"), "user"),
    ({**INSECURE, "store": {"redis": {"enabled": True}}}, "store.redis: needs store.kind"),
    ({**INSECURE, "extraVolumes": [{"name": "redis", "emptyDir": {}}]}, "extraVolumes"),
    ({"store": {"rocksdb": {"persistentVolumeClaimRetentionPolicy": {"whenDeleted": "Keep"}}}}, "whenDeleted"),
    ({**INSECURE, "extraVolumeMounts": [{"name": "a", "mountPath": "/a"}]}, "extraVolumeMounts: a is none of extraVolumes"),
    (
        {
            **INSECURE,
            "extraContainers": [{"name": "a", "image": "a"}],
            "extraInitContainers": [{"name": "a", "image": "b"}],
        },
        "extraInitContainers are called a",
    ),
    ({**INSECURE, "image": {"repository": "sis-ratio-service:1.0.0"}}, "repository"),
    ({**INSECURE, "proxy": {"enabled": True, "image": "ha proxy"}}, "image"),
    ({**INSECURE, "imagePullSecrets": [""]}, "imagePullSecrets"),
    ({**SIDECAR, "networkPolicy": {"egress": [{"ports": [{"port": 53}]}]}}, "networkPolicy.egress"),
    ({**INSECURE, "links": {"runbooks": "wiki.example.com"}}, "runbooks"),
    ({**INSECURE, "links": {"page": 'http://a"b'}}, "page"),
    ({**INSECURE, "serviceMonitor": {"interval": "0s"}}, "interval"),
    ({**INSECURE, "proxy": {"enabled": True, "callsPerSecond": 0}}, "callsPerSecond"),
    ({"security": {**TLS, "clientCertificates": True}, "proxy": {"enabled": True}}, "proxy.enabled"),
    ({**SIDECAR, "proxy": {"enabled": True}}, "proxy.enabled"),
)
# Valid values in addition to VALUES. Each is close to an invalid one.
SENSIBLE = (
    # Ports that nobody uses.
    {**INSECURE, "ports": {"behindProxy": 50051}},
    {**SIDECAR, "ports": {"grpc": 9464}},
    {**INSECURE, "memory": {"runs": 8, "runsPerOwner": 8}},
    # Authentication where something else encrypts, and encryption where something else authenticates.
    {"security": {"insecure": True, "identitiesSecret": "identities"}},
    {"security": {"insecure": True, "tlsSecret": "tls"}},
    {**INSECURE, "affinity": {"podAntiAffinity": {}}},
    {**redis(address="[fd00::1]:6379,redis-1.data:6379"), "networkPolicy": {"enabled": False}},
    # Tokens at a Unix socket.
    {**SIDECAR, "security": {"identitiesSecret": "identities"}},
)


def leaves(node, above=None, name=""):
    """Yields the name and line of each value of a YAML mapping, and the line of its group."""
    for key, value in node.value:
        place, line = f"{name}{key.value}", key.start_mark.line
        if isinstance(value, yaml.MappingNode) and value.value and not value.flow_style:
            yield from leaves(value, line, place + ".")
        else:
            yield place, line, above


def comment_above(lines, line):
    """The comment that ends directly above a line."""
    first = line
    while lines[first - 1].lstrip().startswith("#"):
        first -= 1
    return "\n".join(lines[first:line])


class ValuesChecks(unittest.TestCase):
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
        free = ("dashboards.labels.", "flags.")  # whose names are not the chart's
        has, knows = ({name for name in all if not name.startswith(free)} for all in (names(defaults), known(schema)))
        self.assertEqual(has, knows - {"global"})

    def test_a_comment_says_what_each_value_is(self):
        """On its line, directly above it, or above its group if it names the value."""
        text = (render.CHART / "values.yaml").read_text()
        lines = text.splitlines()
        found = list(leaves(yaml.compose(text)))
        self.assertGreater(len(found), 70)
        for name, line, group in found:
            with self.subTest(value=name):
                own = comment_above(lines, line) or re.search(r"\s#\s", lines[line])
                key = name.split(".")[-1]
                above = re.search(rf"\b{key}\b", comment_above(lines, group)) if group else None
                self.assertTrue(own or above, f"values.yaml:{line + 1}")

    def test_nonsense_is_refused_by_name(self):
        for values, name in NONSENSE:
            with self.subTest(values=values):
                with self.assertRaises(helm_python.HelmError) as refused:
                    render.render(values)
                self.assertIn(name, str(refused.exception))

    def test_nothing_else_is_refused(self):
        for values in (*VALUES.values(), *SENSIBLE):
            with self.subTest(values=values):
                render.render(values)


if __name__ == "__main__":
    unittest.main()
