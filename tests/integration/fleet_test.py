"""Three servers over one Redis: each reads the others' sequences, notices the others' changes, and
doesn't wait for a silent store."""

import shutil
import tempfile
import time
import unittest

import sis
from server.testing.live_server import LiveServer
from server.testing.random_records import random_record
from server.testing.until import until
from tests.integration.redis_servers import RedisServer

VOCABULARY, TOP_K, POSITIONS, BLOCK = 40, 4, 60, 20
CONFIG = {"seed": 1, "vocabulary_size": VOCABULARY, "top_k": TOP_K, "log_prob_encoding": "float32"}
# Maximum time until a server notices another's changes, and the time of a test's own calls, in seconds.
NOTICED = 2.5
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

    def noticed(self, ask, done=bool):
        until(ask, done, seconds=NOTICED)

    def test_servers_say_that_they_share_a_store(self):
        for client in self.clients:
            (state,) = client.get_servers()
            self.assertTrue(state.shared_store)
        alone = LiveServer()
        self.addCleanup(alone.kill)
        with sis.Client(alone.address) as client:
            self.assertFalse(client.get_servers()[0].shared_store)

    def test_each_reads_what_another_stored(self):
        run = self.create_run()
        self.append(self.clients[0], run, "whole", seal=True)
        answers = []
        for client in self.clients:
            records = client.fetch_top_k(run, ["whole"])
            self.assert_whole(records)
            answers.append(
                client.evaluate(
                    run, records, draw=1, log_probs=records.log_probs, sampled_log_probs=records.sampled_log_probs,
                    outputs=["accepted", "decisions"],
                )
            )
        for answer in answers:
            self.assertEqual(answer.decisions.tobytes(), answers[0].decisions.tobytes())
            self.assertEqual(answer.totals, answers[0].totals)

    def test_a_sequence_that_came_by_several_is_whole_at_each(self):
        """Each has some of it in memory."""
        run = self.create_run()
        for turn, client in enumerate(self.clients):
            first = BLOCK * turn
            self.append(client, run, "parts", first, first + BLOCK, seal=turn == 2)
        for client in self.clients:
            self.assert_whole(client.fetch_top_k(run, [sis.Slice("parts", 0, POSITIONS)]))
        # And what is sent again is compared, whoever has it.
        self.append(self.clients[1], run, "parts", seal=True)
        with self.assertRaises(sis.AppendError) as raised:
            with self.clients[2].append(run, sampling=sis.Sampling("raw"), retry_timeout=0) as stream:
                stream.block("parts", first_position=0, policy_version=0, **random_record(8, 5, VOCABULARY, TOP_K)._asdict())
        self.assertEqual([refusal.code.name for refusal in raised.exception.refused], ["ALREADY_EXISTS"])

    def test_what_one_released_is_released_at_each(self):
        run = self.create_run()
        slices = [sis.Slice("s", 0, POSITIONS)]
        self.append(self.clients[0], run, "s", 0, BLOCK)  # the others have it in the store alone
        self.assertEqual(self.clients[1].release(run, ["s"]).sequences, 1)
        for client in self.clients:
            missing = client.fetch_top_k(run, slices).missing
            self.assertEqual({part.reason for part in missing}, {sis.MissingReason.RELEASED})
            with self.assertRaises(sis.AppendError):
                self.append(client, run, "s", BLOCK, 2 * BLOCK)
        # Each has all of it in memory.
        self.append(self.clients[0], run, "whole", seal=True)
        for client in self.clients:
            self.assert_whole(client.fetch_top_k(run, ["whole"]))
        self.assertEqual(self.clients[1].release(run, ["whole"]).sequences, 1)
        for client in self.clients:
            missing = lambda: client.fetch_top_k(run, [sis.Slice("whole", 0, POSITIONS)]).missing
            self.noticed(lambda: {part.reason for part in missing()} == {sis.MissingReason.RELEASED})

    def test_runs_and_their_deletion_are_noticed(self):
        run = self.create_run()
        is_listed = lambda client: run.id in {status.run.id for status in client.list_runs()}
        for client in self.clients:
            self.noticed(lambda: is_listed(client))
        self.assertTrue(self.clients[1].delete_run(run.id))
        for client in self.clients:
            self.noticed(lambda: not is_listed(client))
        again = self.create_run()
        self.assertEqual(again.incarnation, run.incarnation + 1)
        for client in self.clients:
            self.noticed(lambda: is_listed(client))
            self.assertEqual(client.get_run(run.id).run.incarnation, again.incarnation)

    def test_policy_versions_are_noticed(self):
        run = self.create_run(max_staleness=1)
        self.append(self.clients[0], run, "old", seal=True)
        for client in self.clients:
            self.assert_whole(client.fetch_top_k(run, [sis.Slice("old", 0, POSITIONS)]))
        self.clients[1].advance_version(run, 5)
        for client in self.clients:
            self.noticed(lambda: client.get_run(run.id).policy_version == 5)
            reasons = lambda: {
                missing.reason for missing in client.fetch_top_k(run, [sis.Slice("old", 0, POSITIONS)]).missing
            }
            self.noticed(reasons, lambda found: found == {sis.MissingReason.STALE})

    def test_a_silent_store_blocks_no_other_call(self):
        run = self.create_run()
        self.append(self.clients[0], run, "stored", seal=True)
        for client in self.clients:
            self.noticed(lambda: run.id in {status.run.id for status in client.list_runs()})
        self.redis.freeze()
        self.addCleanup(self.redis.thaw)
        began = time.monotonic()
        try:
            missing = self.clients[1].fetch_top_k(run, [sis.Slice("stored", 0, POSITIONS)]).missing
            self.assertEqual({part.reason for part in missing}, {sis.MissingReason.STORE_DOWN})
        except sis.Unavailable as error:
            self.assertNotIn("Deadline", str(error))
        self.assertLess(time.monotonic() - began, DEADLINE)
        began = time.monotonic()
        with self.assertRaises(sis.AppendError) as raised:
            self.append(self.clients[2], run, "new", seal=True)
        self.assertEqual({refusal.code.name for refusal in raised.exception.refused}, {"UNAVAILABLE"})
        self.assertLess(time.monotonic() - began, DEADLINE)
        with sis.Client([server.address for server in self.servers], timeout=DEADLINE) as client:
            client.create_run(run.id, **CONFIG)
            with self.assertRaisesRegex(sis.Unavailable, "not all releases are stored"):
                client.release(run, ["another"])
            # No server is skipped for a store that fails.
            self.assertEqual([state for state in client.get_servers() if isinstance(state, sis.Error)], [])
        self.redis.thaw()

        def whole():
            return not self.clients[1].fetch_top_k(run, [sis.Slice("stored", 0, POSITIONS)]).missing

        until(whole, seconds=10)
        self.append(self.clients[2], run, "new", seal=True)
        self.assert_whole(self.clients[0].fetch_top_k(run, ["new"]))


if __name__ == "__main__":
    unittest.main()
