"""Faults around a server: a clock that jumps, floods of connections, calls without a deadline, and users with
invalid names."""

import collections
import os
import pathlib
import re
import socket
import ssl
import struct
import tempfile
import time
import unittest
import urllib.request

import grpc
import numpy as np

import sis
from server.testing.certificates import Authority
from server.testing.random_records import random_record
from server.testing.until import until
from sis.v1 import ratio_service_pb2 as pb
from sis.v1 import ratio_service_pb2_grpc
from tests.integration.live_server import ServersTest

VOCABULARY, TOP_K, POSITIONS = 10, 2, 20
CONFIG = {"seed": 1, "vocabulary_size": VOCABULARY, "top_k": TOP_K}


class Clock:
    """The machine's clock, as servers see it that are started with `prefix`."""

    def __init__(self):
        self.library = next(pathlib.Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"), None)
        self._folder = tempfile.TemporaryDirectory()
        self._offset = pathlib.Path(self._folder.name) / "offset"
        # Nobody sets the monotonic clock, which the kernel keeps apart. With glibc's memory: jemalloc asks for
        # the time while it starts, and libfaketime then asks for memory.
        faked = {
            "LD_PRELOAD": f"{self.library}:libstdc++.so.6:libc.so.6", "FAKETIME_TIMESTAMP_FILE": self._offset,
            "FAKETIME_NO_CACHE": 1, "DONT_FAKE_MONOTONIC": 1,
        }  # fmt: skip
        self.prefix = ["env", *(f"{name}={value}" for name, value in faked.items())]
        self.close = self._folder.cleanup
        self.set(0)

    def set(self, days):
        new = self._offset.with_suffix(".new")
        new.write_text(f"{days:+}d\n")
        new.rename(self._offset)


class BadDaysTest(ServersTest):
    def get(self, server, path):
        with urllib.request.urlopen(f"http://{server.admin_address}{path}", timeout=20) as page:
            return page.read().decode()

    def append(self, client, run, *sequences, first_position=0):
        record = random_record(1, POSITIONS, VOCABULARY, TOP_K)._asdict()
        with client.append(run, sampling=sis.Sampling("raw"), retry_timeout=0.1) as stream:
            for sequence in sequences:
                stream.block(sequence, first_position=first_position, policy_version=0, **record)

    def scored(self, client, run, *sequences):
        """Positions that a step decides, and why others are missing."""
        records = client.fetch_top_k(run, [sis.Slice(sequence, 0, POSITIONS) for sequence in sequences])
        evaluation = client.evaluate(
            run, records, draw=1, log_probs=records.log_probs,
            sampled_log_probs=np.where(records.present, records.sampled_log_probs, -1),
        )  # fmt: skip
        return evaluation.totals.scored, [missing.reason for missing in evaluation.missing]

    def clock(self):
        clock = Clock()
        if clock.library is None:
            self.skipTest("libfaketime is not installed")
        self.addCleanup(clock.close)
        return clock

    def days(self, server):
        """By how many days its clock is ahead."""
        with sis.Client(server.address, timeout=20) as client:
            (state,) = client.get_servers()
        return round((state.history[-1].at - time.time()) / 86400)

    def test_a_clock_that_jumps_ends_nothing_early_and_holds_nothing_up(self):
        clock = self.clock()
        server = self.serve("--run_idle_expiry=1h", prefix=clock.prefix)
        client = self.connect(server)
        kept = client.create_run("kept", time_to_live=3600, **CONFIG)
        self.append(client, kept, "s")
        client.fetch_top_k(kept, [sis.Slice("s", 0, POSITIONS)], keep_seconds=600)

        clock.set(2)
        until(lambda: self.days(server) == 2)
        ends = client.create_run("ends", time_to_live=0.5, **CONFIG)
        self.append(client, ends, "s")
        client.fetch_top_k(ends, [sis.Slice("s", 0, POSITIONS)], keep_seconds=0.5)
        clock.set(-2)
        until(lambda: self.days(server) == -2)
        # Twice its time, though the clock was set back by four days meanwhile.
        until(lambda: client.get_run("ends").sequences == 0)
        self.assertEqual(client.get_run("ends").kept_sequences, 0)
        # Nothing ended that had time left, though the clock was set forward by two days meanwhile.
        self.assertEqual(client.get_run("kept").kept_sequences, 1)
        self.assertEqual(self.scored(client, kept, "s"), (POSITIONS, []))
        self.append(client, kept, "t")
        self.assertEqual(self.scored(client, kept, "s", "t"), (2 * POSITIONS, []))

    def test_a_clock_jump_beyond_the_time_to_live_loses_records_in_rocksdb_only(self):
        clock = self.clock()
        folder = self.enterContext(tempfile.TemporaryDirectory())

        def start():
            server = self.serve(f"--store=rocksdb:{folder}/store", prefix=clock.prefix)
            return server, self.connect(server)

        def missing(client, *sequences):
            """Why each that is missing is; all else is scored."""
            scored, reasons = self.scored(client, run, *sequences)
            self.assertEqual(scored, POSITIONS * (len(sequences) - len(reasons)))
            return reasons

        gone = sis.MissingReason.NEVER_ARRIVED
        server, client = start()
        run = client.create_run("run", time_to_live=3600, **CONFIG)
        self.append(client, run, "before", "grows")
        clock.set(2)
        until(lambda: self.days(server) == 2)
        # Memory goes by a clock that nobody sets, also to add to what the store takes for expired.
        self.append(client, run, "grows", first_position=POSITIONS)
        self.append(client, run, "ahead")
        self.assertEqual(missing(client, "before", "grows", "ahead"), [])
        server.kill()
        server, client = start()
        self.assertEqual(self.days(server), 2)
        # The store no longer has the beginning of the one that grew.
        self.assertEqual(missing(client, "before", "grows"), [gone, gone])
        self.assertEqual(missing(client, "ahead"), [])
        # Expired records that were acked are not lost: they can be resent.
        self.append(client, run, "before")
        self.assertEqual(missing(client, "before"), [])

        clock.set(-2)
        until(lambda: self.days(server) == -2)
        self.append(client, run, "behind")
        self.assertEqual(missing(client, "before", "ahead", "behind"), [])
        server.kill()
        server, client = start()
        self.assertEqual(self.days(server), -2)
        self.assertEqual(missing(client, "before", "ahead", "behind"), [])
        server.kill()
        # Records stored while the clock was behind by more than their time to live expire once it is
        # right.
        clock.set(0)
        _, client = start()
        self.assertEqual(missing(client, "behind"), [gone])
        self.assertEqual(missing(client, "before", "ahead"), [])

    def test_a_call_without_a_deadline_has_the_servers(self):
        server = self.serve("--default_deadline=1ns")
        client = self.connect(server)  # which sets deadlines
        run = client.create_run("run", **CONFIG)
        self.append(client, run, "s")
        self.assertEqual(self.scored(client, run, "s"), (POSITIONS, []))
        ref = pb.RunRef(run_id="run")
        slices = [pb.Slice(sequence=pb.SequenceRef(id="s"), length=POSITIONS)]
        with grpc.insecure_channel(server.address) as channel:
            stub = ratio_service_pb2_grpc.RatioServiceStub(channel)
            evaluate = pb.EvaluateRequest(
                run=ref, slices=slices, draw=2, gathered=pb.Gathered(
                    counts=bytes([TOP_K]) * POSITIONS,
                    log_probs=np.full((POSITIONS, TOP_K), -1, np.float32).tobytes(),
                    sampled_log_probs=np.full(POSITIONS, -1, np.float32).tobytes(),
                ),
            )  # fmt: skip
            for name, call in {
                "GetRun": lambda **deadline: stub.GetRun(pb.GetRunRequest(run_id="run"), **deadline),
                "Release": lambda **deadline: stub.Release(pb.ReleaseRequest(run=ref), **deadline),
                "FetchTopK": lambda **deadline: list(stub.FetchTopK(pb.FetchTopKRequest(run=ref, slices=slices), **deadline)),
                "Evaluate": lambda **deadline: stub.Evaluate(evaluate, **deadline),
            }.items():
                with self.subTest(name):
                    with self.assertRaises(grpc.RpcError) as raised:
                        call()
                    self.assertEqual(raised.exception.code(), grpc.StatusCode.DEADLINE_EXCEEDED)
                    self.assertIn("not done within 1ns", raised.exception.details())
                    call(timeout=20)
        # A stream lives as long as its client wants.
        self.append(client, run, "t")
        self.assertEqual(client.get_run("run").sequences, 2)

    def test_floods_of_connections_cost_others_nothing_and_leave_nothing_behind(self):
        preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
        said = [b"", preface, preface[:10], b"GET / HTTP/1.1\r\n\r\n"]
        self.flood(self.serve(), said, None)

    def test_floods_of_tls_handshakes_cost_others_nothing_and_leave_nothing_behind(self):
        authority = Authority(self.enterContext(tempfile.TemporaryDirectory()), "authority")
        certificate, key = authority.issue("localhost", "server")
        server = self.serve(f"--tls_certificate={certificate}", f"--tls_key={key}")
        # The ClientHello, after which a client of TLS waits for the server.
        outgoing = ssl.MemoryBIO()
        asking = ssl.create_default_context().wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="localhost")
        with self.assertRaises(ssl.SSLWantReadError):
            asking.do_handshake()
        hello = outgoing.read()
        said = [b"", hello[: len(hello) // 2], hello, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"]
        self.flood(server, said, authority.path)

    def flood(self, server, said, ca):
        """Connections that say one of these and no more, beside clients that trust this authority."""
        client = self.connect(server, credentials=sis.Credentials(ca=ca) if ca else None)
        run = client.create_run("run", **CONFIG)
        self.append(client, run, "s")
        files = lambda: len(os.listdir(f"/proc/{server.process.pid}/fd"))
        before = files()
        host, _, port = server.address.rpartition(":")

        def connect(data, reset):
            connection = socket.create_connection((host, int(port)), timeout=20)
            connection.sendall(data)
            if reset:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            return connection

        for round_ in range(4):
            held = []
            for kind in range(300):
                connection = connect(said[kind % len(said)], reset=kind % 2 == 0)
                # Half of them end at once, the others together.
                if kind % 8 < 4:
                    connection.close()
                else:
                    held.append(connection)
            self.assertEqual(self.scored(client, run, "s"), (POSITIONS, []), round_)
            # A new connection is served too. Other clients of this process share one.
            options = [("grpc.use_local_subchannel_pool", 1)]
            if ca is None:
                channel = grpc.insecure_channel(server.address, options)
            else:
                trusted = grpc.ssl_channel_credentials(pathlib.Path(ca).read_bytes())
                channel = grpc.secure_channel(server.address, trusted, options)
            with channel:
                newcomer = ratio_service_pb2_grpc.RatioServiceStub(channel)
                self.assertEqual(len(newcomer.ListRuns(pb.ListRunsRequest(), timeout=20).runs), 1)
            self.assertTrue(self.get(server, "/readyz").startswith("ready"))
            for connection in held:
                connection.close()
        until(lambda: files() <= before + 2)
        self.append(client, run, "t")
        self.assertEqual(self.scored(client, run, "s", "t"), (2 * POSITIONS, []))

    def test_names_that_would_break_the_metrics(self):
        server = self.serve()
        client = self.connect(server)
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
