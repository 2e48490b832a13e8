"""Three servers over one Redis: each reads the others' sequences, notices the others' changes, and
doesn't wait for a silent store."""

import shutil
import tempfile
import unittest

import sis
from server.testing.live_server import LiveServer
from server.testing.random_records import random_record
from server.testing.until import until
from tests.integration.redis_servers import RedisServer

VOCABULARY, TOP_K, POSITIONS, BLOCK = 40, 4, 60, 20
CONFIG = {"seed": 1, "vocabulary_size": VOCABULARY, "top_k": TOP_K, "log_prob_encoding": "float32"}
# Timeout of a call, in seconds. The store's own is shorter.
DEADLINE = 6.0
RECORDS = random_record(7, POSITIONS, VOCABULARY, TOP_K)._asdict()


class FleetTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.mkdtemp(dir="/tmp", prefix="sis_")
        cls.addClassCleanup(shutil.rmtree, folder)
        cls.redis = RedisServer(f"{folder}/redis")
        cls.addClassCleanup(cls.redis.kill)
        cls.servers, cls.clients = [], []
        for _ in range(3):
            cls.servers.append(LiveServer(f"--store={cls.redis.store}", cache_bytes=16 << 20))
            cls.addClassCleanup(cls.servers[-1].kill)
            # One for each server, so that a test says which is asked.
            cls.clients.append(sis.Client(cls.servers[-1].address, timeout=DEADLINE))
            cls.addClassCleanup(cls.clients[-1].close)

    def create_run(self, **config):
        return self.clients[0].create_run(self.id().rpartition(".")[2], **CONFIG, **config)

    def append(self, client, run, sequence, first=0, end=POSITIONS, seal=False):
        with client.append(run, sampling=sis.Sampling("raw"), retry_timeout=0) as stream:
            rows = {name: array[first:end] for name, array in RECORDS.items()}
            stream.block(sequence, first_position=first, policy_version=0, **rows)
            if seal:
                stream.seal(sequence, length=end)

    def assert_whole(self, records):
        self.assertEqual(records.missing, ())
        for name, array in RECORDS.items():
            got = getattr(records, name.replace("top_k_", ""))
            self.assertEqual(got.tobytes(), array.astype(got.dtype).tobytes(), name)

    def missing(self, client, run, sequence):
        records = client.fetch_top_k(run, [sis.Slice(sequence, 0, POSITIONS)])
        return {part.reason for part in records.missing}

    def test_each_reads_what_others_stored_and_notices_what_they_changed(self):
        run = self.create_run(max_staleness=1)
        is_listed = lambda client: run.id in {status.run.id for status in client.list_runs()}
        for client in self.clients:
            (state,) = client.get_servers()
            self.assertTrue(state.shared_store)
            until(lambda: is_listed(client))
        # Each has some of it in memory.
        for turn, client in enumerate(self.clients):
            self.append(client, run, "parts", BLOCK * turn, BLOCK * (turn + 1), seal=turn == 2)
        self.append(self.clients[0], run, "released", seal=True)
        answers = []
        for client in self.clients:
            records = client.fetch_top_k(run, ["parts"])
            self.assert_whole(records)
            self.assert_whole(client.fetch_top_k(run, ["released"]))
            answers.append(
                client.evaluate(
                    run, records, draw=1, log_probs=records.log_probs, sampled_log_probs=records.sampled_log_probs,
                    outputs=["decisions"],
                )
            )  # fmt: skip
        for answer in answers:
            self.assertEqual((answer.decisions.tobytes(), answer.totals), (answers[0].decisions.tobytes(), answers[0].totals))
        # A server compares records that are sent again, whoever has the earlier ones.
        self.append(self.clients[1], run, "parts", seal=True)
        with self.assertRaises(sis.AppendError) as raised:
            with self.clients[2].append(run, sampling=sis.Sampling("raw"), retry_timeout=0) as stream:
                stream.block("parts", first_position=0, policy_version=0, **random_record(8, 5, VOCABULARY, TOP_K)._asdict())
        self.assertEqual([refusal.code.name for refusal in raised.exception.refused], ["ALREADY_EXISTS"])

        self.assertEqual(self.clients[1].release(run, ["released"]).sequences, 1)
        self.clients[1].advance_version(run, 5)
        for client in self.clients:
            until(lambda: self.missing(client, run, "released") == {sis.MissingReason.RELEASED})
            until(lambda: client.get_run(run.id).policy_version == 5)
            until(lambda: self.missing(client, run, "parts") == {sis.MissingReason.STALE})
        self.assertTrue(self.clients[1].delete_run(run.id))
        for client in self.clients:
            until(lambda: not is_listed(client))
        self.assertEqual(self.create_run().incarnation, run.incarnation + 1)

    def test_a_silent_store_blocks_no_other_call(self):
        run = self.create_run()
        self.append(self.clients[0], run, "stored", seal=True)
        for client in self.clients:
            until(lambda: run.id in {status.run.id for status in client.list_runs()})
        self.redis.freeze()
        self.addCleanup(self.redis.thaw)
        try:
            self.assertEqual(self.missing(self.clients[1], run, "stored"), {sis.MissingReason.STORE_DOWN})
        except sis.Unavailable as error:
            self.assertNotIn("Deadline", str(error))
        with self.assertRaises(sis.AppendError) as raised:
            self.append(self.clients[2], run, "new", seal=True)
        self.assertEqual({refusal.code.name for refusal in raised.exception.refused}, {"UNAVAILABLE"})
        with sis.Client([server.address for server in self.servers], timeout=DEADLINE) as client:
            client.create_run(run.id, **CONFIG)
            with self.assertRaisesRegex(sis.Unavailable, "not all releases are stored"):
                client.release(run, ["another"])
            # No server is skipped for a store that fails.
            self.assertEqual([state for state in client.get_servers() if isinstance(state, sis.Error)], [])
        self.redis.thaw()

        until(lambda: not self.missing(self.clients[1], run, "stored"), seconds=10)
        self.append(self.clients[2], run, "new", seal=True)
        self.assert_whole(self.clients[0].fetch_top_k(run, ["new"]))


if __name__ == "__main__":
    unittest.main()
