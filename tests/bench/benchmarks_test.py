"""Checks that every benchmark runs once, with minimal work, and prints its table. The measured values
here are meaningless."""

import subprocess
import unittest


class BenchmarksTest(unittest.TestCase):
    def run_benchmark(self, *command):
        """Runs the command, checks that it succeeds, and returns its output."""
        ended = subprocess.run(command, capture_output=True, text=True, timeout=240)
        self.assertEqual(ended.returncode, 0, ended.stdout + ended.stderr)
        return ended.stdout

    def test_mixed(self):
        printed = self.run_benchmark("tests/bench/mixed", "--seconds=1", "--tokens_per_second=500")
        for store in ("memory", "rocksdb"):
            self.assertRegex(printed, rf"(?m)^\| {store} \| 500 \| \d+ \|")

    def test_append_latency(self):
        printed = self.run_benchmark(
            "tests/bench/append_latency/append_latency", "--slots=3", "--rounds=2", "--tokens=100"
        )
        cells = r"\d+ \| \d+ \| \d+\.\d\d \(.*\) \|"
        self.assertRegex(printed, rf"(?m)^\| 3 \| {cells} {cells}$")


if __name__ == "__main__":
    unittest.main()
