"""Values that the chart passes on to Kubernetes as they are: what Kubernetes would refuse of them, or leave out
without a word, the chart refuses by name.

Run by chart_test.py, in an environment that has Helm and Kubernetes' schemas."""

import unittest

import helm_python

from tests.deploy.helm.rendered_chart import INSECURE, VALUES, documents, kubernetes_takes, merged

EXPRESSIONS = [{"key": "a", "operator": "In", "values": ["b"]}]
NEAR = {
    "labelSelector": {"matchLabels": {"a": "b"}, "matchExpressions": EXPRESSIONS},
    "namespaces": ["c"],
    "namespaceSelector": {},
    "topologyKey": "kubernetes.io/hostname",
}
PODS = {
    "requiredDuringSchedulingIgnoredDuringExecution": [NEAR],
    "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "podAffinityTerm": NEAR}],
}
NODES = {"matchExpressions": EXPRESSIONS, "matchFields": EXPRESSIONS}
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
MOUNTS = [{"name": "a", "mountPath": "/a", "subPath": "b", "readOnly": True}]
# Each with all that there is to it.
PASSED_ON = {
    "affinity": AFFINITY,
    "memcached.affinity": AFFINITY,
    "memcached.tolerations": TOLERATIONS,
    "networkPolicy.clients": PEERS,
    "networkPolicy.monitors": PEERS,
    "nodeSelector": {"a": "b"},
    "podAnnotations": {"a": "b"},
    "podLabels": {"a": "b"},
    "extraVolumeMounts": MOUNTS,
    "serviceAccount.annotations": {"a": "b"},
    "sidecar.trainer.env": [{"name": "a", "value": "b"}, {"name": "c", "valueFrom": {"fieldRef": {"fieldPath": "d"}}}],
    "sidecar.trainer.resources": {"requests": {"cpu": 1, "memory": "1Gi"}, "limits": {"memory": "1Gi"}},
    "sidecar.trainer.volumeMounts": MOUNTS,
    "tolerations": TOLERATIONS,
    "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"partition": 1, "maxUnavailable": "25%"}},
}


def spoilt(value):
    """Like it, but for one place: something else there, or one name more or less."""
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


class PassedOnChecks(unittest.TestCase):
    def test_what_is_rendered_of_them_kubernetes_takes(self):
        forms = {"sidecar": VALUES["sidecar"], "memcached": VALUES["fleet"]}
        for name, value in PASSED_ON.items():
            form = forms.get(name.split(".")[0], INSECURE)
            refused = 0
            for given in (value, *spoilt(value)):
                with self.subTest(name=name, value=given):
                    try:
                        objects = list(documents(merged(form, in_groups(name, given))))
                    except helm_python.HelmError as error:
                        self.assertNotEqual(given, value)
                        self.assertIn(name.replace(".", "/"), str(error))
                        refused += 1
                        continue
                    kubernetes_takes(objects)
            self.assertGreater(refused, 0)


if __name__ == "__main__":
    unittest.main()
