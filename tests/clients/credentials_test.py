"""How users tell each client who it is (docs/security.md), against a real server; and what the clients
refuse before they send anything."""

import os
import pathlib
import subprocess
import tempfile
import time
import unittest
import unittest.mock

import sis
from server.testing.certificates import Authority
from server.testing.live_server import LiveServer
from tests.clients.cpp_process import CppClient

SISCTL = pathlib.Path("client/cli/sisctl")
PATIENCE = 60.0
TOKEN, VIEWER = "t" * 32, "v" * 32
VARIABLES = {
    "tls": "SIS_TLS",
    "ca": "SIS_CA_FILE",
    "certificate": "SIS_CERTIFICATE_FILE",
    "key": "SIS_KEY_FILE",
    "token": "SIS_TOKEN",
    "token_file": "SIS_TOKEN_FILE",
    "plaintext_token": "SIS_PLAINTEXT_TOKEN",
}


def environment_of(settings):
    return {VARIABLES[name]: "1" if value is True else value for name, value in settings.items()}


def python_says(address, environment, credentials=None):
    with unittest.mock.patch.dict(os.environ, environment):
        try:
            with sis.Client(address, timeout=20, credentials=credentials and credentials()) as client:
                client.list_runs()
        except sis.Error as error:
            return f"{error.code.name} {error.message}"
        except (ValueError, OSError) as error:
            return str(error)
    return "ok"


def python_with_arguments(address, settings):
    return python_says(address, {}, lambda: sis.Credentials(**settings))


def python_with_environment(address, settings):
    return python_says(address, environment_of(settings))


def cpp_with_environment(address, settings):
    client = CppClient(**environment_of(settings))
    try:
        connected = client.do(f"connect {address} timeout=20")
        return client.do("list_runs") if connected == "ok" else connected
    finally:
        client.close()


def sisctl_says(address, environment, *options):
    command = [SISCTL, f"--server={address}", *options, "runs", "list"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env={**os.environ, **environment})
    return "ok" if done.returncode == 0 else done.stderr


def sisctl_with_environment(address, settings):
    return sisctl_says(address, environment_of(settings))


def sisctl_with_options(address, settings):
    options = [f"--{name}" if value is True else f"--{name}={value}" for name, value in settings.items()]
    return sisctl_says(address, {}, *options)


class CredentialsTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.authority = Authority(self.folder, "authority")
        # What tls trusts by itself.
        environment = {"GRPC_DEFAULT_SSL_ROOTS_FILE_PATH": self.authority.path}
        patched = unittest.mock.patch.dict(os.environ, environment)
        patched.start()
        self.addCleanup(patched.stop)

    def fifo(self, name):
        """To which nobody writes."""
        os.mkfifo(self.folder / name)
        return str(self.folder / name)

    def file(self, name, content):
        path = self.folder / name
        path.write_bytes(content)
        return str(path)

    def issue(self, name, file):
        return dict(zip(("certificate", "key"), self.authority.issue(name, file)))

    def start(self, *flags, tls):
        identities = f"token {TOKEN} alice worker\ntoken {VIEWER} alice viewer\ncertificate node-1 alice worker\n"
        flags = [f"--identities={self.file('identities', identities.encode())}", *flags]
        if tls:
            server = self.issue("localhost", "server")
            flags += [f"--tls_{name}={path}" for name, path in server.items()]
            flags += [f"--tls_client_ca={self.authority.path}"]
        server = LiveServer(*flags, listen="127.0.0.1:0")
        self.addCleanup(server.close)
        return server.address.rpartition(":")[2]

    def expect(self, said, address, settings):
        """Of each client, however it is told. A token is no option of sisctl's."""
        told = [python_with_arguments, python_with_environment, cpp_with_environment, sisctl_with_environment]
        for tell in told if "token" in settings else [*told, sisctl_with_options]:
            with self.subTest(tell.__name__, **settings):
                self.assertRegex(tell(address, settings), said)

    def test_who_a_client_is_over_tls(self):
        address = f"localhost:{self.start(tls=True)}"
        ca, token_file = self.authority.path, self.file("token", f"{TOKEN}\n".encode())
        self.expect("^ok$", address, {"ca": ca, "token": TOKEN})
        self.expect("^ok$", address, {"ca": ca, "token_file": token_file})
        self.expect("^ok$", address, {"ca": ca, **self.issue("node-1", "node")})
        self.expect("^ok$", address, {"tls": True, "token_file": token_file})
        self.expect("UNAUTHENTICATED", address, {"ca": ca})
        self.expect("UNAUTHENTICATED", address, {"ca": ca, **self.issue("node-2", "stranger")})
        # Options of sisctl stand in for the environment.
        environment = environment_of({"ca": ca, "token": "x" * 32})
        self.assertIn("UNAUTHENTICATED", sisctl_says(address, environment))
        self.assertEqual(sisctl_says(address, environment, f"--token_file={token_file}"), "ok")

    def test_a_token_goes_to_other_machines_in_plain_text_only_if_that_is_said(self):
        # To the clients this is no address of their machine.
        address = f"0.0.0.0:{self.start(tls=False)}"
        for token in ({"token": TOKEN}, {"token_file": self.file("token", TOKEN.encode())}):
            self.expect("in plain text", address, token)
            self.expect("^ok$", address, {**token, "plaintext_token": True})

    def test_what_no_client_takes(self):
        node = self.issue("node-1", "node")
        good, empty = self.file("good", TOKEN.encode()), self.file("empty", b"")
        absent, torn = str(self.folder / "absent"), self.file("torn", b"caf\xc3\xa9" * 8)
        wrong = (absent, empty, self.fifo("fifo"), "/dev/zero")
        for said, settings in [
            ("certificate and key go together", {"certificate": node["certificate"]}),
            ("certificate and key go together", {"key": node["key"]}),
            ("at most one of them", {"token": TOKEN, "token_file": good}),
            ("token: .* visible ASCII", {"token": "caf\u00e9" * 8}),
            ("token: .* visible ASCII", {"token": "two words"}),
            (f"{torn} holds no token", {"token_file": torn}),
            *((path, {"token_file": path}) for path in wrong),
            *((path, {"ca": path}) for path in wrong),
            *((path, {**node, "certificate": path}) for path in wrong),
            *((path, {**node, "key": path}) for path in wrong),
        ]:
            self.expect(said, "localhost:1", settings)

    def test_the_cpp_client_reads_its_files_again(self):
        # Connections are made anew all the time: those show the certificate.
        port = self.start("--max_connection_age=1s", tls=True)

        def connected(**settings):
            client = CppClient(**environment_of({"ca": self.authority.path, **settings}))
            self.addCleanup(client.close)
            self.assertEqual(client.do(f"connect localhost:{port} timeout=20"), "ok")
            return client

        def until_ok(client, line):
            end = time.monotonic() + PATIENCE
            while not (told := client.do(line)).startswith("ok"):
                self.assertLess(time.monotonic(), end, told)
                time.sleep(0.1)

        token_file = self.file("token", VIEWER.encode())
        with_token = connected(token_file=token_file)
        self.assertRegex(with_token.do("create_run r"), "^PERMISSION_DENIED")
        with_certificate = connected(**self.issue("node-2", "node"))
        self.assertRegex(with_certificate.do("list_runs"), "^UNAUTHENTICATED")

        self.file("token", b"caf\xc3\xa9" * 8)
        self.issue("node-1", "node")
        until_ok(with_certificate, "list_runs")
        # It has looked at its file since, which held no token then: that changed nothing.
        self.assertEqual(with_token.do("list_runs"), "ok")
        self.file("token", TOKEN.encode())
        until_ok(with_token, "create_run r")


if __name__ == "__main__":
    unittest.main()
