"""Starts the processes that rendered manifests describe, with their flags, except addresses and
folders. flags_checks.py checks the flags for addresses and folders."""

import itertools
import os
import pathlib
import re
import socket
import subprocess
import tempfile
import time
import urllib.request

from server.testing.live_server import BINARY, LiveServer
from server.testing.process_status import process_status
from tests.deploy.helm.rendered_chart import of_kind


def free_port():
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return listening.getsockname()[1]


def wait_for(port):
    """Until somebody listens there."""
    for _ in itertools.repeat(None, 200):
        with socket.socket() as connection:
            if connection.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    raise RuntimeError(f"nobody listens at {port}")


def get(address, path):
    """Returns the body of the answer. Raises urllib.error.HTTPError if the status isn't 200."""
    with urllib.request.urlopen(f"http://{address}{path}", timeout=10) as answer:
        return answer.read().decode()


class RenderedServers:
    """Processes of the containers called `server` and `proxy`. Ports become free ports of the loopback
    address, /run/sis and /var/lib/sis become folders of each server, and /etc/sis becomes `secrets`.
    Clients connect to `addresses`."""

    def __init__(self, documents, secrets=""):
        self._secrets = secrets
        self._folder = tempfile.TemporaryDirectory()
        self._documents = documents
        self._servers, self._proxies = [], []
        # For each process, its container, and its addresses by the names of the container's ports.
        self._listening = []
        try:
            for _, container, count in self._containers(documents, "server"):
                for i in range(count):
                    server = self._server(container["args"], i)
                    self._servers.append(server)
                    self._listening.append((container, {"admin": server.said["admin"], "grpc": server.address}))
            self.addresses = [server.address for server in self._servers]
            if any(self._containers(documents, "proxy")):
                self.addresses = [
                    self._proxy(documents, i, address) for i, address in enumerate(self.addresses)
                ]
        except BaseException:
            self.close()
            raise

    def resident_bytes(self):
        """Returns the current resident memory of all servers and proxies together."""
        processes = self._proxies + [server.process for server in self._servers]
        return sum(process_status(process, "VmRSS") << 10 for process in processes)

    def most_resident_bytes(self):
        """Returns the peak resident memory of each server since it started."""
        return [process_status(server.process, "VmHWM") << 10 for server in self._servers]

    def memory_limits(self):
        """Yields the memory limit of each server's container, in bytes."""
        for container, _ in self._listening:
            if container["name"] == "server":
                yield int(container["resources"]["limits"]["memory"].removesuffix("Mi")) << 20

    def certificate_ends(self):
        """Returns each server's end of its certificate from /metrics, in seconds since 1970; None without the metric."""
        ends = []
        for server in self._servers:
            name = "sis_tls_certificate_not_after_timestamp_seconds"
            found = re.search(rf"(?m)^{name} (\S+)$", get(server.said["admin"], "/metrics"))
            ends.append(found and float(found[1]))
        return ends

    def close(self):
        for server in self._servers:
            server.close()
        for process in self._proxies:
            process.kill()
            process.wait()
        self._folder.cleanup()

    @staticmethod
    def _containers(documents, name):
        for document in documents:
            template = document.get("spec", {}).get("template", {}).get("spec", {})
            for container in template.get("initContainers", []) + template.get("containers", []):
                if container["name"] == name:
                    yield document, container, document["spec"].get("replicas", 1)

    def _proxy(self, documents, index, server):
        """In front of `server`; returns its own address."""
        ((_, container, _),) = self._containers(documents, "proxy")
        (files,) = (document["data"] for document in documents if "haproxy.cfg" in document.get("data", {}))
        port, folder = free_port(), f"{self._folder.name}/{index}"
        for name, text in files.items():
            text = re.sub(r"(?m)^  bind :\d+ ", f"  bind 127.0.0.1:{port} ", text)
            text = re.sub(r"(?m)^  server server \S+ ", f"  server server {server} ", text)
            text = text.replace("/etc/sis/proxy", folder).replace("/etc/sis", self._secrets)
            pathlib.Path(folder, name).write_text(text)
        command = [argument.replace("/etc/sis/proxy", folder) for argument in container["command"]]
        # Debian has it where only root looks.
        path = f"{os.environ['PATH']}:/usr/sbin"
        self._proxies.append(subprocess.Popen(command, env={**os.environ, "PATH": path}))
        wait_for(port)
        self._listening.append((container, {"grpc": f"127.0.0.1:{port}"}))
        return f"127.0.0.1:{port}"

    def _server(self, arguments, index):
        flags = []
        for argument in arguments:
            argument = re.sub(r"^(--(?:listen|admin)=)(?:0\.0\.0\.0|127\.0\.0\.1):\d+$", r"\g<1>127.0.0.1:0", argument)
            argument = argument.replace("/etc/sis", self._secrets)
            flags.append(re.sub(r"/(?:run|var/lib)/sis", f"{self._folder.name}/{index}", argument))
        subprocess.run(["mkdir", f"{self._folder.name}/{index}"], check=True)
        return LiveServer(*flags)

    def kill_server(self, index):
        self._servers[index].kill()

    def helm_test(self):
        """How the containers of the pod end that `helm test` starts."""
        (pod,) = of_kind("Pod", self._documents)
        status = []
        for container, address in zip(pod["spec"]["containers"], self.addresses):
            binary, *arguments = container["command"]
            assert binary == "/usr/bin/sis_server", binary
            arguments = [re.sub(r"[\w.-]+\.svc:\d+", address, argument) for argument in arguments]
            arguments = [argument.replace("/etc/sis", self._secrets) for argument in arguments]
            status.append(subprocess.run([BINARY, *arguments], timeout=60).returncode)
        return status

    def check_probes(self, test):
        """Checks that every probe of the started containers succeeds, and that every monitor finds metrics."""
        for container, listening in self._listening:
            for kind in ("startupProbe", "readinessProbe", "livenessProbe"):
                probe = container.get(kind, {})
                if "tcpSocket" in probe:
                    host, port = listening[probe["tcpSocket"]["port"]].split(":")
                    socket.create_connection((host, int(port)), timeout=10).close()
                if "httpGet" in probe:
                    asked = probe["httpGet"]
                    said = {"/livez": "alive\n", "/readyz": "ready\n"}[asked["path"]]
                    test.assertEqual(get(listening[asked["port"]], asked["path"]), said)
            if container["name"] == "server":
                for monitor in of_kind("ServiceMonitor", self._documents):
                    for endpoint in monitor["spec"]["endpoints"]:
                        test.assertIn("sis_build_info", get(listening[endpoint["port"]], endpoint["path"]))
