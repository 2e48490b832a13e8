"""The program as a person meets it: help, a taken address, too many clients, and SIGTERM."""

import os
import re
import signal
import socket
import subprocess
import tempfile
import unittest
import urllib.error
import urllib.request

from server.testing.certificates import Authority
from server.testing.live_server import BINARY, LiveServer


def run(*flags):
    return subprocess.run([BINARY, *flags], capture_output=True, text=True, timeout=30)


def answer(address, path):
    """The status and the body."""
    try:
        with urllib.request.urlopen(f"http://{address}{path}", timeout=20) as page:
            return page.status, page.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def answers(path):
    """Whether somebody accepts connections at a Unix socket."""
    with socket.socket(socket.AF_UNIX) as client:
        return client.connect_ex(path) == 0


def is_served(client):
    """gRPC greets whoever connects."""
    try:
        return bool(client.recv(1))
    except OSError:
        return False


class SisServerTest(unittest.TestCase):
    def start(self, *flags):
        server = LiveServer(*flags)
        self.addCleanup(server.kill)
        return server

    def folder(self):
        return self.enterContext(tempfile.TemporaryDirectory())

    def test_the_version_is_that_which_a_running_server_says(self):
        shown = run("--version")
        self.assertEqual(shown.returncode, 0)
        [version] = re.findall(r"^sis_server (\d+\.\d+\.\d+)\n$", shown.stdout)
        _, metrics = answer(self.start().admin_address, "/metrics")
        self.assertRegex(metrics, rf'sis_build_info\{{.*version="{re.escape(version)}"')

    def test_only_this_machine_can_connect_unless_told_otherwise(self):
        shown = run("--help").stdout
        for flag in ("--listen", "--admin"):
            self.assertRegex(shown, rf'{flag} \([^)]*\);\s+default:\s+"127\.0\.0\.1:\d+"')

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

    def test_a_file_is_no_unix_socket(self):
        path = f"{self.folder()}/file"
        with open(path, "w", encoding="ascii") as file:
            file.write("kept")
        refused = run(f"--listen=unix:{path}", "--admin=", "--cache_bytes=67108864")
        self.assertEqual(refused.returncode, 1)
        self.assertIn(f"cannot listen on unix:{path}: ", refused.stderr)
        with open(path, encoding="ascii") as file:
            self.assertEqual(file.read(), "kept")

    def test_the_http_port_serves_metrics_and_probes(self):
        server = self.start()
        self.assertEqual(answer(server.admin_address, "/livez"), (200, "alive\n"))
        self.assertEqual(answer(server.admin_address, "/readyz"), (200, "ready\n"))
        self.assertIn("\nsis_cache_bytes ", answer(server.admin_address, "/metrics")[1])
        taken = run("--listen=127.0.0.1:0", f"--admin={server.admin_address}", "--cache_bytes=67108864")
        self.assertEqual(taken.returncode, 1)
        self.assertIn(f"cannot listen on {server.admin_address}", taken.stderr)

    def test_a_probe_says_whether_a_server_serves(self):
        folder = self.folder()
        authority = Authority(folder, "authority")
        (certificate, key), own = authority.issue("localhost", "server"), authority.issue("caller", "caller")
        tls = [f"--tls_certificate={certificate}", f"--tls_key={key}", "--admin="]
        ca, shown = f"--probe_ca={authority.path}", [f"--tls_certificate={own[0]}", f"--tls_key={own[1]}"]
        for flags, asked, good in (
            ([], [], True),
            (["--listen=unix:" + folder + "/socket"], [], True),
            ([*tls, "--insecure"], [ca], True),
            ([*tls, "--insecure"], [], False),
            ([*tls, "--insecure"], [f"--probe_ca={Authority(folder, 'other').path}"], False),
            ([*tls, "--insecure"], ["--probe_ca=/nowhere"], False),
            ([*tls, f"--tls_client_ca={authority.path}", "--certificate_role=viewer"], [ca, *shown], True),
            ([*tls, f"--tls_client_ca={authority.path}", "--certificate_role=viewer"], [ca], False),
        ):
            with self.subTest(flags=flags, asked=asked):
                server = self.start(*flags)
                probed = run(f"--probe={server.address.replace('127.0.0.1', 'localhost')}", *asked)
                self.assertEqual(probed.returncode, 0 if good else 1, probed)
                self.assertRegex(probed.stdout if good else probed.stderr, r"\A[^\n]+\n\Z")
                server.close()
        gone = run(f"--probe={server.address}")
        self.assertEqual((gone.returncode, gone.stdout), (1, ""))
        self.assertRegex(gone.stderr, rf"\Asis_server: {server.address}: .+\n\Z")

    def test_one_line_says_which_backend_and_why(self):
        asked = self.start("--backend=cpu").said
        self.assertRegex(asked["backend"], r"^cpu/\S+ \(as asked\)$")
        without = r"(no CUDA device, cudaError\w+|built without CUDA)"
        asked = self.start("--backend=cuda").said
        self.assertRegex(asked["backend"], rf"^(cuda/.+ \(as asked\)|cpu/\S+ \(asked for cuda, but {without}\))$")
        self.assertEqual("device cache" in asked, asked["backend"].startswith("cuda/"))
        left_out = self.start().said
        self.assertRegex(left_out["backend"], rf"^(cuda/.+ \(auto\)|cpu/\S+ \(auto, {without}\))$")

    def test_it_lives_while_new_clients_are_served(self):
        """Which it may not be again after there were more connections than file descriptors."""
        server = self.start_with_descriptors(limit=256)
        clients = [self.connect(server)]
        while is_served(clients[-1]):
            clients.append(self.connect(server))
        self.assertTrue(128 < len(clients) < 256, len(clients))
        for client in clients:
            client.close()
        status = 200 if is_served(self.connect(server)) else 503
        self.assertEqual([answer(server.admin_address, path)[0] for path in ("/livez", "/readyz")], [status] * 2)

    def start_with_descriptors(self, limit):
        server = LiveServer(prefix=["sh", "-c", f'ulimit -Sn 200; ulimit -Hn {limit}; exec "$0" "$@"'])
        self.addCleanup(server.kill)
        self.assertEqual(server.metrics()["process_max_fds"], limit)  # the hard limit
        return server

    def connect(self, server):
        host, _, port = server.address.rpartition(":")
        client = self.enterContext(socket.socket())
        client.settimeout(10)
        client.connect_ex((host, int(port)))
        return client

    def test_sigterm_ends_it_in_order(self):
        process = self.start().process
        process.send_signal(signal.SIGTERM)
        self.assertEqual(process.wait(timeout=30), 0)
        self.assertIn("shutting down", process.stdout.read())


if __name__ == "__main__":
    unittest.main()
