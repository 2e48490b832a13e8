"""A short soak writes what a long one does, and memory that grows is seen."""

import itertools
import pathlib
import re
import tempfile
import threading
import time
import unittest
import unittest.mock
import urllib.request

import grpc
import numpy as np

import sis
from server.testing.live_server import LiveServer
from server.testing.until import until
from tests.soak import load, report, soak


def samples(resident_bytes):
    return [{"seconds": 5.0 * i, "resident_bytes": value} for i, value in enumerate(resident_bytes)]


class ReportTest(unittest.TestCase):
    def test_noise_is_flat_and_a_leak_is_not(self):
        rng = np.random.default_rng(1)
        noise = 100e6 + 0.2e6 * rng.normal(size=120)
        self.assertTrue(report.memory(samples(noise)).flat)
        # 4 MB in ten minutes. The last 60% count.
        leak = report.memory(samples(noise + np.linspace(0, 4e6, 120)))
        self.assertFalse(leak.flat)
        self.assertLess(leak.growth.low, 4e6 * 0.6)
        self.assertGreater(leak.growth.high, 4e6 * 0.6)

    def test_what_fills_at_first_is_left_out(self):
        filling = np.concatenate([np.linspace(50e6, 100e6, 25), np.full(95, 100e6)])
        self.assertTrue(report.memory(samples(filling)).flat)

    def test_too_noisy_to_tell_is_not_flat(self):
        steps = np.where(np.arange(120) // 20 % 2, 100e6, 130e6)
        self.assertFalse(report.memory(samples(steps)).flat)


class LoadTest(unittest.TestCase):
    @unittest.mock.patch.multiple(load, RUN_SECONDS=0.05, FAREWELL_SECONDS=0.05)
    def test_no_run_stays_that_could_not_be_deleted_when_it_ended(self):
        delete_run, calls = sis.Client.delete_run, itertools.count()

        def delete_or_fail(client, run):
            if next(calls) < 3:
                raise sis.Unavailable(grpc.StatusCode.UNAVAILABLE, "the store is away")
            return delete_run(client, run)

        server = LiveServer()
        self.addCleanup(server.kill)
        with unittest.mock.patch.object(sis.Client, "delete_run", delete_or_fail):
            runs = load.Load("memory", server.address, 0.3)
            self.addCleanup(runs.stop)
            with sis.Client(server.address) as client:
                until(lambda: len(runs.failures) >= 3)
                until(client.list_runs, lambda listed: len(listed) <= load.RUNS_KEPT)
        self.assertEqual([failure for failure in runs.failures if "the store is away" not in failure], [])


class SoakTest(unittest.TestCase):
    def test_a_short_one(self):
        with tempfile.TemporaryDirectory() as folder:
            output = pathlib.Path(folder)
            text, _ = soak.soak(5, output)
            self.assertNotIn("not asked for:", text)
            for name in ("memory", "rocksdb", "redis"):
                self.assertIn(f"\n{name}: resident ", text)
            self.assertEqual((output / "summary.txt").read_text(), text)
            self.assertIn("</svg>", (output / "soak.svg").read_text())

    def test_it_ends_with_a_server_and_reports_it(self):
        servers = []

        def start(*arguments, **named):
            servers.append(LiveServer(*arguments, **named))
            return servers[-1]

        def kill_one_in_the_middle():
            while len(servers) < 3:
                time.sleep(0.01)
            time.sleep(1)
            servers[1].process.kill()

        killer = threading.Thread(target=kill_one_in_the_middle, daemon=True)
        killer.start()
        with tempfile.TemporaryDirectory() as folder, unittest.mock.patch.object(soak, "LiveServer", start):
            text, good = soak.soak(600, pathlib.Path(folder))
        killer.join()
        self.assertFalse(good)
        self.assertIn("\nnot asked for: rocksdb ended with -9\n", text)
        # Only calls of the ended server failed.
        self.assertNotIn("not asked for: memory", text)
        self.assertIn("\nrocksdb: too few samples to tell\n", text)

    def test_a_dropped_read_of_the_metrics_is_counted_and_doesn_t_end_it(self):
        read, reads = urllib.request.urlopen, itertools.count()

        def read_or_drop(*arguments, **named):
            if next(reads) % 3 == 0:
                raise ConnectionResetError("dropped")
            return read(*arguments, **named)

        with tempfile.TemporaryDirectory() as folder, unittest.mock.patch("urllib.request.urlopen", read_or_drop):
            text, good = soak.soak(5, pathlib.Path(folder))
        self.assertFalse(good)
        dropped = [int(number) for number in re.findall(r"reads of /metrics that failed: (\d+)", text)]
        self.assertEqual(sum(dropped), (next(reads) + 2) // 3)
        self.assertEqual(text.count("/metrics: ConnectionResetError('dropped')"), min(20, sum(dropped)))
        self.assertIn("; the cache was up to ", text)

    def test_a_cache_that_never_was_full_or_never_read_is_not_at_its_budget(self):
        for share, good, said in ((0.95, True, "up to 95% full"), (0.5, False, "up to 50% full"), (None, False, "never read")):
            with self.subTest(share):
                taken = [{**sample, "cache_share": share, "descriptors": 1, "threads": 1} for sample in samples([1e8] * 120)]
                text, verdict = report.summary("title", {"memory": taken}, {"memory": {}}, [])
                self.assertIs(verdict, good)
                self.assertIn(f"; the cache was {said}; ", text)


if __name__ == "__main__":
    unittest.main()
