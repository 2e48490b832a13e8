"""One name for several servers over memcached: each gets its share of the calls, a new one too."""

import contextlib
import re
import socket
import tempfile
import threading
import time
import unittest

import numpy as np

import sis
from server.testing.live_server import LiveServer
from server.testing.memcached import Memcached
from server.testing.random_records import random_record
from tests.clients.cpp_process import CppClient
from tests.scaling.name_server import NameServer

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
        folder = self.exits.enter_context(tempfile.TemporaryDirectory(dir="/tmp", prefix="sis_"))
        node = Memcached(f"{folder}/node")
        self.exits.callback(node.kill)
        self.store = f"memcached:{node.path}"
        self.port = port_free_at(HOSTS)
        self.servers = [self.start(host) for host in HOSTS[:3]]
        self.names = NameServer(HOSTS[:3])
        self.exits.callback(self.names.close)
        self.address = f"dns://127.0.0.1:{self.names.port}/sis.test:{self.port}"

    def start(self, host):
        server = LiveServer(
            f"--store={self.store}", f"--max_connection_age={CONNECTION_AGE}", listen=f"{host}:{self.port}",
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
