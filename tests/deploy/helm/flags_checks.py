"""The rendered flags as they are, read by the server itself (sis_server --check).

Run by chart_test.py, in an environment that has Helm."""

import json
import re
import subprocess
import tempfile
import unittest

import helm_python
import yaml

from deploy.helm import render
from server.testing.live_server import BINARY
from tests.deploy.helm.mounted_secrets import MountedSecrets
from tests.deploy.helm.rendered_chart import (
    INSECURE, VALUES, containers, documents, forms, merged, of_kind, pods, servers,
)  # fmt: skip

# Flags for resources and addresses. The chart always sets them; the server's defaults never apply.
CHART_DECIDES = (
    "admin", "backend", "cache_bytes", "evaluate_threads", "grpc_memory_bytes", "listen",
    "max_message_bytes", "max_runs", "max_runs_per_owner", "run_idle_expiry", "shutdown_grace", "store",
)  # fmt: skip


# Values that somebody may give a flag, sensible or not.
GIVEN = (
    "", "banana", "inf", "-inf", "0", "1", "7", "512", "513", "1024", "2147483648", "16777216",
    "1099511627776", "9223372036854775808", "-1", "1.5", "1e6", "1k", "64MiB", "NaN", "true", "false",
    "0s", "0ms", "0h0m", "10s", "10 s", "10S", "10sec", "-10s", "1h30m", "1.5s", "250ms", "999ms", "1500ms", "1d",
    "inf s", "viewer", "worker", "trainer", "admin", "Trainer", "root", "/etc/sis", "50051", "0.0.0.0:50051",
    "unix:/run/sis/socket",
)  # fmt: skip


def settings(*flags):
    """Returns the flags as the server parses them, {name: value}, or the process that refused them."""
    checked = subprocess.run([BINARY, "--check", *flags], capture_output=True, text=True, timeout=30)
    if checked.returncode:
        return checked
    return dict(re.findall(r"(?m)^--(\w+)=(.*)$", checked.stdout))


class FlagsChecks(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.secrets = MountedSecrets(cls.enterClassContext(tempfile.TemporaryDirectory()))
        cls.defaults = yaml.safe_load((render.CHART / "values.yaml").read_text())

    def understood(self, objects):
        """Returns the flags of the one server of a release, as it parses them."""
        (server,) = servers(objects)
        found = settings(*(argument.replace("/etc/sis", self.secrets.folder) for argument in server["args"]))
        self.assertIsInstance(found, dict, found)
        return found

    def test_the_server_takes_what_is_rendered(self):
        for name, values, objects in forms():
            with self.subTest(values=name):
                found = self.understood(objects)
                (server,) = servers(objects)
                given = {argument.split("=")[0] for argument in server["args"]}
                self.assertLessEqual({f"--{flag}" for flag in CHART_DECIDES}, given)
                chosen = merged(self.defaults, values)
                self.assertEqual(found["cache_bytes"], str(chosen["memory"]["cacheMiB"] << 20))
                self.assertEqual(found["max_runs"], str(chosen["memory"]["runs"]))
                for flag, value in chosen["flags"].items():
                    self.assertEqual(found[flag], value)

    def test_containers_show_the_ports_at_which_their_processes_listen(self):
        for name, values, objects in forms():
            with self.subTest(values=name):
                found = self.understood(objects)
                data = [document["data"] for document in of_kind("ConfigMap", objects)]
                listening = {}
                for flag, port in (("listen", "grpc"), ("admin", "admin")):
                    everywhere = re.fullmatch(r"0\.0\.0\.0:(\d+)", found[flag])
                    if everywhere:
                        listening[port] = int(everywhere[1])
                for configuration in filter(None, (files.get("haproxy.cfg") for files in data)):
                    (port,) = re.findall(r"(?m)^  bind :(\d+) ", configuration)
                    self.assertNotIn("grpc", listening)
                    listening["grpc"] = int(port)
                    (behind,) = re.findall(r"(?m)^  server server (\S+) ", configuration)
                    self.assertEqual(behind, found["listen"])
                shown = {
                    port["name"]: port["containerPort"]
                    for _, template in pods(objects)
                    for container in containers(template)
                    if container["name"] in ("server", "proxy")
                    for port in container.get("ports", [])
                }
                self.assertEqual(shown, listening)

    def test_files_that_processes_read_are_mounted_from_secrets_of_the_values(self):
        for name, values, objects in forms():
            values = merged(self.defaults, values)
            with self.subTest(values=name):
                for _, template in pods(objects):
                    volumes = {volume["name"]: volume for volume in template["spec"].get("volumes", [])}
                    for container in containers(template):
                        mounts = {mount["mountPath"]: mount["name"] for mount in container.get("volumeMounts", [])}
                        commands = container.get("args", []) + container.get("command", [])
                        for folder in re.findall(r"/etc/sis/\w+", " ".join(commands)):
                            source = volumes[mounts[folder]]
                            if "secret" in source:
                                named = [*values["security"].values(), *values["store"]["redis"].values()]
                                self.assertIn(source["secret"]["secretName"], named)

    def test_nobody_alone_can_take_all_runs(self):
        for runs, owned in ((1, 1), (2, 1), (7, 3), (64, 32)):
            found = self.understood(documents({**INSECURE, "memory": {"runs": runs}}))
            self.assertEqual((found["max_runs"], found["max_runs_per_owner"]), (str(runs), str(owned)))
        found = self.understood(documents({**INSECURE, "memory": {"runs": 64, "runsPerOwner": 60}}))
        self.assertEqual(found["max_runs_per_owner"], "60")

    def test_a_flag_is_set_by_the_chart_or_may_be_given(self):
        """Never both, and no other: the schema's list is the server's."""
        arguments = [flag for _, _, objects in forms() for server in servers(objects) for flag in server["args"]]
        own = {flag.split("=")[0].removeprefix("--") for flag in arguments}
        given = {flag for values in VALUES.values() for flag in values.get("flags", {})}
        known = settings()
        for flag in set(known) | {"check", "flagfile", "nothing"}:
            # Needs client certificates, so that its form is one of its own.
            values = VALUES["certified"] if flag == "certificate_role" else INSECURE
            value = "trainer" if flag == "certificate_role" else known.get(flag, "")
            try:
                render.render({**values, "flags": {**values.get("flags", {}), flag: value}})
                refused = ""
            except helm_python.HelmError as error:
                refused = str(error)
            with self.subTest(flag=flag):
                self.assertEqual(bool(refused), flag in own - given or flag not in known, refused)
                if refused:
                    self.assertIn(flag, refused)
                if flag in own - given:
                    self.assertIn("the chart sets it itself", refused)

    def test_a_value_of_a_flag_is_refused_exactly_if_the_server_refuses_it(self):
        schema = json.loads((render.CHART / "values.schema.json").read_text())["properties"]["flags"]["properties"]
        given = set(schema)
        (certified,) = servers(documents(VALUES["everything"]))
        mounted = [flag.replace("/etc/sis", self.secrets.folder) for flag in certified["args"] if "/etc/sis" in flag]
        beside = {"certificate_role": mounted}
        places = {flag: lambda value, flag=flag: {"flags": {flag: value}} for flag in given} | {
            "run_idle_expiry": lambda value: {"memory": {"runIdleExpiry": value}},
        }
        self.assertGreater(len(places), 5)
        with helm_python.Chart.load(str(render.CHART)) as chart:
            for flag, values in places.items():
                for value in GIVEN:
                    with self.subTest(flag=flag, value=value):
                        try:
                            chart.validate_schema(values(value))
                            taken = True
                        except helm_python.HelmError:
                            taken = False
                        understood = settings(*beside.get(flag, []), f"--{flag}={value}")
                        self.assertEqual(taken, isinstance(understood, dict))

    def test_the_server_takes_the_smallest_and_largest_of_every_number(self):
        schema = json.loads((render.CHART / "values.schema.json").read_text())
        # Without these the number is not looked at, or contradicts another.
        beside = {
            "gpu": {"gpu": {"count": 1}},
            "memory.runsPerOwner": {"memory": {"runs": 65536}},
            "proxy": {"proxy": {"enabled": True}},
            "sidecar": {"form": "sidecar"},
            "store": {"store": {"kind": "rocksdb"}},
            "store.redis.memoryMiB": {"store": VALUES["redis"]["store"]},
            "store.redis.sizeGiB": {"store": VALUES["redis"]["store"]},
        }

        def numbers(part, place=""):
            for name, inner in part.get("properties", {}).items():
                if inner.get("type") == "integer":
                    yield f"{place}{name}", inner
                yield from numbers(inner, f"{place}{name}.")

        found = list(numbers(schema))
        self.assertGreater(len(found), 15)
        for name, number in found:
            for value in (number["minimum"], number["maximum"]):
                with self.subTest(name=name, value=value):
                    values = {**INSECURE, "sidecar": {"trainer": {"image": "trainer"}}}
                    for place in (name.split(".")[0], name):
                        values = merged(values, beside.get(place, {}))
                    *groups, last = name.split(".")
                    own = {last: value}
                    for group in reversed(groups):
                        own = {group: own}
                    self.understood(documents(merged(values, own)))

    def test_a_device_is_asked_for_where_cuda_is(self):
        for name, values, objects in forms():
            with self.subTest(values=name):
                (server,) = servers(objects)
                devices = server["resources"]["limits"].get("nvidia.com/gpu", 0)
                self.assertEqual(self.understood(objects)["backend"], "cuda" if devices else "cpu")
                self.assertEqual(devices, values.get("gpu", {}).get("count", 0))
                self.assertEqual(server["image"].endswith("-cuda"), devices > 0)


if __name__ == "__main__":
    unittest.main()
