"""The promises of acks with each store, tested by killing a real server with RocksDB."""

import os
import pathlib
import shutil
import signal
import tempfile
import time
import unittest
import zlib
from typing import NamedTuple

import sis
from server.testing.live_server import LiveServer
from server.testing.random_records import random_record
from tests.integration import fleet_load
from tests.integration.live_server import ServersTest

TOP_K, VOCABULARY, POSITIONS, BLOCK = 8, 50, 400, 5


def recorded(sequence: str) -> sis.TopK:
    """The records of a sequence, the same whenever it is asked for."""
    return random_record(zlib.crc32(sequence.encode()), POSITIONS, VOCABULARY, TOP_K)


def send(stream, sequence: str, first: int, count: int = BLOCK) -> None:
    rows = {name: array[first : first + count] for name, array in recorded(sequence)._asdict().items()}
    stream.block(sequence, first_position=first, policy_version=0, **rows)


class Look(NamedTuple):
    """At a server that started with a damaged file."""

    what: str  # whole, or missing
    files_quarantined: int


def freeze(server):
    server.process.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, server.process.pid, os.WSTOPPED)  # threads go on until then


class StoreTest(ServersTest):
    def setUp(self):
        self.directory = tempfile.mkdtemp(dir="/tmp", prefix="sis_")
        self.addCleanup(shutil.rmtree, self.directory)

    def start(self, store):
        """Returns a server with a store, and a client of it."""
        server = self.serve(f"--store={store}")
        return server, self.connect(server)

    def create_run(self, client: sis.Client, **config):
        return client.create_run(
            "run", seed=1, vocabulary_size=VOCABULARY, top_k=TOP_K, log_prob_encoding="float32", **config
        )

    def append_stream(self, client: sis.Client, run):
        return client.append(run, sampling=sis.Sampling("processed", temperature=1.0))

    def store_whole(self, client: sis.Client, run, sequences) -> None:
        with self.append_stream(client, run) as stream:
            for sequence in sequences:
                send(stream, sequence, 0, POSITIONS)
                stream.seal(sequence, length=POSITIONS)

    def test_a_copy_of_a_stopped_store_is_a_store(self):
        """Also of one that stopped without a word, or for a moment: as a snapshot of the volume finds it."""
        original, copy = f"{self.directory}/db", f"{self.directory}/copy"
        for stop in (LiveServer.close, LiveServer.kill, freeze):
            with self.subTest(stop.__name__):
                server, client = self.start(f"rocksdb:{original}")
                fleet_load.create_run(client)
                load = fleet_load.Load([server.address])
                self.addCleanup(load.stop)
                load.go_on(sequences=100)
                stop(server)
                shutil.copytree(original, copy)
                acked = load.acked()
                server.kill()
                load.stop()
                for directory in (copy, original):
                    again, _ = self.start(f"rocksdb:{directory}")
                    self.assertNotIn("damaged", again.said["store"])
                    self.assertEqual(fleet_load.missing_of([again.address], acked), {})
                    again.kill()
                    shutil.rmtree(directory)

    def test_tables_are_of_a_format_that_older_rocksdb_reads(self):
        """Newer versions of RocksDB write by default a format that version 7.8 reports as damaged."""
        directory = f"{self.directory}/db"
        server, client = self.start(f"rocksdb:{directory}")
        self.store_whole(client, self.create_run(client), ["a"])
        server.kill()
        # Writes what the log had into a table.
        self.start(f"rocksdb:{directory}")[0].kill()
        formats = set()
        for path in pathlib.Path(directory).glob("*.sst"):
            # The end of the footer: the format, and 8 bytes that say what this is.
            formats.add(int.from_bytes(path.read_bytes()[-12:-8], "little"))
        self.assertEqual(formats, {5})

    def test_a_server_starts_with_damaged_files_of_rocksdb_and_never_gives_other_records(self):
        whole = f"{self.directory}/whole"
        names = [f"sequence {i}" for i in range(4)]
        # The second start writes what the log had into a table.
        for stored, stop in ((names[:3], LiveServer.close), (names[3:], LiveServer.kill)):
            server, client = self.start(f"rocksdb:{whole}")
            self.store_whole(client, self.create_run(client), stored)
            stop(server)
        files = [name for name in os.listdir(whole) if name.endswith((".sst", ".log")) or name.startswith(("MANIFEST", "CURRENT"))]
        damaged, seen = f"{self.directory}/damaged", set()
        for name in files:
            size = os.path.getsize(f"{whole}/{name}")
            for position in {0, size // 2} if size else ():
                shutil.copytree(whole, damaged)
                with open(f"{damaged}/{name}", "r+b") as file:
                    file.seek(position)
                    old = file.read(40)
                    file.seek(position)
                    file.write(bytes(byte ^ 0x55 for byte in old))
                with self.subTest(name, position=position):
                    seen.add(self.look_at_damaged(damaged, names))
                shutil.rmtree(damaged)
        self.assertEqual({"whole", "missing"}, {look.what for look in seen})
        # A table that can't be opened is quarantined, and counted.
        self.assertEqual({0, 1}, {look.files_quarantined for look in seen})

    def test_a_run_above_a_limit_that_was_lowered_is_reported(self):
        store = f"--store=rocksdb:{self.directory}/db"
        server = self.serve(store)
        self.create_run(self.connect(server))
        server.close()
        with tempfile.NamedTemporaryFile("a+") as stderr:
            server = self.serve(store, f"--max_top_k={TOP_K - 1}", stderr=stderr)
            self.assertIn("; quarantined runs: 1", server.said["store"])
            self.assertEqual(server.metrics()["sis_store_runs_quarantined"], 1)
            why = f"run 'run' is quarantined: its top_k is {TOP_K}, and --max_top_k={TOP_K - 1}"
            self.assertIn(f"store: {why}", pathlib.Path(stderr.name).read_text())

    def look_at_damaged(self, directory, names):
        """Starts a server with a damaged file. Returns whether all records are there, and the damaged files."""
        server, client = self.start(f"rocksdb:{directory}")
        files = int(server.metrics()["sis_store_damaged_files"])
        self.assertEqual(f"; damaged files in its folder 'lost': {files}" in server.said["store"], files > 0)
        # The calls of clients that used the run before.
        run = self.create_run(client)
        gone = self.missing_of(client, names)
        # The run continues.
        self.store_whole(client, run, ["another"])
        server.kill()
        again, client = self.start(f"rocksdb:{directory}")
        self.assertEqual(self.missing_of(client, ["another"]), {})
        again.kill()
        return Look("missing" if gone else "whole", files)

    def test_damage_met_while_writing_is_repaired_at_the_next_start(self):
        directory = f"{self.directory}/db"
        # The names in each table. The order of keys alternates between the tables.
        tables = [[f"sequence {i}{table}" for i in range(4)] for table in range(4)]
        names = sum(tables, [])
        for table in tables:
            # Each start writes what the log had into a table; RocksDB merges them when there are four.
            server, client = self.start(f"rocksdb:{directory}")
            with self.append_stream(client, self.create_run(client)) as stream:
                for name in table:
                    for first in range(0, POSITIONS, BLOCK):
                        send(stream, name, first)
            server.kill()
        files = sorted(name for name in os.listdir(directory) if name.endswith(".sst"))
        self.assertEqual(len(files), 3)
        with open(f"{directory}/{files[1]}", "r+b") as file:
            # In the middle of the second sequence: what opens and lists it doesn't read that.
            file.seek(os.path.getsize(file.name) * 3 // 8)
            file.write(b"damage")

        server, client = self.start(f"rocksdb:{directory}")
        self.assertNotIn("damaged", server.said["store"])
        run = self.create_run(client)
        end = time.monotonic() + 60
        with self.assertRaises(sis.AppendError) as raised:
            while time.monotonic() < end:
                self.store_whole(client, run, [f"more {time.monotonic()}"])
        self.assertIn("Corruption", str(raised.exception))
        # Other sequences can still be read, except those whose next key in the table is damaged.
        missing = self.missing_of(client, names)
        self.assertIn(tables[1][1], missing)
        self.assertEqual(set(missing.values()), {sis.MissingReason.CORRUPT})
        self.assertLessEqual(len(missing), len(names) // 2)
        server.kill()

        # The next start sets the table aside, and takes appends again.
        server, client = self.start(f"rocksdb:{directory}")
        self.assertRegex(server.said["store"], "; damaged files in its folder 'lost': [1-9]")
        self.assertEqual(set(self.missing_of(client, names)), set(tables[1]))
        self.store_whole(client, self.create_run(client), ["another"])
        server.kill()
        # The one after it has nothing to repair.
        self.assertFalse(os.path.exists(f"{directory}/repair"))
        _, client = self.start(f"rocksdb:{directory}")
        self.assertEqual(set(self.missing_of(client, [*names, "another"])), set(tables[1]))

    def missing_of(self, client, names):
        """{name: reason}; all others hold what was sent, bit by bit."""
        run = client.get_run("run").run
        records = client.fetch_top_k(run, [sis.Slice(name, 0, POSITIONS) for name in names])
        missing = {names[part.slice]: part.reason for part in records.missing}
        for index, name in enumerate(names):
            if name in missing:
                continue
            for field, array in recorded(name)._asdict().items():
                got = getattr(records, field.replace("top_k_", ""))[records.rows(index)]
                self.assertEqual(got.tobytes(), array.astype(got.dtype).tobytes(), (name, field))
        return missing


if __name__ == "__main__":
    unittest.main()
