"""The program as a person meets it: help, its configuration, a taken address, silent clients, too
many of them, and SIGTERM."""

import json
import os
import resource
import signal
import socket
import subprocess
import tempfile
import time
import unittest
import urllib.error
import urllib.request

from server.testing.live_server import BINARY, LiveServer


def run(*flags, **environment):
    return subprocess.run(
        [BINARY, *flags], capture_output=True, text=True, timeout=30, env={**os.environ, **environment}
    )


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
            self.assertEqual(refused.returncode, 1, flag)
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

    def test_connections_beyond_the_file_descriptors_are_refused_until_there_are_some(self):
        def few():
            resource.setrlimit(resource.RLIMIT_NOFILE, (200, 256))

        process = subprocess.Popen(
            [BINARY, "--listen=127.0.0.1:0", "--admin=127.0.0.1:0", "--cache_bytes=67108864"],
            stdout=subprocess.PIPE,
            text=True,
            preexec_fn=few,
        )
        self.addCleanup(process.stdout.close)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        said = dict(line.strip().partition(": ")[::2] for line in iter(process.stdout.readline, "ready\n"))
        host, _, port = said["grpc"].rpartition(":")

        def connect():
            client = socket.create_connection((host, int(port)), timeout=20)
            self.addCleanup(client.close)
            return client

        def is_served(client):
            """gRPC greets whoever connects."""
            try:
                return bool(client.recv(1))
            except ConnectionError:
                return False

        self.assertEqual(answer(said["admin"], "/readyz"), (200, "ready\n"))
        self.assertIn("process_max_fds 256\n", answer(said["admin"], "/metrics")[1])  # the hard limit
        clients = [connect() for _ in range(400)]
        served = sum(is_served(client) for client in clients)
        self.assertTrue(64 < served < 256, served)
        status, body = answer(said["admin"], "/readyz")
        self.assertEqual(status, 503)
        self.assertIn("connections are refused", body)
        self.assertIn(f"sis_refused_connections_total {400 - served}\n", answer(said["admin"], "/metrics")[1])
        for client in clients:
            client.close()
        for _ in range(600):
            if is_served(connect()) and answer(said["admin"], "/readyz") == (200, "ready\n"):
                return
            time.sleep(0.05)
        self.fail("it does not recover")

    def test_sigterm_ends_it_in_order(self):
        process = self.start().process
        process.send_signal(signal.SIGTERM)
        self.assertEqual(process.wait(timeout=30), 0)
        self.assertIn("shutting down", process.stdout.read())


class ConfigurationTest(unittest.TestCase):
    def file(self, text):
        file = tempfile.NamedTemporaryFile("w", suffix=".conf")
        self.addCleanup(file.close)
        file.write(text)
        file.flush()
        return file.name

    def check(self, *flags, **environment):
        """The effective configuration, as name -> (value, source)."""
        checked = run("--check", *flags, **environment)
        self.assertEqual((checked.returncode, checked.stderr), (0, ""))
        settings = {}
        for line in checked.stdout.splitlines():
            setting, _, source = line.partition("  # ")
            name, _, value = setting.partition(" = ")
            settings[name] = (value, source)
        return settings

    def test_the_command_line_goes_before_the_environment_and_that_before_the_file(self):
        path = self.file("# four\nmax_runs = 1\nmax_leases=2 # two\n\n  max_top_k =\t3\nstore = rocksdb:/a#b\n")
        settings = self.check(
            f"--config={path}", "--max_runs=7", "--max_positions", "8",
            SIS_SERVER_MAX_RUNS="5", SIS_SERVER_MAX_LEASES="6",
        )  # fmt: skip
        self.assertEqual(settings["max_runs"], ("7", "command line"))
        self.assertEqual(settings["max_positions"], ("8", "command line"))
        self.assertEqual(settings["max_leases"], ("6", "environment"))
        self.assertEqual(settings["max_top_k"], ("3", f"{path}:5"))
        self.assertEqual(settings["store"], ("rocksdb:/a#b", f"{path}:6"))
        self.assertEqual(settings["steps_kept"], ("64", "default"))
        self.assertEqual(self.check(SIS_SERVER_CONFIG=path)["max_runs"], ("1", f"{path}:2"))

    def test_what_is_printed_is_a_file_that_says_the_same(self):
        printed = run("--check", "--max_top_k=9", "--run_idle_expiry=36h", "--admin=").stdout
        again = self.check(f"--config={self.file(printed)}")
        values = {line.split(" = ")[0]: line.split(" = ")[1].split("  #")[0] for line in printed.splitlines()}
        self.assertEqual({name: value for name, (value, _) in again.items()}, values)
        self.assertEqual(again["run_idle_expiry"][0], "36h")

    def test_it_is_printed_at_the_start(self):
        server = LiveServer("--max_runs=3")
        self.addCleanup(server.kill)
        self.assertIn("max_runs = 3  # command line", server.said)

    def test_variables_that_kubernetes_adds_are_no_flags(self):
        self.check(SIS_SERVER_SERVICE_HOST="10.0.0.1", SIS_SERVER_PORT_50051_TCP="tcp://10.0.0.1:50051")

    def test_nonsense_is_refused_by_name_wherever_it_stands(self):
        for flags, environment, text, said in (
            ([], {"SIS_SERVER_MAX_RUN": "1"}, "", "SIS_SERVER_MAX_RUN"),
            ([], {"SIS_SERVER_CHECK": "1"}, "", "SIS_SERVER_CHECK"),
            ([], {"SIS_SERVER_max_runs": "1"}, "", "SIS_SERVER_max_runs"),
            ([], {"SIS_SERVER_MAX_RUNS": "many"}, "", "--max_runs=many (from environment)"),
            (["--max_runs=1"], {"SIS_SERVER_MAX_RUNS": "many"}, "", "--max_runs=many (from environment)"),
            ([], {"SIS_SERVER_MAX_RUNS": "0"}, "", "--max_runs=0 (from environment) is below 1"),
            ([], {}, "max_run = 1", ":1: 'max_run' is no flag"),
            ([], {}, "config = x", ":1: 'config' is no flag that a file can give"),
            ([], {}, "\nmax_runs", ":2: 'max_runs' is not name = value"),
            ([], {}, "max_runs = 1\nmax_runs = 1", ":2: 'max_runs' stands in line 1 already"),
            ([], {}, "cache_bytes = 1GiB", ":1): "),
            ([], {}, "max_top_k = 300", ":1) is above 254"),
            (["--config=/nowhere"], {}, "", "--config=/nowhere can't be read"),
            (["--config=/"], {}, "", "--config=/ can't be read"),
            (["--nothing=1"], {}, "", "nothing"),
            (["start"], {}, "", "'start' is no flag"),
            (["--undefok=x"], {}, "", "--undefok is not for the server"),
            (["--listen=localhost"], {}, "", "--listen=localhost: 'localhost' is not HOST:PORT"),
            (["--listen=localhost:70000"], {}, "", "has no port in [0, 65535]"),
            (["--listen=::1:5"], {}, "", "needs [] around the IPv6 address"),
            (["--listen=h:5,h:5"], {}, "", "'h:5' is named twice"),
            (["--listen=unix:"], {}, "", "without a path"),
            (["--listen=unix:/" + 107 * "x"], {}, "", "more than 107 bytes"),
            (["--admin=5"], {}, "", "--admin=5 is not HOST:PORT"),
            (["--admin=h:5", "--listen=h:5"], {}, "", "--admin=h:5 is an address of --listen too"),
            (["--shared_memory_bytes=5"], {}, "", "--shared_memory_bytes=5 goes with a Unix socket"),
            (["--backend=cpu", "--device_cache_bytes=5"], {}, "", "--device_cache_bytes=5 goes with CUDA"),
            (["--store=disk"], {}, "", "--store=disk: "),
            (["--max_message_bytes=2147483648"], {}, "", "--max_message_bytes=2147483648"),
            (["--grpc_memory_bytes=5"], {}, "", "--grpc_memory_bytes=5 has no room for one message"),
            (["--shutdown_grace=-1s"], {}, "", "--shutdown_grace=-1s"),
            (["--default_deadline=0"], {}, "", "--default_deadline=0"),
        ):
            file = [f"--config={self.file(text)}"] if text else []
            with self.subTest(said):
                refused = run("--check", *file, *flags, **environment)
                self.assertEqual(refused.returncode, 1)
                self.assertIn(said, refused.stderr)
        for flag in ("--max_runs=0", "--store=disk"):
            self.assertEqual(run(flag).returncode, 1)  # a start refuses the same


if __name__ == "__main__":
    unittest.main()
