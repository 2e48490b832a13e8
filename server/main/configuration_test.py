"""Where a server's configuration is from, what is refused of it, and what --check looks at."""

import itertools
import os
import re
import socket
import subprocess
import tempfile
import unittest

from server.testing.certificates import Authority
from server.testing.live_server import BINARY, LiveServer

# A value of each flag that makes no sense, whatever the others are.
NONSENSE = {
    "admin_hosts": "sis.example.com,http://sis",
    "admin": "5",
    "append_patience": "-1s",
    "backend": "gpu",
    "cache_bytes": "0",
    "certificate_role": "boss",
    "default_deadline": "0",
    "device_cache_bytes": "-2",
    "evaluate_threads": "5000",
    "insecure": "perhaps",
    "grpc_memory_bytes": "0",
    "inspected_bytes": "-1",
    "lease_absence": "-1s",
    "listen": "h:5,h:5",
    "max_connection_age": "0.5s",
    "max_evaluate_positions": "0",
    "max_lease_seconds": "nan",
    "max_leases": "0",
    "max_message_bytes": "2147483648",
    "max_positions": "2147483648",
    "max_runs": "0",
    "max_runs_per_owner": "0",
    "max_streams_per_connection": "0",
    "max_top_k": "600",
    "metric_runs": "-1",
    "reflection": "perhaps",
    "reload_interval": "0.5s",
    "run_idle_expiry": "0",
    "shared_memory_bytes": "-1",
    "shutdown_grace": "-1s",
    "steps_kept": "0",
    "store": "disk",
}
# These name files.
FILES = {"identities", "proxy_certificate", "tls_certificate", "tls_client_ca", "tls_key", "tokenizer"}
# Any value is a name: it is written, by a start alone.
WRITTEN = {"trace_file"}


def run(*flags, **environment):
    return subprocess.run(
        [BINARY, *flags], capture_output=True, text=True, timeout=30, env={**os.environ, **environment}
    )


class ConfigurationTest(unittest.TestCase):
    def file(self, text):
        file = tempfile.NamedTemporaryFile(suffix=".conf")
        self.addCleanup(file.close)
        file.write(text if isinstance(text, bytes) else text.encode())
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
            ([], {"SIS_SERVER_PARENT": "1"}, "", "SIS_SERVER_PARENT"),
            (["--parent=-1"], {}, "", "--parent=-1 (from command line) is not the process that started it"),
            ([], {"SIS_SERVER_max_runs": "1"}, "", "SIS_SERVER_max_runs"),
            ([], {"SIS_SERVER_MAX_RUNS": "many"}, "", "--max_runs=many (from environment)"),
            (["--max_runs=1"], {"SIS_SERVER_MAX_RUNS": "many"}, "", "--max_runs=many (from environment)"),
            ([], {"SIS_SERVER_MAX_RUNS": "0"}, "", "--max_runs=0 (from environment) is below 1"),
            ([], {}, "max_run = 1", ":1: 'max_run' is no flag"),
            ([], {}, "config = x", ":1: 'config' is no flag that a file can give"),
            ([], {}, "\nmax_runs", ":2: 'max_runs' is not name = value"),
            ([], {}, "max_runs = 1\nmax_runs = 1", ":2: 'max_runs' stands in line 1 already"),
            ([], {}, "cache_bytes = 1GiB", ":1): "),
            ([], {}, "max_top_k = 600", ":1) is above 512"),
            (["--config=/nowhere"], {}, "", "--config=/nowhere can't be read"),
            (["--config=/"], {}, "", "--config=/ can't be read"),
            (["--config=/dev/zero"], {}, "", "--config=/dev/zero can't be read"),
            (["--nothing=1"], {}, "", "nothing"),
            (["start"], {}, "", "'start' is no flag"),
            (["--undefok=x"], {}, "", "--undefok is not for the server"),
            (["--listen=localhost"], {}, "", "--listen=localhost (from command line): 'localhost' is not HOST:PORT"),
            (["--listen=localhost:70000"], {}, "", "has no port in [0, 65535]"),
            (["--listen=::1:5"], {}, "", "needs [] around the IPv6 address"),
            (["--listen=h:5,h:5"], {}, "", "'h:5' is named twice"),
            (["--listen=unix:"], {}, "", "without a path"),
            (["--listen=unix:/" + 107 * "x"], {}, "", "more than 107 bytes"),
            (["--admin=5"], {}, "", "--admin=5 (from command line) is not HOST:PORT"),
            (["--admin=h:5", "--listen=h:5"], {}, "", "--admin=h:5 is an address of --listen too"),
            (["--shared_memory_bytes=5"], {}, "", "--shared_memory_bytes=5 goes with a Unix socket"),
            (["--backend=cpu", "--device_cache_bytes=5"], {}, "", "--device_cache_bytes=5 goes with CUDA"),
            (["--store=disk"], {}, "", "--store=disk (from command line): "),
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

    def test_a_trace_file_that_cannot_be_written_is_refused_and_none_is_made(self):
        with tempfile.TemporaryDirectory() as folder:
            for path, why in ((f"{folder}/missing/spans", "No such file"), (folder, "not a regular file")):
                refused = run("--check", f"--trace_file={path}")
                self.assertEqual(refused.returncode, 1)
                self.assertRegex(refused.stderr, f"--trace_file: {path}.*{why}")
            self.assertEqual(run("--check", f"--trace_file={folder}/spans").returncode, 0)
            self.assertEqual(os.listdir(folder), [])

    def test_nonsense_is_refused_of_every_flag_also_where_something_else_overrides_it(self):
        sense = {name: value for name, (value, _) in self.check().items()}
        self.assertEqual(NONSENSE.keys() | FILES | WRITTEN, sense.keys())

        def refused(name, source, *flags, **environment):
            with self.subTest(name=name, source=source):
                ended = run("--check", *flags, **environment)
                self.assertEqual(ended.returncode, 1)
                self.assertIn(f"sis_server: --{name}={NONSENSE[name]} (from {source})", ended.stderr)

        for name, value in NONSENSE.items():
            path = self.file(f"{name} = {value}")
            refused(name, f"{path}:1", f"--config={path}", f"--{name}={sense[name]}")
        for name in ("backend", "max_top_k"):
            path, variable = self.file(f"{name} = {NONSENSE[name]}"), f"SIS_SERVER_{name.upper()}"
            refused(name, f"{path}:1", f"--config={path}", **{variable: sense[name]})
            refused(name, "environment", f"--{name}={sense[name]}", **{variable: NONSENSE[name]})

    def test_a_value_comes_back_from_what_is_printed_or_is_refused(self):
        def settings(*flags, **environment):
            """What is printed, without the sources; None if it is refused."""
            checked = subprocess.run(
                [BINARY, "--check", *flags], capture_output=True, timeout=30, env={**os.environ, **environment}
            )
            if checked.returncode != 0:
                return None, checked.stderr
            return [line.partition(b"  # ")[0] for line in checked.stdout.split(b"\n")], checked.stdout

        pieces = ["b", " ", "\t", "\n", "\r", "#", "=", '"', "\\", "ü"]
        values = [("store", f"rocksdb:/a{one}{other}") for one, other in itertools.product(pieces, pieces)]
        values += [("store", f"rocksdb:/a{text}") for text in ("  # b", "#b # c", "b  c", " = b")]
        values += [("certificate_role", text) for text in ("", " ", "#", " worker")]
        values += [("max_lease_seconds", text) for text in ("0.1", "1e-9", "3600.0000000001", "1e300", "inf")]
        values += [("append_patience", text) for text in ("1.5h", "1ns", "0.1us", "90m1ms", "0", "inf")]
        values += [("max_runs", " 5"), ("insecure", "yes"), ("admin", "")]
        taken = 0
        for name, value in values:
            with self.subTest(name=name, value=value):
                printed, text = settings(f"--{name}={value}")
                if printed is None:
                    self.assertRegex(value, re.compile(r"^\s|^#|\s#|\n|\s$", re.ASCII))
                    self.assertIn(f"--{name}={value} (from command line)".encode(), text)
                    self.assertIsNone(settings(**{f"SIS_SERVER_{name.upper()}": value})[0])
                    continue
                taken += 1
                if name in ("store", "admin", "certificate_role"):
                    self.assertIn(f"{name} = {value}".encode(), printed)
                self.assertEqual(settings(f"--config={self.file(text)}")[0], printed)
        self.assertGreater(taken, 50)

        # The sources are no part of it, whatever they are called.
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        path = f"{folder.name}/max_runs = 7\nmax_leases = 8  # \"ü"
        with open(path, "wb") as file:
            file.write(b"max_runs = 5")
        printed, text = settings(f"--config={path}")
        self.assertIn(b"max_runs = 5", printed)
        self.assertEqual(settings(f"--config={self.file(text)}")[0], printed)

    def test_the_files_that_it_names_must_be_there_and_make_sense(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        authority = Authority(folder.name, "authority")
        certificate, key = authority.issue("localhost", "server")
        other = authority.issue("localhost", "other")[1]
        identities, garbage = self.file("token 0123456789abcdef alice admin"), self.file("{")
        good = {
            "tls_certificate": certificate,
            "tls_key": key,
            "tls_client_ca": authority.path,
            "identities": identities,
            "tokenizer": self.file('{"model": {"vocab": {"a": 0}}}'),
        }
        self.assertEqual(good.keys(), FILES - {"proxy_certificate"})

        def flags(files):
            return ["--listen=0.0.0.0:0", *(f"--{name}={path}" for name, path in files.items())]

        self.check(*flags(good))
        fifo = f"{folder.name}/fifo"  # to which nobody writes
        os.mkfifo(fifo)
        for name in good:
            for wrong in ("/nowhere", folder.name, garbage, fifo, "/dev/zero"):
                with self.subTest(name=name, wrong=wrong):
                    refused = run("--check", *flags({**good, name: wrong}))
                    self.assertEqual(refused.returncode, 1)
                    self.assertIn(f"sis_server: --{name}: {wrong}", refused.stderr)
        for name, said in (
            ("identities", "it names nobody"),
            ("tokenizer", "not a tokenizer.json"),
            ("tls_key", "no private key"),
            ("tls_certificate", "no certificate"),
            ("tls_client_ca", "no certificate"),
        ):
            empty = self.file("")
            refused = run("--check", *flags({**good, name: empty}))
            self.assertIn(f"--{name}: {empty}: {said}", refused.stderr)
        refused = run("--check", *flags({**good, "tls_key": other}))
        self.assertIn(f"--tls_key: {other}: not the key of", refused.stderr)
        proxy = [f"--proxy_certificate={certificate}"]
        self.check(*proxy)
        self.assertIn("goes in place of", run("--check", *flags(good), *proxy).stderr)
        for wrong in ("/nowhere", folder.name, garbage, fifo, "/dev/zero"):
            for check in (["--check"], ["--listen=127.0.0.1:0", "--admin=127.0.0.1:0"]):
                refused = run(*check, f"--proxy_certificate={wrong}")
                self.assertEqual(refused.returncode, 1)
                self.assertIn(f"sis_server: --proxy_certificate: {wrong}", refused.stderr)
        # They are elsewhere: empty flags take the place of what a file says.
        config = self.file("listen = 0.0.0.0:0\n" + "".join(f"{name} = /nowhere\n" for name in FILES))
        self.check(f"--config={config}", *(f"--{name}=" for name in FILES), "--insecure")

    def test_a_check_binds_opens_and_makes_nothing(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        taken = socket.create_server(("127.0.0.1", 0))
        self.addCleanup(taken.close)
        taken.setblocking(False)
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        for flags in (
            [f"--listen={address},unix:{folder.name}/socket", "--admin="],
            [f"--listen=unix:{folder.name}/socket", f"--admin={address}"],
        ):
            checked = subprocess.run(
                [
                    BINARY, "--check", *flags, f"--store=rocksdb:{folder.name}/store",
                    f"--cache_bytes={1 << 60}", f"--shared_memory_bytes={1 << 60}",
                ],
                capture_output=True, text=True, timeout=30, cwd=folder.name,
                env={**os.environ, "HOME": folder.name, "TMPDIR": folder.name},
            )  # fmt: skip
            self.assertEqual((checked.returncode, checked.stderr), (0, ""))
        self.assertEqual(os.listdir(folder.name), [])
        with self.assertRaises(BlockingIOError):  # nobody has come
            taken.accept()


if __name__ == "__main__":
    unittest.main()
