"""Starts the processes that rendered manifests describe, with just the flags that they give."""

import itertools
import re
import socket
import subprocess
import tempfile
import time
import urllib.request

import numpy as np

import sis
from server.testing.live_server import LiveServer

VOCABULARY, TOP_K, LENGTH = 32, 4, 100


def free_port():
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return listening.getsockname()[1]


def logits_of(sequence, policy):
    return np.random.default_rng([sequence, policy]).normal(size=(LENGTH, VOCABULARY)).astype(np.float32)


def log_softmax(logits):
    return (logits - np.logaddexp.reduce(logits, axis=1, keepdims=True)).astype(np.float32)


class RenderedServers:
    """Of the containers called `server` and `memcached`. Names of nodes become loopback addresses,
    ports free ones, /run/sis and /var/lib/sis folders of the server's own, and /etc/sis `secrets`."""

    def __init__(self, documents, secrets=""):
        self._secrets = secrets
        self._folder = tempfile.TemporaryDirectory()
        self._nodes, self._servers, hosts = [], [], {}
        try:
            for document, container, count in self._containers(documents, "memcached"):
                for i in range(count):
                    port = free_port()
                    hosts[f"{document['metadata']['name']}-{i}.{document['spec']['serviceName']}:11211"] = (
                        f"127.0.0.1:{port}"
                    )
                    self._nodes.append(self._memcached(container["args"], port))
            for _, container, count in self._containers(documents, "server"):
                for i in range(count):
                    self._servers.append(self._server(container["args"], i, hosts))
        except BaseException:
            self.close()
            raise
        self.addresses = [server.address for server in self._servers]

    def close(self):
        for server in self._servers:
            server.close()
        for node in self._nodes:
            node.kill()
            node.wait()
        self._folder.cleanup()

    @staticmethod
    def _containers(documents, name):
        for document in documents:
            template = document.get("spec", {}).get("template", {}).get("spec", {})
            for container in template.get("initContainers", []) + template.get("containers", []):
                if container["name"] == name:
                    yield document, container, document["spec"].get("replicas", 1)

    @staticmethod
    def _memcached(arguments, port):
        node = subprocess.Popen(["memcached", *arguments, "-l", "127.0.0.1", "-p", str(port), "-u", "root"])
        for _ in itertools.repeat(None, 200):
            with socket.socket() as connection:
                if connection.connect_ex(("127.0.0.1", port)) == 0:
                    return node
            time.sleep(0.05)
        raise RuntimeError("memcached does not listen")

    def _server(self, arguments, index, hosts):
        flags = []
        for argument in arguments:
            for node, address in hosts.items():
                argument = argument.replace(node, address)
            argument = re.sub(r"^(--(?:listen|admin)=)0\.0\.0\.0:\d+$", r"\g<1>127.0.0.1:0", argument)
            argument = argument.replace("/etc/sis", self._secrets)
            flags.append(re.sub(r"/(?:run|var/lib)/sis", f"{self._folder.name}/{index}", argument))
        subprocess.run(["mkdir", f"{self._folder.name}/{index}"], check=True)
        return LiveServer(*flags)

    def check_admin_ports(self, test):
        for server in self._servers:
            for path in ("/healthz", "/readyz", "/metrics"):
                with urllib.request.urlopen(f"http://{server.said['admin']}{path}", timeout=10) as answer:
                    test.assertEqual(answer.status, 200)

    def check_a_step(self, test, *, writes, reads, shared_memory=False):
        """A worker appends at `writes`; a trainer at `reads` finds all of it and gets decisions."""
        names = [f"sequence-{i}" for i in range(8)]
        with sis.Client(writes if len(writes) > 1 else writes[0]) as client:
            run = client.create_run("run", seed=1, vocabulary_size=VOCABULARY, top_k=TOP_K)
            with client.append(run, sampling=sis.Sampling("processed", temperature=1.0), worker="worker") as stream:
                for i, name in enumerate(names):
                    log_probs = log_softmax(logits_of(i, 0))
                    sampled = np.random.default_rng(i).integers(0, VOCABULARY, LENGTH).astype(np.int32)
                    ids = np.broadcast_to(np.arange(VOCABULARY), log_probs.shape)
                    chosen = np.take_along_axis(log_probs, sampled[:, None], axis=1)[:, 0]
                    record = sis.canonical(ids, log_probs, sampled, chosen, TOP_K)
                    stream.block(name, first_position=0, policy_version=0, **record._asdict())
                    stream.seal(name, length=LENGTH)
        with sis.Client(reads if len(reads) > 1 else reads[0]) as client:
            run = client.get_run("run").run
            records = client.fetch_top_k(run, names, lease_seconds=60)
            test.assertTrue(records.present.all())
            current = log_softmax(np.concatenate([logits_of(i, 1) for i in range(len(names))]))
            log_probs, sampled_log_probs = sis.gather(records, current)
            if shared_memory:
                with client.lease_segment(log_probs.nbytes) as segment:
                    shared = segment.empty(log_probs.shape, np.float32)
                    shared[:] = log_probs
                    evaluation = client.evaluate(
                        run, records, draw=0, log_probs=shared, sampled_log_probs=sampled_log_probs
                    )
                    del shared
            else:
                evaluation = client.evaluate(
                    run, records, draw=0, log_probs=log_probs, sampled_log_probs=sampled_log_probs
                )
            totals = evaluation.totals
            test.assertEqual(totals.missing, 0)
            test.assertEqual(totals.accepted + totals.rejected + totals.outside_top_k, LENGTH * len(names))
            test.assertGreater(totals.accepted, 0)
