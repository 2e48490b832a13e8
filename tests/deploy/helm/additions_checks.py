"""Values that add to the objects of the chart or change them: accounts, containers, volumes, names.

Run by chart_test.py, in an environment that has Helm and Kubernetes' schemas."""

import unittest

from deploy.helm import render
from tests.deploy.helm.rendered_chart import (
    ADDITIONS, INSECURE, VALUES, containers, documents, forms, kubernetes_takes, labels, merged, of_kind, pods,
    port_names,
)  # fmt: skip

FORMS = {
    "replicas": {**INSECURE, "store": {"kind": "rocksdb"}},
    "sidecar": VALUES["sidecar"],
}


def workload_of_servers(objects):
    ((document, template),) = [found for found in pods(objects) if "admin" in port_names(found[1])]
    return document, template


def named(things, name):
    (thing,) = (thing for thing in things if thing["name"] == name)
    return thing


class AdditionsChecks(unittest.TestCase):
    def test_without_them_the_pods_have_none(self):
        for form, values in FORMS.items():
            with self.subTest(form=form):
                objects = list(documents(values))
                document, template = workload_of_servers(objects)
                own = {"server"} | ({"trainer"} if form == "sidecar" else set())
                self.assertEqual({container["name"] for container in containers(template)}, own)
                self.assertNotIn("runtimeClassName", template["spec"])
                (account,) = of_kind("ServiceAccount", objects)
                self.assertNotIn("annotations", account["metadata"])
                self.assertEqual(account["metadata"]["name"], render.RELEASE)

    def test_servers_pods_have_what_is_added(self):
        for form, values in FORMS.items():
            with self.subTest(form=form):
                _, template = workload_of_servers(documents(merged(values, ADDITIONS)))
                spec = template["spec"]
                self.assertEqual(spec["runtimeClassName"], "nvidia")
                (volume,) = ADDITIONS["extraVolumes"]
                self.assertEqual(named(spec["volumes"], volume["name"]), volume)
                (mount,) = ADDITIONS["extraVolumeMounts"]
                self.assertIn(mount, named(containers(template), "server")["volumeMounts"])
                (added,) = ADDITIONS["extraContainers"]
                self.assertIn(added, spec["containers"])
                (first,) = ADDITIONS["extraInitContainers"]
                # A sidecar's server is an init container that goes on.
                self.assertEqual(spec["initContainers"][0], first)

    def test_all_pods_run_as_the_account_of_the_values(self):
        for account, name, made in (
            ({}, render.RELEASE, True),
            ({"name": "own"}, "own", True),
            ({"create": False, "name": "theirs"}, "theirs", False),
            ({"create": False}, "default", False),
        ):
            for form, values in FORMS.items():
                with self.subTest(account=account, form=form):
                    objects = list(documents({**values, "serviceAccount": account}))
                    self.assertEqual({template["spec"]["serviceAccountName"] for _, template in pods(objects)}, {name})
                    accounts = of_kind("ServiceAccount", objects)
                    self.assertEqual([each["metadata"]["name"] for each in accounts], [name] if made else [])
                    for each in accounts:
                        self.assertIs(each["automountServiceAccountToken"], False)

    def test_volumes_stay_or_go_as_the_values_say(self):
        for given, kept in (
            ({}, {"whenDeleted": "Retain", "whenScaled": "Retain"}),
            ({"whenScaled": "Delete"}, {"whenDeleted": "Retain", "whenScaled": "Delete"}),
        ):
            rocksdb = {"kind": "rocksdb", "rocksdb": {"persistentVolumeClaimRetentionPolicy": given}}
            document, _ = workload_of_servers(documents({**INSECURE, "store": rocksdb}))
            self.assertEqual(document["spec"]["persistentVolumeClaimRetentionPolicy"], kept)
        document, _ = workload_of_servers(documents(INSECURE))
        self.assertNotIn("persistentVolumeClaimRetentionPolicy", document["spec"])

    def test_servers_are_updated_as_the_values_say(self):
        for strategy in (
            {"type": "OnDelete"},
            {"rollingUpdate": {"partition": 1}},
            {"rollingUpdate": {"maxUnavailable": 2}},
        ):
            with self.subTest(strategy=strategy):
                objects = list(documents({**FORMS["replicas"], "updateStrategy": strategy}))
                kubernetes_takes(objects)
                document, _ = workload_of_servers(objects)
                self.assertEqual(document["spec"]["updateStrategy"], strategy)

    def test_everything_is_called_as_the_values_say(self):
        for given, name, of_chart in (
            ({}, "sis-ratio-service", "sis-ratio-service"),
            ({"nameOverride": "ratios"}, "sis-ratio-service-ratios", "ratios"),
            ({"nameOverride": "ratio"}, "sis-ratio-service", "ratio"),  # which the release's name has in it
            ({"fullnameOverride": "ratios"}, "ratios", "sis-ratio-service"),
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

    def test_no_two_objects_of_a_kind_have_one_name(self):
        for name, _, objects in forms():
            with self.subTest(values=name):
                names = [(document["kind"], document["metadata"]["name"]) for document in objects]
                self.assertEqual(len(set(names)), len(names))


if __name__ == "__main__":
    unittest.main()
