"""deploy/compose: Compose takes the file, and its parts fit: the flags start the server, Prometheus
takes its configuration, what is mounted is there, and each finds the others."""

import json
import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import unittest
import urllib.parse
import urllib.request
from typing import Any, Dict, List, Tuple

import yaml

from server.testing.live_server import BINARY, LiveServer
from tests.deploy import dashboards

FOLDER = pathlib.Path("deploy/compose")
FILE = FOLDER / "compose.yaml"
SERVICES: Dict[str, Dict[str, Any]] = yaml.safe_load(FILE.read_text())["services"]


def mounts(service: str) -> List[Tuple[pathlib.Path, pathlib.PurePosixPath]]:
    """Returns the paths in the checkout that a container mounts, each with its path there."""
    parts = [volume.split(":") for volume in SERVICES[service]["volumes"]]
    return [(FOLDER / source, pathlib.PurePosixPath(there)) for source, there, *_ in parts if source.startswith(".")]


def container_ports(service: str) -> List[str]:
    return [port.rpartition(":")[2] for port in SERVICES[service]["ports"]]


@unittest.skipUnless(shutil.which("docker-compose"), "needs docker-compose (tools/setup test)")
class SchemaTest(unittest.TestCase):
    def config(self, file: pathlib.Path, **variables: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            ["docker-compose", "--profile", "redis", "-f", file, "config"], capture_output=True, text=True, timeout=60,
            env={**os.environ, "HOME": os.environ.get("TEST_TMPDIR", "/tmp"), **variables},
        )

    def test_compose_takes_it(self) -> None:
        for variables, store in (({}, "memory"), ({"SIS_STORE": "redis://redis:6379"}, "redis://redis:6379")):
            taken = self.config(FILE, **variables)
            self.assertEqual(taken.returncode, 0, taken.stderr)
            services = yaml.safe_load(taken.stdout)["services"]
            self.assertEqual(set(services), set(SERVICES))
            self.assertIn(f"--store={store}", services["sis"]["command"])
            self.assertEqual([name for name in services if "profiles" in services[name]], ["redis"])

    def test_compose_refuses_what_it_does_not_know(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder, "compose.yaml")
            file.write_text(FILE.read_text().replace("healthcheck:", "health:"))
            self.assertNotEqual(self.config(file).returncode, 0)


class PartsTest(unittest.TestCase):
    def test_nothing_is_open_to_other_machines(self) -> None:
        for service in SERVICES.values():
            for port in service.get("ports", []):
                self.assertRegex(port, r"^127\.0\.0\.1:(\d+):\1$")

    def test_what_is_mounted_is_there(self) -> None:
        for service in ("prometheus", "grafana"):
            self.assertTrue(mounts(service))
            for source, _ in mounts(service):
                self.assertTrue(source.exists(), source)

    def test_the_image_exposes_these_ports(self) -> None:
        containerfile = pathlib.Path("deploy/image/Containerfile").read_text()
        exposed = re.search(r"EXPOSE (.*)", containerfile)[1].split()
        self.assertEqual(sorted(container_ports("sis")), sorted(exposed))

    def test_the_server_starts_and_answers_to_its_name(self) -> None:
        flags = [flag for flag in SERVICES["sis"]["command"] if not flag.startswith("--cache_bytes=")]
        (cache_bytes,) = (flag.partition("=")[2] for flag in SERVICES["sis"]["command"] if flag not in flags)
        flags = [flag.replace("${SIS_STORE:-memory}", "memory") for flag in flags]
        # As in the container it listens everywhere; at other ports, as these may be taken.
        flags += ["--admin=0.0.0.0:0"]
        server = self.enterContext(LiveServer(*flags, listen="0.0.0.0:0", cache_bytes=int(cache_bytes)))
        port = server.admin_address.rpartition(":")[2]

        def metrics(host: str) -> str:
            request = urllib.request.Request(f"http://127.0.0.1:{port}/metrics", headers={"Host": host})
            with urllib.request.urlopen(request, timeout=30) as answer:
                return answer.read().decode()

        (target,) = self.scrape_config()["static_configs"][0]["targets"]
        self.assertIn("sis_cache_bytes", metrics(target))

        command = SERVICES["sis"]["healthcheck"]["test"]
        self.assertEqual(command[:2], ["CMD", "/usr/bin/sis_server"])
        here = f"localhost:{server.address.rpartition(':')[2]}"
        words = [word.replace("localhost:50051", here) for word in command[2:]]
        self.assertNotEqual(words, command[2:])
        subprocess.run([BINARY, *words], check=True, stdout=subprocess.DEVNULL, timeout=60)
        server.close()
        down = subprocess.run([BINARY, *words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=60)
        self.assertNotEqual(down.returncode, 0)

    def scrape_config(self) -> Dict[str, Any]:
        (config,) = yaml.safe_load((FOLDER / "prometheus.yml").read_text())["scrape_configs"]
        return config

    def test_prometheus_takes_its_configuration(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            for source, there in mounts("prometheus"):
                self.assertEqual(there.parent, pathlib.PurePosixPath("/etc/prometheus"))
                shutil.copy(source, pathlib.Path(folder, there.name))
            checked = subprocess.run(
                ["promtool", "check", "config", f"{folder}/prometheus.yml"], capture_output=True, text=True, timeout=60
            )
            self.assertEqual(checked.returncode, 0, checked.stdout + checked.stderr)
            self.assertEqual(checked.stdout.count("rules found"), 2, checked.stdout)

    def test_it_is_our_example_of_another_target(self) -> None:
        ours, example = (
            yaml.safe_load((folder / "prometheus.yml").read_text())
            for folder in (FOLDER, pathlib.Path("deploy/prometheus"))
        )
        (config,) = example["scrape_configs"]
        config["static_configs"][0]["targets"] = ["sis:9464"]
        self.assertEqual(ours, example)

    def test_grafana_finds_prometheus_and_the_dashboards(self) -> None:
        provisioned = {there: source for source, there in mounts("grafana")}
        folder = pathlib.PurePosixPath("/etc/grafana/provisioning")
        (source,) = yaml.safe_load(provisioned[folder / "datasources/sis.yaml"].read_text())["datasources"]
        url = urllib.parse.urlsplit(source["url"])
        self.assertIn(str(url.port), container_ports(url.hostname))
        self.assertTrue(source["isDefault"])
        (provider,) = yaml.safe_load(provisioned[folder / "dashboards/sis.yaml"].read_text())["providers"]
        where = pathlib.PurePosixPath(provider["options"]["path"])
        boards = {where / path.name: path for path in sorted(provisioned[where].glob("*.json"))}
        self.assertEqual(sorted(path.name for path in boards.values()), [path.name for path in dashboards.DASHBOARDS])
        home = SERVICES["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
        self.assertIn(pathlib.PurePosixPath(home), boards)
        for path in boards.values():
            board = json.loads(path.read_text())
            (variable,) = [each for each in board["templating"]["list"] if each["type"] == "datasource"]
            self.assertEqual(variable["query"], source["type"])


if __name__ == "__main__":
    unittest.main()
