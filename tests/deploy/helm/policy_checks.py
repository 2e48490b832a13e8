"""Checks the rendered chart against checkov's policies for Kubernetes.

Run by chart_test.py, in an environment that has Helm and checkov."""

import collections
import copy
import pathlib
import tempfile
import unittest

import yaml
from checkov.kubernetes.runner import Runner
from checkov.runner_filter import RunnerFilter

from tests.deploy.helm.rendered_chart import VALUES, documents

WORKLOADS = {"StatefulSet", "Job"}
# The policies that we don't follow: of which kinds of objects, and why.
EXCEPTIONS = {
    # Probes.
    "CKV_K8S_8": ({"Pod"}, "what helm test starts ends by itself"),
    "CKV_K8S_9": ({"Pod"}, "the same, and nobody calls it"),
    # A network policy.
    "CKV2_K8S_6": ({"Pod"}, "what helm test starts listens nowhere"),
    # CPU limits.
    "CKV_K8S_11": (WORKLOADS, "a limit makes Evaluate wait while the node idles; resources.limits.cpu sets one"),
    # Image pull policy Always.
    "CKV_K8S_15": (WORKLOADS | {"Pod"}, "tags name versions, and a pod must start while the registry is away; image.pullPolicy"),
    # No objects in the default namespace.
    "CKV_K8S_21": (WORKLOADS | {"Service", "ConfigMap", "Pod", "ServiceAccount"}, "helm and kubectl are told the namespace, as is usual"),
    # A root file system that is read-only.
    "CKV_K8S_22": ({"Job"}, "the trainer's, whose image is the user's; the server's beside it is read-only"),
    # Images by digest.
    "CKV_K8S_43": (WORKLOADS | {"Pod"}, "an image has a digest once it is in a registry of yours: image.digest, or NAME@DIGEST"),
}


def failures(values):
    """Returns {policy: {(name, kind)}} of the broken policies, and {name: inspected objects}, of {name: objects}."""
    with tempfile.TemporaryDirectory() as folder:
        for name, objects in values.items():
            pathlib.Path(folder, f"{name}.yaml").write_text(yaml.safe_dump_all(objects))
        report = Runner().run(root_folder=folder, runner_filter=RunnerFilter(framework=["kubernetes"]))
    assert not report.parsing_errors, report.parsing_errors
    failed, looked_at = collections.defaultdict(set), collections.defaultdict(set)
    for check in report.failed_checks:
        failed[check.check_id].add((pathlib.Path(check.file_path).stem, check.resource.split(".")[0]))
    for check in report.failed_checks + report.passed_checks:
        looked_at[pathlib.Path(check.file_path).stem].add(check.resource)
    return failed, looked_at


class PolicyChecks(unittest.TestCase):
    def test_every_policy_is_followed_but_for_those_with_a_reason(self):
        values = {name: list(documents(values)) for name, values in VALUES.items()}
        failed, looked_at = failures(values)
        self.assertEqual(set(failed), set(EXCEPTIONS), dict(failed))
        for policy, (kinds, _) in EXCEPTIONS.items():
            self.assertEqual({kind for _, kind in failed[policy]}, kinds, policy)
        for name, objects in values.items():
            workloads = sum(document["kind"] in WORKLOADS for document in objects)
            seen = {resource for resource in looked_at[name] if resource.split(".")[0] in WORKLOADS}
            self.assertEqual(len(seen), workloads, name)

    def test_whoever_chooses_limits_and_digests_breaks_no_policy_of_containers(self):
        failed, _ = failures({"everything": list(documents(VALUES["everything"]))})
        of_workloads = {policy for policy, found in failed.items() if {kind for _, kind in found} != {"Pod"}}
        self.assertEqual(of_workloads, {"CKV_K8S_21"})

    def test_what_a_container_may_not_do_is_seen(self):
        (good,) = (document for document in documents(VALUES["defaults"]) if document["kind"] == "StatefulSet")
        before, _ = failures({"good": [good]})
        for policy, name, value in (
            ("CKV_K8S_16", "privileged", True),
            ("CKV_K8S_20", "allowPrivilegeEscalation", True),
            ("CKV_K8S_37", "capabilities", {"add": ["NET_ADMIN"]}),
            ("CKV_K8S_22", "readOnlyRootFilesystem", False),
        ):
            bad = copy.deepcopy(good)
            bad["spec"]["template"]["spec"]["containers"][0]["securityContext"][name] = value
            after, _ = failures({"bad": [bad]})
            self.assertIn(policy, set(after) - set(before))


if __name__ == "__main__":
    unittest.main()
