"""What goes wrong around a server: a slow store, a clock that jumps, floods of connections, calls
without a deadline, and users who make a thousand runs or names that are none."""

import collections
import json
import os
import pathlib
import re
import shutil
import socket
import struct
import tempfile
import threading
import time
import unittest
import urllib.request

import grpc
import numpy as np

import sis
from server.testing.live_server import LiveServer
from server.testing.memcached import Memcached
from server.testing.slow_proxy import SlowProxy
from sis.v1 import ratio_service_pb2 as pb
from sis.v1 import ratio_service_pb2_grpc

VOCABULARY, TOP_K, POSITIONS = 10, 2, 20
CONFIG = {"seed": 1, "vocabulary_size": VOCABULARY, "top_k": TOP_K}


class BadDaysTest(unittest.TestCase):
    def serve(self, *flags, **named):
        server = LiveServer(*flags, cache_bytes=16 << 20, **named)
        self.addCleanup(server.kill)
        return server

    def client(self, server):
        client = sis.Client(server.address, timeout=20)
        self.addCleanup(client.close)
        return client

    def get(self, server, path):
        with urllib.request.urlopen(f"http://{server.admin_address}{path}", timeout=20) as page:
            return page.read().decode()

    def append(self, client, run, *sequences):
        ids = np.tile(np.arange(TOP_K), (POSITIONS, 1))
        log_probs = np.full((POSITIONS, TOP_K), -1.0)
        with client.append(run, sampling=sis.Sampling("raw"), retry_timeout=0.1) as stream:
            for sequence in sequences:
                stream.block(
                    sequence, first_position=0, policy_version=0, sampled_ids=ids[:, 0],
                    sampled_log_probs=log_probs[:, 0], top_k_ids=ids, top_k_log_probs=log_probs,
                )  # fmt: skip

    def scored(self, client, run, *sequences):
        """Positions that a step decides, and why others are missing."""
        records = client.fetch_top_k(run, [sis.Slice(sequence, 0, POSITIONS) for sequence in sequences])
        evaluation = client.evaluate(
            run, records, draw=1, log_probs=records.log_probs,
            sampled_log_probs=np.where(records.present, records.sampled_log_probs, -1),
        )  # fmt: skip
        return evaluation.totals.scored, [missing.reason for missing in evaluation.missing]

    def until(self, done):
        for _ in range(600):
            if done():
                return
            time.sleep(0.05)
        self.fail("it never came")

    def test_a_memcached_that_is_slow_and_then_too_slow(self):
        folder = tempfile.mkdtemp(dir="/tmp", prefix="sis_")  # names of sockets are short
        self.addCleanup(shutil.rmtree, folder)
        node = Memcached(f"{folder}/node")
        self.addCleanup(node.kill)
        proxy = SlowProxy(f"{folder}/proxy", node.path)
        server = self.serve(f"--store=memcached:{proxy.path}")
        client = self.client(server)
        run = client.create_run("run", **CONFIG)
        proxy.delay = 0.1  # a tenth of what is waited for an answer
        self.append(client, run, "slow")
        self.assertEqual(self.scored(client, run, "slow"), (POSITIONS, []))

        proxy.delay = 3.0
        with self.assertRaises(sis.AppendError) as raised:
            self.append(client, run, "too slow")
        self.assertEqual({entry.code.name for entry in raised.exception.refused}, {"UNAVAILABLE"})
        # What is in memory is served, and nothing else waits for the node.
        self.assertEqual(self.scored(client, run, "slow"), (POSITIONS, []))
        self.assertEqual(len(client.list_runs()), 1)
        self.assertTrue(self.get(server, "/readyz").startswith("ready\n"))

        proxy.delay = 0.0

        def stored():
            try:
                self.append(client, run, "too slow")
            except sis.AppendError:
                return False
            return True

        self.until(stored)
        # All of it is in the store: another server has it.
        other = self.client(self.serve(f"--store=memcached:{node.path}"))
        self.assertEqual(self.scored(other, other.get_run("run").run, "slow", "too slow"), (2 * POSITIONS, []))

    def test_a_clock_that_jumps_ends_nothing_early_and_holds_nothing_up(self):
        faketime = next(pathlib.Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"), None)
        if faketime is None:
            self.skipTest("libfaketime is not installed")
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        offset = pathlib.Path(folder.name) / "offset"

        def set_clock(days):
            new = offset.with_suffix(".new")
            new.write_text(f"{days:+}d\n")
            new.rename(offset)

        set_clock(0)
        # Nobody sets the monotonic clock, which the kernel keeps apart.
        faked = {"LD_PRELOAD": faketime, "FAKETIME_TIMESTAMP_FILE": offset, "FAKETIME_NO_CACHE": 1, "DONT_FAKE_MONOTONIC": 1}
        server = self.serve("--run_idle_expiry=1h", prefix=["env", *(f"{name}={value}" for name, value in faked.items())])
        client = self.client(server)

        def days():
            said = json.loads(self.get(server, "/api/GetServer"))
            return round((said["history"][-1]["at"] - time.time()) / 86400)

        kept = client.create_run("kept", time_to_live=3600, **CONFIG)
        self.append(client, kept, "s")
        client.fetch_top_k(kept, [sis.Slice("s", 0, POSITIONS)], lease_seconds=600)

        set_clock(2)
        self.until(lambda: days() == 2)
        ends = client.create_run("ends", time_to_live=0.5, **CONFIG)
        self.append(client, ends, "s")
        client.fetch_top_k(ends, [sis.Slice("s", 0, POSITIONS)], lease_seconds=0.5)
        set_clock(-2)
        self.until(lambda: days() == -2)
        # Twice its time, though the clock was set back by four days meanwhile.
        self.until(lambda: client.get_run("ends").sequences == 0)
        self.assertEqual(client.get_run("ends").leases, 0)
        # Nothing ended that had time left, though the clock was set forward by two days meanwhile.
        self.assertEqual(client.get_run("kept").leases, 1)
        self.assertEqual(self.scored(client, kept, "s"), (POSITIONS, []))
        self.append(client, kept, "t")
        self.assertEqual(self.scored(client, kept, "s", "t"), (2 * POSITIONS, []))

    def test_a_call_without_a_deadline_has_the_servers(self):
        server = self.serve("--default_deadline=1us")
        client = self.client(server)  # which sets deadlines
        run = client.create_run("run", **CONFIG)
        self.append(client, run, "s")
        self.assertEqual(self.scored(client, run, "s"), (POSITIONS, []))
        ref = pb.RunRef(run_id="run")
        slices = [pb.Slice(sequence=pb.SequenceRef(id="s"), length=POSITIONS)]
        with grpc.insecure_channel(server.address) as channel:
            stub = ratio_service_pb2_grpc.RatioServiceStub(channel)
            evaluate = pb.EvaluateRequest(
                run=ref, slices=slices, draw=2, gathered=pb.Gathered(
                    log_probs=np.full((POSITIONS, TOP_K), -1, np.float32).tobytes(),
                    sampled_log_probs=np.full(POSITIONS, -1, np.float32).tobytes(),
                ),
            )  # fmt: skip
            for name, call in {
                "GetRun": lambda **deadline: stub.GetRun(pb.GetRunRequest(run_id="run"), **deadline),
                "Release": lambda **deadline: stub.Release(pb.ReleaseRequest(run=ref), **deadline),
                "FetchTopK": lambda **deadline: list(stub.FetchTopK(pb.FetchTopKRequest(run=ref, slices=slices), **deadline)),
                "Evaluate": lambda **deadline: stub.Evaluate(evaluate, **deadline),
                "EvaluateStream": lambda **deadline: list(stub.EvaluateStream(iter([evaluate]), **deadline)),
            }.items():
                with self.subTest(name):
                    with self.assertRaises(grpc.RpcError) as raised:
                        call()
                    self.assertEqual(raised.exception.code(), grpc.StatusCode.DEADLINE_EXCEEDED)
                    self.assertIn("not done within 1us", raised.exception.details())
                    call(timeout=20)
        # A stream lives as long as its client wants.
        self.append(client, run, "t")
        self.assertEqual(client.get_run("run").sequences, 2)

    def test_floods_of_connections_cost_others_nothing_and_leave_nothing_behind(self):
        server = self.serve()
        client = self.client(server)
        run = client.create_run("run", **CONFIG)
        self.append(client, run, "s")
        files = lambda: len(os.listdir(f"/proc/{server.process.pid}/fd"))
        before = files()
        host, _, port = server.address.rpartition(":")
        preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])

        def connect(*said, reset=False):
            connection = socket.create_connection((host, int(port)), timeout=20)
            for data in said:
                connection.sendall(data)
            if reset:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            return connection

        for round_ in range(4):
            held = []
            for kind in range(300):
                connection = connect(*[(), (preface,), (preface[:10],), (b"GET / HTTP/1.1\r\n\r\n",)][kind % 4], reset=kind % 2 == 0)
                # Half of them end at once, the others together.
                if kind % 8 < 4:
                    connection.close()
                else:
                    held.append(connection)
            self.assertEqual(self.scored(client, run, "s"), (POSITIONS, []), round_)
            # So is who comes now; other clients of this process share a connection.
            with grpc.insecure_channel(server.address, [("grpc.use_local_subchannel_pool", 1)]) as channel:
                newcomer = ratio_service_pb2_grpc.RatioServiceStub(channel)
                self.assertEqual(len(newcomer.ListRuns(pb.ListRunsRequest(), timeout=20).runs), 1)
            self.assertTrue(self.get(server, "/readyz").startswith("ready"))
            for connection in held:
                connection.close()
        self.until(lambda: files() <= before + 2)
        self.append(self.client(server), run, "t")
        self.assertEqual(self.scored(client, run, "s", "t"), (2 * POSITIONS, []))

    def test_a_thousand_runs(self):
        server = self.serve("--max_runs=1000")
        client = self.client(server)
        runs = [client.create_run(f"run-{number}", **CONFIG) for number in range(1000)]
        with self.assertRaisesRegex(sis.ResourceExhausted, "1000"):
            client.create_run("one-more", **CONFIG)
        for run in runs[::100]:
            self.append(client, run, "s")
            self.assertEqual(self.scored(client, run, "s"), (POSITIONS, []))
        self.assertEqual(len(client.list_runs()), 1000)
        # A hundred have metrics of their own; the others are one.
        text = self.get(server, "/metrics")
        named = set(re.findall(r'^sis_ingest_positions_total\{run="([^"]*)"', text, re.MULTILINE))
        self.assertEqual((len(named), "other" in named), (101, True))
        positions = sum(map(int, re.findall(r"^sis_ingest_positions_total\{[^}]*\} (\d+)$", text, re.MULTILINE)))
        self.assertEqual(positions, 10 * POSITIONS)
        for run in runs:
            client.delete_run(run.id)
        self.assertEqual(client.list_runs(), [])
        client.create_run("one-more", **CONFIG)

    def test_names_that_would_break_the_metrics(self):
        server = self.serve()
        client = self.client(server)
        names = ['quote"quote', "back\\slash", "line\nbreak", "<b>html</b>", '"} 1\nup{a="', "ünïcode \U0001f600", "x" * 10_000, "a,b=c"]
        accepted = []
        for name in names:
            with self.assertRaises(sis.InvalidArgument, msg=name):
                client.create_run(name, **CONFIG)
            labels = {"task": name, "model": name, "algorithm": name}
            if len(name.encode()) > 256:
                with self.assertRaises(sis.InvalidArgument, msg=name):
                    client.create_run("long", **labels, **CONFIG)
                continue
            run = client.create_run(f"r{len(accepted)}", **labels, **CONFIG)
            accepted.append(run.id)
            self.append(client, run, name)
        text = self.get(server, "/metrics")
        label = r'[a-zA-Z_][a-zA-Z0-9_]*="(?:[^"\\\n]|\\["\\n])*"'
        sample = re.compile(rf"[a-zA-Z_:][a-zA-Z0-9_:]*(?:\{{{label}(?:,{label})*\}})? (?:[-+.0-9eE]+|[-+]?Inf|NaN)(?: \d+)?")
        series = collections.Counter()
        for line in text.splitlines():
            if line and not line.startswith("#"):
                self.assertTrue(sample.fullmatch(line), line)
                series[line.rpartition(" ")[0]] += 1
        self.assertEqual([name for name, count in series.items() if count > 1], [])
        # None takes more of the page than it takes itself.
        self.assertLess(max(map(len, text.splitlines())), 2000)
        listed = {status.run.id for status in client.list_runs()}
        self.assertEqual(listed, set(accepted))


if __name__ == "__main__":
    unittest.main()
