"""`sisctl sequences`: what a run holds, from two replicas, in pages."""

import contextlib
import json
import pathlib
import subprocess
import tempfile
import unittest

import grpc
import numpy as np

import sis
from server.testing.live_server import LiveServer, two_replicas
from sis.v1 import ratio_service_pb2 as pb
from sis.v1 import ratio_service_pb2_grpc as pb_grpc

SISCTL = pathlib.Path("client/cli/sisctl")
VOCABULARY, TOP_K = 16, 2
# More than a page holds, in no order.
NAMES = [f"prompt-{number * 7919 % 2500}" for number in range(2500)]


def record(length):
    log_probs = np.log(np.full((length, VOCABULARY), 1 / VOCABULARY, np.float32))
    ids = np.broadcast_to(np.arange(VOCABULARY), log_probs.shape)
    return sis.canonical(ids, log_probs, np.zeros(length, int), log_probs[:, 0], TOP_K)._asdict()


class SequencesTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        servers = two_replicas(cls.addClassCleanup)
        cls.addresses = [server.address for server in servers]
        cls.client = sis.Client(cls.addresses, timeout=30)
        cls.addClassCleanup(cls.client.close)
        cls.run_ = cls.client.create_run("r", seed=1, vocabulary_size=VOCABULARY, top_k=TOP_K)
        with cls.client.append(cls.run_, sampling=sis.Sampling("raw")) as stream:
            for name in NAMES:
                stream.block(name, first_position=0, policy_version=4, **record(1))
            # A retry; and one of which the middle has not come.
            stream.block("prompt-7", attempt=1, first_position=0, policy_version=5, **record(3))
            stream.seal("prompt-7", attempt=1, length=3)
            stream.block("gap", first_position=0, policy_version=4, **record(2))
            stream.block("gap", first_position=5, policy_version=6, **record(2))
        cls.client.fetch_top_k(cls.run_, ["prompt-3"])
        cls.names = sorted([(name, 0) for name in NAMES] + [("prompt-7", 1), ("gap", 0)])

    def sisctl(self, *words, addresses=None, status=0):
        command = [SISCTL, f"--server={','.join(addresses or self.addresses)}", "sequences", *words]
        result = subprocess.run(command, capture_output=True, text=True, timeout=60)
        self.assertEqual(result.returncode, status, result.stderr)
        return result.stderr if status else result.stdout

    def test_all_are_listed_once_and_in_order(self):
        listed = json.loads(self.sisctl("r", "--json"))["sequences"]
        names = [(kept["sequence"]["id"], int(kept["sequence"].get("attempt", 0))) for kept in listed]
        self.assertEqual(names, self.names)
        rows = {line.split()[0]: line.split()[1:] for line in self.sisctl("r").splitlines()[1:]}
        self.assertEqual(len(rows), len({name for name, _ in self.names}))
        # Attempt, length, positions, sealed, read, version.
        self.assertEqual(rows["gap"][:6], ["0", "7", "4", "no", "no", "6"])
        self.assertEqual(rows["prompt-3"][:6], ["0", "1", "1", "no", "yes", "4"])
        self.assertEqual(rows["prompt-7"][:6], ["1", "3", "3", "yes", "no", "5"])
        self.assertGreater(int(rows["gap"][6]), 0)

    def test_a_page_begins_and_ends_where_it_is_told_to(self):
        with grpc.insecure_channel(self.addresses[0]) as channel:
            stub = pb_grpc.RatioServiceStub(channel)
            run = pb.RunRef(run_id="r")
            held = stub.GetRun(pb.GetRunRequest(run_id="r")).run.sequences
            for limit in (1, 7, 1000, 0):
                seen, after, most = [], None, limit or 1000
                while True:
                    page = stub.ListSequences(pb.ListSequencesRequest(run=run, after=after, limit=limit))
                    self.assertTrue(len(page.sequences) == most or not page.more)
                    seen += page.sequences
                    if not page.more or len(seen) > 3 * most:
                        break
                    after = page.sequences[-1].sequence
                names = [(kept.sequence.id, kept.sequence.attempt) for kept in seen]
                self.assertEqual(names, sorted(set(names)))
                self.assertTrue(page.more or len(names) == held)
            # One that isn't there is a place too.
            request = pb.ListSequencesRequest(run=run, after=pb.SequenceRef(id="prompt-5z"), limit=1000)
            after = [(kept.sequence.id, kept.sequence.attempt) for kept in stub.ListSequences(request).sequences]
            self.assertEqual(after, [name for name in names if name[0] > "prompt-5z"])
            self.assertGreater(len(after), 100)
            for bad in (pb.ListSequencesRequest(run=run, limit=1001),
                        pb.ListSequencesRequest(run=run, after=pb.SequenceRef(id="x" * 257))):
                with self.assertRaises(grpc.RpcError) as refused:
                    stub.ListSequences(bad)
                self.assertIs(refused.exception.code(), grpc.StatusCode.INVALID_ARGUMENT)

    def test_where_a_store_keeps_what_was_evicted_that_is_said(self):
        with tempfile.TemporaryDirectory() as folder:
            server = LiveServer(f"--store=rocksdb:{folder}", cache_bytes=16 << 20)
            with contextlib.closing(server), sis.Client(server.address, timeout=30) as client:
                run = client.create_run("r", seed=1, vocabulary_size=VOCABULARY, top_k=TOP_K)
                block, appended = {"first_position": 0, "policy_version": 1, **record(512)}, 0
                with client.append(run, sampling=sis.Sampling("raw")) as stream:
                    while client.get_run("r").sequences == appended:
                        for _ in range(100):
                            stream.block(f"prompt-{appended}", **block)
                            appended += 1
                        stream.flush()
                shown = self.sisctl("r", addresses=[server.address])
                listed = json.loads(self.sisctl("r", "--json", addresses=[server.address]))
        self.assertLess(len(listed["sequences"]), appended)
        self.assertIs(listed["store_keeps_evicted"], True)
        self.assertIn("others may have been evicted", shown.splitlines()[-1])
        self.assertNotIn("evicted", self.sisctl("r"))
        self.assertIs(json.loads(self.sisctl("r", "--json"))["store_keeps_evicted"], False)

    def test_looking_is_no_use(self):
        """What is listed is not read by that, nor does it live longer."""
        self.sisctl("r")
        unread = self.client.get_run("r").unread_sequences
        self.assertEqual(unread, len(self.names) - 1)

    def test_refusals(self):
        nowhere = self.sisctl("nowhere", status=1)
        self.assertEqual(nowhere, "sisctl: run 'nowhere' is unknown (NOT_FOUND)\n")
        down = self.sisctl("r", addresses=[self.addresses[0], "127.0.0.1:1"], status=1)
        self.assertIn("server 2 of 2 gives no answer", down)


if __name__ == "__main__":
    unittest.main()
