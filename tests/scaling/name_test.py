"""One name for several servers over memcached: each gets its share of the calls, a new one too."""

import contextlib
import json
import pathlib
import re
import socket
import subprocess
import tempfile
import threading
import time
import unittest

import numpy as np

import sis
from server.testing.certificates import Authority
from server.testing.live_server import LiveServer
from server.testing.memcached import Memcached
from server.testing.random_records import random_record
from tests.clients.cpp_process import CppClient
from tests.scaling.name_server import NameServer

SISCTL = pathlib.Path("client/cli/sisctl")
HOSTS = [f"127.0.0.{number}" for number in range(1, 5)]
CONNECTION_AGE = "1s"
# Of the calls of one client to as many servers; in turns they are all but even.
LEAST_SHARE = 0.8
PATIENCE = 60
LENGTH, TOP_K, VOCABULARY = 20, 4, 50


def port_free_at(hosts):
    """One port that nobody listens at, at each of them."""
    while True:
        with contextlib.ExitStack() as sockets:
            port = 0
            try:
                for host in hosts:
                    taken = sockets.enter_context(socket.socket())
                    taken.bind((host, port))
                    port = taken.getsockname()[1]
                return port
            except OSError:
                continue


class NameTest(unittest.TestCase):
    def setUp(self):
        self.exits = contextlib.ExitStack()
        self.addCleanup(self.exits.close)
        self.folder = self.exits.enter_context(tempfile.TemporaryDirectory(dir="/tmp", prefix="sis_"))
        node = Memcached(f"{self.folder}/node")
        self.exits.callback(node.kill)
        self.store = f"memcached:{node.path}"
        self.port = port_free_at(HOSTS)
        self.servers = [self.start(host) for host in HOSTS[:3]]
        self.names = NameServer(HOSTS[:3])
        self.exits.callback(self.names.close)
        self.address = f"dns://127.0.0.1:{self.names.port}/sis.test:{self.port}"

    def start(self, host, *flags):
        server = LiveServer(
            *flags, f"--store={self.store}", f"--max_connection_age={CONNECTION_AGE}", listen=f"{host}:{self.port}",
            cache_bytes=32 << 20,
        )  # fmt: skip
        self.exits.callback(server.kill)
        return server

    def calls(self, method):
        """What each server has answered so far."""
        counts = []
        for server in self.servers:
            ended = re.compile(rf'grpc_server_handled_total{{.*grpc_code="OK".*grpc_method="{method}"')
            counts.append(sum(count for series, count in server.metrics().items() if ended.match(series)))
        return np.array(counts)

    def assert_shared(self, call, method):
        """Also among servers that are new: once each is known, all get their share."""
        end = time.monotonic() + PATIENCE
        while True:
            before = self.calls(method)
            for _ in range(40 * len(self.servers)):
                call()
            counted = self.calls(method) - before
            self.assertGreaterEqual(counted.sum(), 40 * len(self.servers))
            if counted.min() >= LEAST_SHARE * counted.mean():
                return
            self.assertLess(time.monotonic(), end, f"{method}: {counted} calls")
            time.sleep(0.2)

    def grow(self):
        self.servers.append(self.start(HOSTS[3]))
        self.names.addresses = HOSTS

    def test_python(self):
        client = self.exits.enter_context(sis.Client(self.address, timeout=20))
        run = client.create_run("run", seed=1, vocabulary_size=VOCABULARY, top_k=TOP_K)
        stopped, appended, failures = threading.Event(), [], []

        def work():
            """A rollout worker, which opens a stream for each response."""
            with sis.Client(self.address, timeout=20) as worker:
                held = worker.get_run("run").run
                try:
                    while not stopped.is_set():
                        sequence = str(len(appended))
                        record = random_record(len(appended), LENGTH, VOCABULARY, TOP_K)
                        with worker.append(held, sampling=sis.Sampling("raw")) as stream:
                            stream.block(sequence, first_position=0, policy_version=0, **record._asdict())
                            stream.seal(sequence, length=LENGTH)
                        appended.append(sequence)
                except sis.Error as error:
                    failures.append(error)

        worker = threading.Thread(target=work)
        worker.start()
        self.exits.callback(stopped.set)
        while not appended and not failures:
            time.sleep(0.01)
        records = client.fetch_top_k(run, [sis.Slice("0", 0, LENGTH)], lease_seconds=30)

        def evaluate():
            evaluation = client.evaluate(
                run, records, draw=1, log_probs=records.log_probs, sampled_log_probs=records.sampled_log_probs
            )
            self.assertEqual(evaluation.totals.missing, 0)

        self.assert_shared(evaluate, "Evaluate")
        before = self.calls("Append")
        self.grow()
        self.assert_shared(evaluate, "Evaluate")
        end = time.monotonic() + PATIENCE
        while self.calls("Append")[3] < 5:
            self.assertLess(time.monotonic(), end, self.calls("Append"))
        self.assertTrue((self.calls("Append")[:3] > before).all())
        stopped.set()
        worker.join()
        self.assertEqual(failures, [])
        fetched = client.fetch_top_k(run, [sis.Slice(sequence, 0, LENGTH) for sequence in appended])
        self.assertFalse(fetched.missing)

    def held(self):
        """Leases, sequences and bytes of the run, on each server."""
        counts = []
        for host in HOSTS[:3]:
            with sis.Client(f"{host}:{self.port}") as client:
                status = client.get_run("run")
                counts.append((status.leases, status.sequences, status.bytes))
        return counts

    def test_what_is_released_leaves_all_servers(self):
        """Whichever has leased it, or read it for an evaluation, and whichever is told."""
        client = self.exits.enter_context(sis.Client(self.address, timeout=20))
        run = client.create_run("run", seed=1, vocabulary_size=VOCABULARY, top_k=TOP_K)
        names = [str(number) for number in range(30)]
        with client.append(run, sampling=sis.Sampling("raw")) as stream:
            for number, name in enumerate(names):
                record = random_record(number, LENGTH, VOCABULARY, TOP_K)
                stream.block(name, first_position=0, policy_version=0, **record._asdict())
                stream.seal(name, length=LENGTH)
        slices = [sis.Slice(name, 0, LENGTH) for name in names]
        end = time.monotonic() + PATIENCE
        # Until each has granted a lease, and has been asked to evaluate.
        leases = []
        while min(leased and sequences for leased, sequences, _ in self.held()) == 0:
            self.assertLess(time.monotonic(), end, self.held())
            records = client.fetch_top_k(run, slices, lease_seconds=600)
            leases.append(records.lease_id)
            evaluation = client.evaluate(
                run, records, draw=1, log_probs=records.log_probs, sampled_log_probs=records.sampled_log_probs
            )
            self.assertEqual(evaluation.totals.missing, 0)
        client.release(run, names[:10], lease_ids=leases)
        client.release(run, names[10:])
        while self.held() != [(0, 0, 0)] * 3:
            self.assertLess(time.monotonic(), end, self.held())
            time.sleep(0.1)
        self.assertTrue(client.fetch_top_k(run, slices).missing)

    def sisctl(self, *words):
        command = [SISCTL, f"--server={self.address}", *words]
        return subprocess.run(command, capture_output=True, text=True, timeout=60)

    def shown(self, *words):
        result = self.sisctl(*words, "--json")
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        return json.loads(result.stdout)

    def evaluate_once_each(self, client, run, names):
        """Each in a call of its own. Calls go to the servers in turns: others between them see to it that
        evaluations come to all."""
        random = np.random.default_rng(1)
        for number, name in enumerate(names):
            record = random_record(number, LENGTH, VOCABULARY, TOP_K)
            with client.append(run, sampling=sis.Sampling("raw")) as stream:
                stream.block(name, first_position=0, policy_version=0, **record._asdict())
                stream.seal(name, length=LENGTH)
            records = client.fetch_top_k(run, [sis.Slice(name, 0, LENGTH)])
            client.evaluate(
                run, records, draw=1, log_probs=records.log_probs, sampled_log_probs=records.sampled_log_probs
            )
            for _ in range(random.integers(3)):
                client.get_run("run")

    def test_sisctl_shows_what_all_of_them_hold(self):
        client = self.exits.enter_context(sis.Client(self.address, timeout=20))
        run = client.create_run("run", seed=1, vocabulary_size=VOCABULARY, top_k=TOP_K)
        names = [f"sequence-{number}" for number in range(24)]
        self.assert_shared(lambda: client.get_run("run"), "GetRun")  # all are connected to
        self.evaluate_once_each(client, run, names)
        self.assertGreater(self.calls("Evaluate").min(), 0)
        step = self.shown("step", "run", "1")
        self.assertEqual(int(step["sequences"]), len(names))
        scored = sum(int(step["totals"].get(name, 0)) for name in ("accepted", "rejected", "outside_top_k"))
        self.assertEqual(scored, len(names) * LENGTH)
        bytes_held = sum(bytes for _, _, bytes in self.held())
        self.assertEqual(int(self.shown("runs", "get", "run")["bytes"]), bytes_held)
        listed = [listed["sequence"]["id"] for listed in self.shown("sequences", "run")["sequences"]]
        self.assertEqual(listed, sorted(names))
        kept = [kept["sequence"]["id"] for kept in self.shown("show", "run")["sequences"]]
        self.assertEqual(kept, sorted(names))
        for name in names:
            self.assertEqual(self.shown("show", "run", name)["draw"], "1")
        self.assertIn("server 3", self.sisctl("top", "--once").stdout)
        # What changes a run any of them does for all.
        created = self.sisctl("runs", "create", "another", "--vocabulary_size=50", "--top_k=4")
        self.assertEqual(created.stdout, "run another, incarnation 1, created\n")
        self.assertEqual(self.sisctl("runs", "delete", "another").stdout, "run another, deleted\n")
        self.servers[1].kill()
        without = self.sisctl("step", "run", "1")
        self.assertEqual(without.returncode, 1)
        self.assertIn("server 2 of 3 gives no answer", without.stderr)

    def test_sisctl_asks_all_of_them_over_tls(self):
        """Whose certificate is for the name, not for the addresses."""
        for server in self.servers:
            server.kill()
        authority = Authority(self.folder, "authority")
        certificate, key = authority.issue("sis.test", "server")
        token = pathlib.Path(self.folder, "token")
        token.write_text("a-token-of-alice-of-32-characters\n")
        identities = pathlib.Path(self.folder, "identities")
        identities.write_text(f"token {token.read_text().strip()} alice trainer\n")
        secured = [f"--tls_certificate={certificate}", f"--tls_key={key}", f"--identities={identities}"]
        self.servers = [self.start(host, *secured) for host in HOSTS[1:3]]
        self.names.addresses = HOSTS[1:3]
        credentials = sis.Credentials(ca=authority.path, token_file=str(token))
        client = self.exits.enter_context(sis.Client(self.address, timeout=20, credentials=credentials))
        run = client.create_run("run", seed=1, vocabulary_size=VOCABULARY, top_k=TOP_K)
        self.assert_shared(lambda: client.get_run("run"), "GetRun")
        names = [f"sequence-{number}" for number in range(12)]
        self.evaluate_once_each(client, run, names)
        self.assertGreater(self.calls("Evaluate").min(), 0)
        as_alice = (f"--ca={authority.path}", f"--token_file={token}")
        self.assertEqual(int(self.shown(*as_alice, "step", "run", "1")["sequences"]), len(names))
        other = Authority(self.folder, "other")
        self.assertEqual(self.sisctl(f"--ca={other.path}", f"--token_file={token}", "step", "run", "1").returncode, 1)

    def test_cpp(self):
        client = CppClient()
        self.exits.callback(client.close)
        self.assertEqual(client.do(f"connect {self.address} timeout=20"), "ok")
        self.assertEqual(client.do("create_run run"), "ok incarnation 1")

        def get_run():
            self.assertRegex(client.do("get_run run"), "^ok incarnation 1 ")

        self.assert_shared(get_run, "GetRun")
        self.grow()
        self.assert_shared(get_run, "GetRun")


if __name__ == "__main__":
    unittest.main()
