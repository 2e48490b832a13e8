"""A server whose disk others fill, or have filled: it starts, reads and makes room, and goes on when
there is some."""

import contextlib
import itertools
import os
import subprocess
import tempfile
import threading
import time
import unittest
import urllib.request

import sis
from server.testing.random_records import random_record
from server.testing.until import until
from tests.integration import large_sequences
from tests.integration.live_server import ServersTest

VOCABULARY, TOP_K, POSITIONS = 10, 2, 20


class SmallFiles:
    """A file system of 400 MiB at `path`, for processes that are started with `enter`."""

    def __init__(self, path):
        mount = f"mount -t tmpfs -o size=400m none {path} && echo mounted && exec sleep infinity"
        self._process = subprocess.Popen(
            ["unshare", "-U", "-r", "-m", "sh", "-c", mount],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        said = self._process.stdout.readline()
        if said != "mounted\n":
            raise unittest.SkipTest(f"no file system of its own: {said}")
        self.enter = ["nsenter", "-t", str(self._process.pid), "-U", "-m", "--preserve-credentials"]
        self.path = f"/proc/{self._process.pid}/root{path}"  # as seen from here

    def fill(self):
        files = os.statvfs(self.path)
        with open(f"{self.path}/filler", "wb") as filler:
            os.posix_fallocate(filler.fileno(), 0, files.f_bavail * files.f_frsize)

    def empty(self):
        os.unlink(f"{self.path}/filler")

    def close(self):
        self._process.kill()
        self._process.wait()
        self._process.stdout.close()


class FullDiskTest(ServersTest):
    def setUp(self):
        self.folder = self.enterContext(tempfile.TemporaryDirectory())
        self.files = SmallFiles(self.folder)
        self.addCleanup(self.files.close)
        self.stderr = self.enterContext(tempfile.NamedTemporaryFile("a"))

    def said(self):
        """Returns the lines about stores on the servers' stderr."""
        with open(self.stderr.name, encoding="utf-8") as stderr:
            return [line for line in stderr.read().splitlines() if line.startswith("store: ")]

    def is_read_only(self):
        with urllib.request.urlopen(f"http://{self.server.admin_address}/readyz", timeout=20) as page:
            said = page.read().decode()
        self.assertTrue(said.startswith("ready\n"))
        return self.server.metrics()["sis_store_read_only"] == 1 and "\nread-only" in said

    def append(self, client, run, sequence):
        record = random_record(1, POSITIONS, VOCABULARY, TOP_K)
        with client.append(run, sampling=sis.Sampling("raw"), retry_timeout=0.1) as stream:
            stream.block(sequence, first_position=0, policy_version=0, **record._asdict())
            stream.seal(sequence, length=POSITIONS)

    def start(self):
        store = f"--store=rocksdb:{self.folder}/store"
        self.server = self.serve(store, prefix=self.files.enter, stderr=self.stderr)
        return self.connect(self.server)

    def test_it_fills_while_a_worker_appends(self):
        client = self.start()
        run = client.create_run("run", seed=1, vocabulary_size=VOCABULARY, top_k=TOP_K)
        acked, refusals = [], []
        stop = threading.Event()

        def work():
            for number in itertools.count():
                if stop.is_set():
                    return
                try:
                    self.append(client, run, f"s{number}")
                    acked.append(f"s{number}")
                except sis.AppendError as error:
                    refusals.extend(error.refused)

        worker = threading.Thread(target=work)
        worker.start()
        self.addCleanup(worker.join)
        self.addCleanup(stop.set)
        until(lambda: len(acked) > 20)
        self.assertEqual(self.said(), [])
        self.files.fill()
        until(lambda: refusals and self.is_read_only())
        self.assertEqual({refusal.code.name for refusal in refusals}, {"RESOURCE_EXHAUSTED"})
        self.assertRegex(refusals[0].message, "bytes free")
        self.assertEqual(len(self.said()), 1)
        self.assertRegex(self.said()[0], "^store: read-only, takes no appends: .* bytes free")
        before = len(acked)
        self.assertEqual(client.fetch_top_k(run, acked[:before]).missing, ())
        self.files.empty()
        until(lambda: len(acked) > before + 20 and not self.is_read_only())
        stop.set()
        worker.join()
        until(lambda: self.said()[1:] == ["store: takes appends again"])
        self.server.kill()
        client = self.start()
        self.assertEqual(client.fetch_top_k(run, acked).missing, ())

    def test_probes_are_answered_even_if_nobody_reads_stderr(self):
        unread, full = os.pipe()
        self.addCleanup(os.close, unread)
        os.set_blocking(full, False)
        with contextlib.suppress(BlockingIOError):
            while True:
                os.write(full, bytes(1 << 16))
        os.set_blocking(full, True)
        self.stderr = self.enterContext(os.fdopen(full, "wb"))
        self.start()
        self.assertFalse(self.is_read_only())
        self.files.fill()
        until(self.is_read_only)

    def test_it_starts_and_makes_room(self):
        client = self.start()
        config = {"seed": 1, "vocabulary_size": VOCABULARY, "top_k": TOP_K}
        run, other = client.create_run("run", **config), client.create_run("other", **config)
        for sequence in ("kept", "released"):
            self.append(client, run, sequence)
        self.append(client, other, "deleted")
        self.assertFalse(self.is_read_only())
        self.server.close()

        self.files.fill()
        client = self.start()
        self.assertTrue(self.is_read_only())
        self.assertRegex(self.said()[0], "^store: read-only, takes no appends: .* bytes free")
        records = client.fetch_top_k(run, ["kept", "released"])
        evaluation = client.evaluate(
            run, records, draw=1, log_probs=records.log_probs, sampled_log_probs=records.sampled_log_probs
        )
        self.assertEqual((evaluation.missing, evaluation.totals.scored), ((), 2 * POSITIONS))
        with self.assertRaisesRegex(sis.AppendError, "bytes free") as raised:
            self.append(client, run, "new")
        self.assertEqual({refusal.code.name for refusal in raised.exception.refused}, {"RESOURCE_EXHAUSTED"})
        self.assertEqual(client.release(run, ["released"]).sequences, 1)
        self.assertTrue(client.delete_run("other"))
        self.assertEqual(client.advance_version(run, 1), 0)
        self.server.kill()  # what was answered is stored

        client = self.start()
        self.assertEqual([status.run.id for status in client.list_runs()], ["run"])
        self.assertEqual(client.get_run("run").policy_version, 1)
        missing = client.fetch_top_k(run, ["kept", sis.Slice("released", 0, POSITIONS)]).missing
        self.assertEqual([(m.slice, m.reason) for m in missing], [(1, sis.MissingReason.RELEASED)])
        self.assertTrue(self.is_read_only())

        self.files.empty()
        until(lambda: not self.is_read_only())
        self.append(client, run, "new")
        self.assertEqual(client.fetch_top_k(run, ["new"]).missing, ())

    def test_what_is_released_or_deleted_gives_its_room_back(self):
        client = self.start()
        for way in ("release", "delete"):
            run = client.create_run("run", **large_sequences.CONFIG)
            # Until RocksDB finds no more room by itself.
            appended, refused = 0, 0
            while refused < 3:
                try:
                    large_sequences.append(client, run, [appended], retry_timeout=0)
                    appended, refused = appended + 1, 0
                except sis.AppendError as error:
                    self.assertIn("bytes free", str(error))
                    refused += 1
                    time.sleep(1)
            until(self.is_read_only)
            if way == "release":
                names = [large_sequences.name(i) for i in range(appended)]
                self.assertEqual(client.release(run, names).sequences, appended)
            else:
                self.assertTrue(client.delete_run("run"))
            until(lambda: not self.is_read_only())
            run = client.create_run("another", **large_sequences.CONFIG)
            large_sequences.append(client, run, [0])
            self.assertEqual(client.fetch_top_k(run, [large_sequences.name(0)]).missing, ())
            for name in ("run", "another"):
                client.delete_run(name)


if __name__ == "__main__":
    unittest.main()
