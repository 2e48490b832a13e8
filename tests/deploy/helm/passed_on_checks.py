"""Values that the chart passes on to Kubernetes as they are: what Kubernetes would refuse of them, or leave out
without a word, the chart refuses by name.

Run by chart_test.py, in an environment that has Helm and Kubernetes' schemas."""

import unittest

import helm_python

from deploy.helm import render
from tests.deploy.helm.rendered_chart import INSECURE, VALUES, documents, kubernetes_takes, merged

IN = [{"key": "a", "operator": "In", "values": ["b"]}]
NEAR = {
    "labelSelector": {"matchLabels": {"a": "b"}, "matchExpressions": IN},
    "namespaces": ["c"],
    "namespaceSelector": {},
    "topologyKey": "kubernetes.io/hostname",
}
PODS = {
    "requiredDuringSchedulingIgnoredDuringExecution": [NEAR],
    "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "podAffinityTerm": NEAR}],
}
NODES = {
    "matchExpressions": [*IN, {"key": "example.com/c", "operator": "Gt", "values": ["1"]}],
    "matchFields": [{"key": "metadata.name", "operator": "In", "values": ["node"]}],
}
AFFINITY = {
    "nodeAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [NODES]},
        "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "preference": NODES}],
    },
    "podAffinity": PODS,
    "podAntiAffinity": PODS,
}
TOLERATIONS = [{"key": "a", "operator": "Equal", "value": "b", "effect": "NoExecute", "tolerationSeconds": 1}]
PEERS = [
    {"podSelector": {"matchLabels": {"a": "b"}}, "namespaceSelector": {"matchLabels": {"c": "d"}}},
    {"ipBlock": {"cidr": "10.0.0.0/8", "except": ["10.1.0.0/16"]}},
]
VOLUMES = [{"name": "a", "configMap": {"name": "b"}}]
MOUNTS = [{"name": "a", "mountPath": "/a", "subPath": "b", "readOnly": True}]
ENVIRONMENT = [
    {"name": "a", "value": "b"},
    {"name": "c", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
    {"name": "e", "valueFrom": {"secretKeyRef": {"name": "f", "key": "g"}}},
]
# Each with all that there is to it.
PASSED_ON = {
    "affinity": AFFINITY,
    "networkPolicy.clients": PEERS,
    "networkPolicy.egress": [{"to": PEERS, "ports": [{"protocol": "UDP", "port": 53}, {"port": "dns"}]}],
    "networkPolicy.monitors": PEERS,
    "nodeSelector": {"a": "b"},
    "podAnnotations": {"a": "b"},
    "podLabels": {"a": "b"},
    "extraEnv": ENVIRONMENT,
    "extraVolumeMounts": MOUNTS,
    "podSecurityContext": {"runAsUser": 7, "supplementalGroups": [8], "seccompProfile": {"type": "Localhost", "localhostProfile": "a.json"}},
    "resources": {"requests": {"cpu": "500m"}, "limits": {"cpu": 2, "memory": "1Gi"}},
    "securityContext": {"runAsGroup": 7, "capabilities": {"add": ["SYS_NICE"], "drop": ["ALL"]}},
    "serviceAccount.annotations": {"a": "b"},
    "sidecar.trainer.env": ENVIRONMENT,
    "sidecar.trainer.image": "trainer",
    "sidecar.trainer.resources": {"requests": {"cpu": 1, "memory": "1Gi"}, "limits": {"memory": "1Gi"}},
    "sidecar.trainer.volumeMounts": MOUNTS,
    "tolerations": TOLERATIONS,
    "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"partition": 1, "maxUnavailable": "25%"}},
}


# Values that Kubernetes refuses although they match its schemas.
CONTRADICTIONS = {
    "tolerations": (
        [{}],
        [{"operator": "Equal", "value": "b"}],
        [{"key": "a", "operator": "Exists", "value": "b"}],
        [{"key": "a", "effect": "NoSchedule", "tolerationSeconds": 1}],
    ),
    "affinity": tuple(
        {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
            {"matchExpressions": [{"key": "a", **expression}]}]}}}
        for expression in (
            {"operator": "In"}, {"operator": "In", "values": []}, {"operator": "Exists", "values": ["b"]},
            {"operator": "Gt", "values": ["b"]}, {"operator": "Lt", "values": ["1", "2"]},
        )
    ),
    "networkPolicy.clients": (
        [{"podSelector": {}, "ipBlock": {"cidr": "10.0.0.0/8"}}],
        [{"podSelector": {"matchExpressions": [{"key": "a", "operator": "NotIn"}]}}],
        [{"podSelector": {"matchExpressions": [{"key": "a", "operator": "Gt", "values": ["1"]}]}}],
        *([{"ipBlock": {"cidr": cidr}}] for cidr in ("banana", "10.0.0.0", "10.0.0.256/8", "10.0.0.0/33", "fd00::/129")),
    ),
    "networkPolicy.egress": (
        [{}],
        [{"to": []}],
        [{"ports": [{"port": 0}]}],
        [{"ports": [{"port": "dns", "endPort": 60}]}],
    ),
    "podAnnotations": ({"a b!": "c"},),
    "podLabels": ({"a b!": "c"}, {"a": "-"}),
    "nodeSelector": ({"a": "all of us"},),
    "sidecar.trainer.env": (
        [{"name": "1 2", "value": "a"}],
        [{"name": "a", "value": "b", "valueFrom": {"secretKeyRef": {"name": "c", "key": "d"}}}],
    ),
    "sidecar.trainer.resources": ({"requests": {"cpu": "banana"}}, {"limits": {"memory": "1 Gi"}}, {"limits": {"cpu": -1}}),
    "sidecar.trainer.volumeMounts": tuple(
        [{"name": "a", "mountPath": path}] for path in ("/run/sis/socket", "a")
    ),
    "extraVolumeMounts": (
        *(
            [{"name": "a", "mountPath": path}]
            for path in (
                "relative", "/etc/sis", "/etc/sis/tls", "/etc/sis/tls/more", "/etc/sis/identities/", "/etc/sis/proxy",
                "/run/sis", "/var/lib/sis/lost", "/etc/../etc/sis/tls", "/etc//sis/tls", "/a:b",
            )
        ),
        [{"name": "b", "mountPath": "/a"}],
        [{"name": "a", "mountPath": "/a"}, {"name": "a", "mountPath": "/a/"}],
        [{"name": "a", "mountPath": "/a", "subPath": "../b"}],
    ),
    "extraVolumes": (VOLUMES * 2, [{"name": "a", "banana": {}}]),
    "extraContainers": ([{"name": "b", "image": "c"}] * 2, [{"name": "b", "image": "ba na na"}]),
    "updateStrategy": tuple(
        {"rollingUpdate": shares} for shares in ({"maxUnavailable": 0}, {"maxUnavailable": "999%"}, {"maxUnavailable": -1})
    ),
}


def spoilt(value):
    """Yields copies of the value that differ in one place: another value, or one name more or less."""
    yield {"banana": 1} if isinstance(value, (str, int)) else "banana"
    if isinstance(value, list):
        for i, part in enumerate(value):
            yield from (value[:i] + [other] + value[i + 1 :] for other in spoilt(part))
    if isinstance(value, dict):
        yield {**value, "banana": {}}
        for name, part in value.items():
            yield {other: value[other] for other in value if other != name}
            yield from ({**value, name: other} for other in spoilt(part))


def in_groups(name, value):
    for group in reversed(name.split(".")):
        value = {group: value}
    return value


def values_with(name, value):
    """Returns values with `name` set, in a form of the chart in which it has an effect."""
    form = VALUES["sidecar"] if name.startswith("sidecar.") else INSECURE
    return merged({**form, "extraVolumes": VOLUMES}, in_groups(name, value))


class PassedOnChecks(unittest.TestCase):
    def test_what_is_rendered_of_them_kubernetes_takes(self):
        for name, value in PASSED_ON.items():
            refused = 0
            for given in (value, *spoilt(value)):
                with self.subTest(name=name, value=given):
                    try:
                        objects = list(documents(values_with(name, given)))
                    except helm_python.HelmError as error:
                        self.assertNotEqual(given, value)
                        self.assertIn(name.replace(".", "/"), str(error))
                        refused += 1
                        continue
                    kubernetes_takes(objects)
            self.assertGreater(refused, 0)

    def test_what_contradicts_itself_is_refused(self):
        for name, values in CONTRADICTIONS.items():
            for value in values:
                with self.subTest(name=name, value=value), self.assertRaises(helm_python.HelmError) as refused:
                    render.render(values_with(name, value))
                self.assertRegex(str(refused.exception), name.replace(".", "[./]"))


if __name__ == "__main__":
    unittest.main()
