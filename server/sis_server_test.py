"""The program as a person meets it: help, bad flags, a taken port, and SIGTERM."""

import signal
import subprocess
import unittest

SERVER = "server/sis_server"


def run(*flags):
    return subprocess.run([SERVER, *flags], capture_output=True, text=True, timeout=30)


class SisServerTest(unittest.TestCase):
    def start(self):
        server = subprocess.Popen(
            [SERVER, "--listen=127.0.0.1:0", "--metrics=", "--cache_bytes=67108864"], stdout=subprocess.PIPE, text=True
        )
        self.addCleanup(server.communicate)
        self.addCleanup(server.kill)
        lines = dict(line.strip().split(": ") for line in iter(server.stdout.readline, "ready\n"))
        return server, lines["grpc"]

    def test_help_lists_the_flags(self):
        shown = run("--help").stdout
        for flag in ("--listen", "--metrics", "--cache_bytes", "--max_top_k", "--shutdown_grace"):
            self.assertIn(flag, shown)

    def test_a_flag_without_sense_is_refused_by_name(self):
        for flag in ("--max_top_k=255", "--cache_bytes=0", "--max_lease_seconds=nan", "--max_positions=2147483648"):
            refused = run(flag)
            self.assertEqual(refused.returncode, 2, flag)
            self.assertIn(flag.split("=")[0], refused.stderr)

    def test_a_taken_port_is_refused(self):
        _, address = self.start()
        refused = run(f"--listen={address}", "--metrics=", "--cache_bytes=67108864")
        self.assertEqual(refused.returncode, 1)
        self.assertIn(f"cannot listen on {address}", refused.stderr)

    def test_sigterm_ends_it_in_order(self):
        server, _ = self.start()
        server.send_signal(signal.SIGTERM)
        self.assertEqual(server.wait(timeout=30), 0)
        self.assertIn("shutting down", server.stdout.read())


if __name__ == "__main__":
    unittest.main()
