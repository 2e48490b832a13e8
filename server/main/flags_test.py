"""The flags of a server: their sources, invalid values, and --check."""

import os
import socket
import subprocess
import tempfile
import unittest

from server.testing.certificates import Authority
from server.testing.live_server import BINARY, LiveServer

# An invalid value of each flag, whatever the other flags are.
NONSENSE = {
    "admin": "5",
    "backend": "gpu",
    "cache_bytes": "0",
    "certificate_role": "boss",
    "default_deadline": "0",
    "device_cache_bytes": "-2",
    "evaluate_threads": "5000",
    "insecure": "perhaps",
    "grpc_memory_bytes": "0",
    "inspected_bytes": "-1",
    "listen": "h:5,h:5",
    "max_evaluate_positions": "0",
    "max_message_bytes": "2147483648",
    "max_runs": "0",
    "max_runs_per_owner": "0",
    "max_top_k": "600",
    "metric_runs": "-1",
    "reader_absence": "-1s",
    "reload_interval": "0.5s",
    "run_idle_expiry": "0",
    "shutdown_grace": "-1s",
    "store": "disk",
}
# These name files.
FILES = {"identities", "proxy_certificate", "tls_certificate", "tls_client_ca", "tls_key"}


def run(*flags):
    return subprocess.run([BINARY, *flags], capture_output=True, text=True, timeout=30)


class FlagsTest(unittest.TestCase):
    def file(self, text):
        file = self.enterContext(tempfile.NamedTemporaryFile(suffix=".conf"))
        file.write(text.encode())
        file.flush()
        return file.name

    def check(self, *flags):
        """Returns the values of all flags by name."""
        checked = run("--check", *flags)
        self.assertEqual((checked.returncode, checked.stderr), (0, ""))
        return dict(line.removeprefix("--").split("=", 1) for line in checked.stdout.splitlines())

    def test_the_command_line_goes_before_a_file_that_it_names_first(self):
        path = self.file("# four\n--max_runs=1\n--max_top_k=9\n\n--store=rocksdb:/a#b\n")
        found = self.check(f"--flagfile={path}", "--max_runs=7", "--max_runs_per_owner", "8")
        names = ("max_runs", "max_runs_per_owner", "max_top_k", "store", "metric_runs")
        self.assertEqual([found[name] for name in names], ["7", "8", "9", "rocksdb:/a#b", "100"])

    def test_what_is_printed_is_a_file_that_says_the_same(self):
        printed = run("--check", "--max_top_k=9", "--run_idle_expiry=36h", "--admin=").stdout
        self.assertEqual(run("--check", f"--flagfile={self.file(printed)}").stdout, printed)
        self.assertIn("--run_idle_expiry=36h\n", printed)

    def test_it_is_printed_at_the_start(self):
        server = LiveServer("--max_runs=3")
        self.addCleanup(server.kill)
        self.assertIn("--max_runs=3", server.said)

    def test_nonsense_is_refused_by_name(self):
        for flags, text, said in (
            (["--parent=-1"], "", "--parent=-1 is not the process that started it"),
            ([], "--max_run=1", "max_run"),
            ([], "max_runs=1", "max_runs=1"),
            ([], "--cache_bytes=1GiB", "cache_bytes"),
            ([], "--max_top_k=600", "--max_top_k=600 is above 254"),
            (["--flagfile=/nowhere"], "", "/nowhere"),
            (["--nothing=1"], "", "nothing"),
            (["start"], "", "'start' is not a flag"),
            (["--listen=localhost"], "", "--listen=localhost: 'localhost' is not HOST:PORT"),
            (["--listen=localhost:70000"], "", "has no port in [0, 65535]"),
            (["--listen=::1:5"], "", "needs [] around the IPv6 address"),
            (["--listen=h:5,h:5"], "", "'h:5' is named twice"),
            (["--listen=unix:"], "", "without a path"),
            (["--listen=unix:/" + 107 * "x"], "", "more than 107 bytes"),
            (["--admin=5"], "", "--admin=5 is not HOST:PORT"),
            (["--admin=[::1]:5"], "", "--admin=[::1]:5 is an IPv6 address"),
            (["--admin=h:5", "--listen=h:5"], "", "--admin=h:5 is an address of --listen too"),
            (["--backend=cpu", "--device_cache_bytes=5"], "", "--device_cache_bytes=5 goes with CUDA"),
            (["--store=disk"], "", "--store=disk: "),
            (["--grpc_memory_bytes=5"], "", "--grpc_memory_bytes=5 has no room for one message"),
        ):
            file = [f"--flagfile={self.file(text)}"] if text else []
            with self.subTest(said):
                refused = run("--check", *file, *flags)
                self.assertEqual(refused.returncode, 1)
                self.assertIn(said, refused.stderr)
        for flag in ("--max_runs=0", "--store=disk"):
            self.assertEqual(run(flag).returncode, 1)  # a start refuses the same

    def test_nonsense_is_refused_of_every_flag(self):
        self.assertEqual(NONSENSE.keys() | FILES, self.check().keys())
        for name, value in NONSENSE.items():
            with self.subTest(name=name):
                refused = run("--check", f"--{name}={value}")
                self.assertEqual(refused.returncode, 1)
                self.assertIn(name, refused.stderr)

    def test_the_files_that_it_names_must_be_there_and_make_sense(self):
        folder = self.enterContext(tempfile.TemporaryDirectory())
        authority = Authority(folder, "authority")
        certificate, key = authority.issue("localhost", "server")
        other = authority.issue("localhost", "other")[1]
        identities, garbage = self.file("token 0123456789abcdef alice admin"), self.file("{")
        good = {
            "tls_certificate": certificate,
            "tls_key": key,
            "tls_client_ca": authority.path,
            "identities": identities,
        }
        self.assertEqual(good.keys(), FILES - {"proxy_certificate"})

        def flags(files):
            return ["--listen=0.0.0.0:0", *(f"--{name}={path}" for name, path in files.items())]

        self.check(*flags(good))
        fifo = f"{folder}/fifo"  # to which nobody writes
        os.mkfifo(fifo)
        for name in good:
            for wrong in ("/nowhere", folder, garbage, fifo, "/dev/zero"):
                with self.subTest(name=name, wrong=wrong):
                    refused = run("--check", *flags({**good, name: wrong}))
                    self.assertEqual(refused.returncode, 1)
                    self.assertIn(f"sis_server: --{name}: {wrong}", refused.stderr)
        for name, said in (
            ("identities", "it names nobody"),
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
        for wrong in ("/nowhere", folder, garbage, fifo, "/dev/zero"):
            for check in (["--check"], ["--listen=127.0.0.1:0", "--admin=127.0.0.1:0"]):
                refused = run(*check, f"--proxy_certificate={wrong}")
                self.assertEqual(refused.returncode, 1)
                self.assertIn(f"sis_server: --proxy_certificate: {wrong}", refused.stderr)
        # They are elsewhere: empty flags take the place of what a file says.
        config = self.file("--listen=0.0.0.0:0\n" + "".join(f"--{name}=/nowhere\n" for name in FILES))
        self.check(f"--flagfile={config}", *(f"--{name}=" for name in FILES), "--insecure")

    def test_a_check_binds_opens_and_makes_nothing(self):
        folder = self.enterContext(tempfile.TemporaryDirectory())
        taken = self.enterContext(socket.create_server(("127.0.0.1", 0)))
        taken.setblocking(False)
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        for flags in (
            [f"--listen={address},unix:{folder}/socket", "--admin="],
            [f"--listen=unix:{folder}/socket", f"--admin={address}"],
        ):
            checked = subprocess.run(
                [
                    BINARY, "--check", *flags, f"--store=rocksdb:{folder}/store",
                    f"--cache_bytes={1 << 60}",
                ],
                capture_output=True, text=True, timeout=30, cwd=folder,
                env={**os.environ, "HOME": folder, "TMPDIR": folder},
            )  # fmt: skip
            self.assertEqual((checked.returncode, checked.stderr), (0, ""))
        self.assertEqual(os.listdir(folder), [])
        with self.assertRaises(BlockingIOError):  # nobody has come
            taken.accept()


if __name__ == "__main__":
    unittest.main()
