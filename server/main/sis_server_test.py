"""The program as a person meets it: help, bad flags, a taken port, silent clients, and SIGTERM."""

import signal
import socket
import subprocess
import unittest
import urllib.request

from server.testing.live_server import BINARY, LiveServer


def run(*flags):
    return subprocess.run([BINARY, *flags], capture_output=True, text=True, timeout=30)


class SisServerTest(unittest.TestCase):
    def start(self, *flags):
        server = LiveServer(*flags)
        self.addCleanup(server.kill)
        return server

    def test_help_lists_the_flags(self):
        shown = run("--help").stdout
        for flag in ("--listen", "--metrics", "--backend", "--cache_bytes", "--device_cache_bytes", "--max_top_k", "--shutdown_grace"):
            self.assertIn(flag, shown)

    def test_only_this_machine_can_connect_unless_told_otherwise(self):
        shown = run("--help").stdout
        for flag in ("--listen", "--metrics"):
            self.assertRegex(shown, rf'{flag} \([^)]*\);\s+default:\s+"127\.0\.0\.1:\d+"')

    def test_a_flag_without_sense_is_refused_by_name(self):
        for flag in ("--max_top_k=255", "--cache_bytes=0", "--device_cache_bytes=-2", "--max_lease_seconds=nan", "--max_positions=2147483648", "--backend=gpu"):
            refused = run(flag)
            self.assertEqual(refused.returncode, 2, flag)
            self.assertIn(flag.split("=")[0], refused.stderr)

    def test_a_taken_port_is_refused(self):
        address = self.start().address
        refused = run(f"--listen={address}", "--metrics=", "--cache_bytes=67108864")
        self.assertEqual(refused.returncode, 1)
        self.assertIn(f"cannot listen on {address}", refused.stderr)

    def test_clients_that_say_nothing_hold_up_no_scrape(self):
        metrics = self.start().said["metrics"]
        host, _, port = metrics.rpartition(":")
        for _ in range(16):
            self.addCleanup(socket.create_connection((host, int(port))).close)
        with urllib.request.urlopen(f"http://{metrics}/metrics", timeout=20) as page:
            self.assertIn(b"sis_waiting_appends", page.read())

    def test_one_line_says_which_backend_and_why(self):
        asked = self.start("--backend=cpu").said
        self.assertRegex(asked["backend"], r"^cpu/\S+ \(as asked\)$")
        without = r"(no CUDA device, cudaError\w+|built without CUDA)"
        asked = self.start("--backend=cuda").said
        self.assertRegex(asked["backend"], rf"^(cuda/.+ \(as asked\)|cpu/\S+ \(asked for cuda, but {without}\))$")
        self.assertEqual("device cache" in asked, asked["backend"].startswith("cuda/"))
        left_out = self.start().said
        self.assertRegex(left_out["backend"], rf"^(cuda/.+ \(auto\)|cpu/\S+ \(auto, {without}\))$")

    def test_sigterm_ends_it_in_order(self):
        process = self.start().process
        process.send_signal(signal.SIGTERM)
        self.assertEqual(process.wait(timeout=30), 0)
        self.assertIn("shutting down", process.stdout.read())


if __name__ == "__main__":
    unittest.main()
