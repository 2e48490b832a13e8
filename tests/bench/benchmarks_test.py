"""Checks that every benchmark runs once, with minimal work, and prints its table. The measured values
here are meaningless."""

import re
import shutil
import subprocess
import unittest

INGEST = ["tests/bench/ingest", "--top_k=10", "--block_tokens=32", "--streams=2", "--repetitions=1",
          "--megabytes=1"]  # fmt: skip

class BenchmarksTest(unittest.TestCase):
    def run_benchmark(self, *command):
        """Runs the command, checks that it succeeds, and returns its output."""
        ended = subprocess.run(command, capture_output=True, text=True, timeout=240)
        self.assertEqual(ended.returncode, 0, ended.stdout + ended.stderr)
        return ended.stdout

    @unittest.skipIf(shutil.which("redis-server") is None, "there is no redis-server")
    def test_ingest(self):
        self.assertRegex(self.run_benchmark(*INGEST), r"(?m)^ 10 +32 +2 +\d")

    @unittest.skipIf(shutil.which("redis-server") is None, "there is no redis-server")
    def test_stores(self):
        printed = self.run_benchmark("tests/bench/stores", "--sequences=8", "--length=64")
        for store in ("memory", "rocksdb", r"rocksdb\?sync=1", "Redis without .*", ".* everysec", ".* always"):
            self.assertRegex(printed, rf"(?m)^\| {store} \| \d+\.\d\d \(.*\) \|")

    def test_append_latency(self):
        printed = self.run_benchmark(
            "tests/bench/append_latency/append_latency", "--slots=3", "--rounds=2", "--tokens=100"
        )
        for way in ("client", "server", "packed", "echo"):
            self.assertRegex(printed, rf"(?m)^\| 3 \| {way} \| \d+ \| \d+\.\d\d \(.*\) \|")

    def test_append_streams(self):
        printed = self.run_benchmark("tests/bench/append_latency/streams", "--top_k=3", "--rounds=1")
        for load in ("1 | 1", "256 | 16"):
            self.assertRegex(printed, rf"(?m)^\| {re.escape(load)} \| 3 \| p50 (\| \d+, \d+\.\d\d \(.*\) ){{3}}\|$")

    def test_parts_of_a_trainers_path(self):
        for mass in ("0", "0.97"):
            printed = self.run_benchmark(
                "tests/bench/trainer_path/parts", "--slots=3", "--sequences=2", "--length=64",
                "--repetitions=1", f"--mass={mass}",
            )  # fmt: skip
            for part in ("append", "fetch", "evaluate"):
                self.assertRegex(printed, rf"(?m)^\| 3 \| {part}( \| \d+ \(\d+\)){{4}} \| \d+ \|$")


if __name__ == "__main__":
    unittest.main()
