"""The program as a person meets it: help, bad flags, a taken address, silent clients, and
SIGTERM."""

import json
import os
import signal
import socket
import subprocess
import tempfile
import unittest
import urllib.request

from server.testing.live_server import BINARY, LiveServer


def run(*flags):
    return subprocess.run([BINARY, *flags], capture_output=True, text=True, timeout=30)


def answers(path):
    """Whether somebody accepts connections at a Unix socket."""
    with socket.socket(socket.AF_UNIX) as client:
        return client.connect_ex(path) == 0


class SisServerTest(unittest.TestCase):
    def start(self, *flags):
        server = LiveServer(*flags)
        self.addCleanup(server.kill)
        return server

    def folder(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        return folder.name

    def test_help_lists_the_flags(self):
        shown = run("--help").stdout
        for flag in ("--listen", "--admin", "--backend", "--cache_bytes", "--device_cache_bytes", "--max_top_k", "--shutdown_grace"):
            self.assertIn(flag, shown)

    def test_only_this_machine_can_connect_unless_told_otherwise(self):
        shown = run("--help").stdout
        for flag in ("--listen", "--admin"):
            self.assertRegex(shown, rf'{flag} \([^)]*\);\s+default:\s+"127\.0\.0\.1:\d+"')

    def test_a_flag_without_sense_is_refused_by_name(self):
        for flag in ("--max_top_k=255", "--cache_bytes=0", "--device_cache_bytes=-2", "--max_lease_seconds=nan", "--max_positions=2147483648", "--backend=gpu"):
            refused = run(flag)
            self.assertEqual(refused.returncode, 2, flag)
            self.assertIn(flag.split("=")[0], refused.stderr)

    def test_a_taken_port_is_refused(self):
        address = self.start().address
        refused = run(f"--listen={address}", "--admin=", "--cache_bytes=67108864")
        self.assertEqual(refused.returncode, 1)
        self.assertIn(f"cannot listen on {address}", refused.stderr)

    def test_a_unix_socket_at_which_somebody_answers_is_refused(self):
        folder = self.folder()
        path = f"{folder}/socket"
        first = self.start(f"--listen=unix:{path}")
        for spelling in (f"unix:{path}", f"unix://{path}"):
            refused = run(f"--listen={spelling}", "--admin=", "--cache_bytes=67108864")
            self.assertEqual(refused.returncode, 1)
            self.assertIn(f"cannot listen on {spelling}: ", refused.stderr)
            self.assertIn("in use", refused.stderr)
            self.assertTrue(answers(path))
        first.kill()
        self.assertTrue(os.path.exists(path))
        second = self.start(f"--listen=unix:{path}")  # which nobody answers at any more
        self.assertTrue(answers(path))
        self.assertEqual(os.listdir(folder), ["socket"])
        second.close()
        self.assertEqual(os.listdir(folder), [])

    def test_the_unix_socket_of_another_server_is_not_removed(self):
        folder = self.folder()
        path = f"{folder}/socket"
        first = self.start(f"--listen=unix:{path}")
        os.unlink(path)
        self.start(f"--listen=unix:{path}")
        first.close()
        self.assertTrue(answers(path))

    def test_a_file_is_no_unix_socket(self):
        path = f"{self.folder()}/file"
        with open(path, "w", encoding="ascii") as file:
            file.write("kept")
        refused = run(f"--listen=unix:{path}", "--admin=", "--cache_bytes=67108864")
        self.assertEqual(refused.returncode, 1)
        self.assertIn(f"cannot listen on unix:{path}: ", refused.stderr)
        with open(path, encoding="ascii") as file:
            self.assertEqual(file.read(), "kept")

    def test_clients_that_say_nothing_hold_up_no_scrape(self):
        admin = self.start().admin_address
        host, _, port = admin.rpartition(":")
        for _ in range(16):
            self.addCleanup(socket.create_connection((host, int(port))).close)
        with urllib.request.urlopen(f"http://{admin}/metrics", timeout=20) as page:
            self.assertIn(b"sis_waiting_appends", page.read())

    def test_the_admin_port_has_a_page_and_answers_probes(self):
        server = self.start()

        def get(path):
            with urllib.request.urlopen(f"http://{server.admin_address}{path}", timeout=20) as answer:
                return answer.read().decode()

        self.assertIn("<title>SIS ratio service</title>", get("/"))
        self.assertEqual(get("/healthz"), "alive\n")
        self.assertEqual(get("/readyz"), "ready\n")
        said = json.loads(get("/api/GetServer"))
        self.assertTrue(said["ready"])
        self.assertEqual(said["backend"], server.said["backend"])
        self.assertEqual(said["store"], server.said["store"])
        self.assertEqual(json.loads(get("/api/ListRuns")), {"runs": []})
        taken = run("--listen=127.0.0.1:0", f"--admin={server.admin_address}", "--cache_bytes=67108864")
        self.assertEqual(taken.returncode, 1)
        self.assertIn(f"cannot listen on {server.admin_address}", taken.stderr)

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
