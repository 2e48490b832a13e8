"""Three servers restarted one after the other while workers append and a trainer evaluates: it costs
no step and no acked block."""

import shutil
import tempfile
import threading
import time
import unittest

import numpy as np

import sis
from server.testing.live_server import LiveServer
from server.testing.random_records import random_record
from sis.servers.placement import Placement

VOCABULARY, TOP_K, POSITIONS = 40, 4, 30
# Of the sequences acked last, which a step evaluates.
STEP = 12


def recorded(sequence):
    return random_record(int(sequence), POSITIONS, VOCABULARY, TOP_K)


class Load:
    """Workers that send what is refused again, and a trainer, until it is stopped. Each has a client
    of its own."""

    def __init__(self, addresses, run_id, workers=2):
        self._addresses, self._run_id, self._workers = addresses, run_id, workers
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self.acked = []
        self.steps = 0
        self.steps_with_all = 0  # in a row, at present
        self.failures = []
        jobs = [threading.Thread(target=self._guard, args=[self._work, n]) for n in range(workers)]
        self._threads = [*jobs, threading.Thread(target=self._guard, args=[self._train])]
        for thread in self._threads:
            thread.start()

    def acked_so_far(self):
        with self._lock:
            return list(self.acked)

    def stop(self):
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def until(self, done):
        for _ in range(1200):
            if done() or self.failures:
                return
            time.sleep(0.05)
        raise AssertionError(f"still not, after {self.steps} steps and {len(self.acked)} acks")

    def _guard(self, job, *arguments):
        try:
            with sis.Client(self._addresses, timeout=20) as client:
                job(client, client.get_run(self._run_id).run, *arguments)
        except Exception as error:  # which the test asserts
            self.failures.append(error)

    def _work(self, client, run, worker):
        number = worker
        stream = client.append(run, sampling=sis.Sampling("raw"))
        while not self._stop.is_set():
            # A step's worth at a time, so that all replicas have something under way.
            wanted = {str(number + self._workers * i) for i in range(6)}
            number += self._workers * len(wanted)
            while wanted and not self._stop.is_set():
                for sequence in wanted:
                    stream.block(sequence, first_position=0, policy_version=0, **recorded(sequence)._asdict())
                    stream.seal(sequence, length=POSITIONS)
                refused = set()
                try:
                    stream.flush()
                except sis.AppendError as error:
                    assert {entry.code.name for entry in error.refused} == {"UNAVAILABLE"}, error
                    refused = {entry.sequence for entry in error.refused}
                with self._lock:
                    self.acked += sorted(wanted - refused)
                wanted = refused
                if refused:
                    time.sleep(0.05)
        stream.abandon()

    def _train(self, client, run):
        while not self._stop.is_set():
            sequences = self.acked_so_far()[-STEP:]
            if not sequences:
                time.sleep(0.01)
                continue
            records = client.fetch_top_k(run, [sis.Slice(sequence, 0, POSITIONS) for sequence in sequences])
            self.steps += 1
            evaluation = client.evaluate(
                run,
                records,
                draw=self.steps,
                log_probs=records.log_probs,
                sampled_log_probs=np.where(records.present, records.sampled_log_probs, -1),
            )
            allowed = {sis.MissingReason.STORE_DOWN, sis.MissingReason.NEVER_ARRIVED}
            assert {missing.reason for missing in evaluation.missing} <= allowed, evaluation.missing
            self.steps_with_all = 0 if evaluation.missing else self.steps_with_all + 1


class RollingRestartTest(unittest.TestCase):
    def folder(self):
        folder = tempfile.mkdtemp(dir="/tmp", prefix="sis_")  # names of sockets are short
        self.addCleanup(shutil.rmtree, folder)
        return folder

    def serve(self, store, listen="127.0.0.1:0"):
        server = LiveServer(f"--store={store}", listen=listen, cache_bytes=16 << 20)
        self.addCleanup(server.kill)
        return server

    def roll(self, stores):
        """Restarts each of the servers under load. Returns the addresses, what was acked in all, and
        of each server what was acked when it was told to end and when it was back."""
        servers = [self.serve(store) for store in stores]
        addresses = [server.address for server in servers]
        with sis.Client(addresses, timeout=20) as client:
            client.create_run("run", seed=1, vocabulary_size=VOCABULARY, top_k=TOP_K, log_prob_encoding="float32")
        load = Load(addresses, "run")
        self.addCleanup(load.stop)
        restarts = []
        for index, store in enumerate(stores):
            load.until(lambda: load.steps_with_all >= 3)
            before = set(load.acked_so_far())
            servers[index].close()
            self.assertEqual(servers[index].process.returncode, 0)
            during = load.steps
            load.until(lambda: load.steps >= during + 3)  # steps go on without it
            servers[index] = self.serve(store, listen=addresses[index])
            restarts.append((before, set(load.acked_so_far())))
            load.steps_with_all = 0
        load.until(lambda: load.steps_with_all >= 3)
        load.stop()
        self.assertEqual(load.failures, [])
        return addresses, load.acked, restarts

    def missing_of(self, addresses, sequences):
        """What of these is missing; the rest is bit by bit what was sent."""
        with sis.Client(addresses, timeout=20) as client:
            run = client.get_run("run").run
            slices = [sis.Slice(sequence, 0, POSITIONS) for sequence in sequences]
            records = client.fetch_top_k(run, slices)
        for number, sequence in enumerate(sequences):
            rows = records.rows(number)
            if records.present[rows].all():
                for name, array in recorded(sequence)._asdict().items():
                    got = getattr(records, name.replace("top_k_", ""))[rows]
                    self.assertEqual(got.tobytes(), array.astype(got.dtype).tobytes(), sequence)
        return {sequences[missing.slice]: missing.reason for missing in records.missing}

    def test_in_memory_each_costs_its_share_and_no_more(self):
        addresses, acked, restarts = self.roll(["memory"] * 3)
        missing = self.missing_of(addresses, acked)
        self.assertLessEqual(set(missing.values()), {sis.MissingReason.NEVER_ARRIVED})
        placement = Placement(addresses)
        owner = {sequence: placement.replica("run", sequence) for sequence in acked}
        for index, (before, back) in enumerate(restarts):
            share = {sequence for sequence in acked if owner[sequence] == index}
            self.assertLessEqual(share & before, set(missing))
            self.assertEqual(set(missing) & (share - back), set())

    def test_with_rocksdb_nothing_that_was_acked_is_lost(self):
        folder = self.folder()
        addresses, acked, _ = self.roll([f"rocksdb:{folder}/{index}" for index in range(3)])
        self.assertEqual(self.missing_of(addresses, acked), {})


if __name__ == "__main__":
    unittest.main()
