"""How users tell the client who it is (docs/security.md), against a real server; and what the client
refuses before it sends anything."""

import os
import pathlib
import tempfile
import unittest
import unittest.mock

import sis
from server.testing.certificates import Authority
from server.testing.live_server import LiveServer

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


def client_says(address, environment, credentials=None):
    with unittest.mock.patch.dict(os.environ, environment):
        try:
            with sis.Client(address, timeout=20, credentials=credentials and credentials()) as client:
                client.list_runs()
        except sis.Error as error:
            return f"{error.code.name} {error.message}"
        except (ValueError, OSError) as error:
            return str(error)
    return "ok"


def with_arguments(address, settings):
    return client_says(address, {}, lambda: sis.Credentials(**settings))


def with_environment(address, settings):
    return client_says(address, environment_of(settings))


class CredentialsTest(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.authority = Authority(self.folder, "authority")
        # Certificates that gRPC trusts by default.
        roots = {"GRPC_DEFAULT_SSL_ROOTS_FILE_PATH": self.authority.path}
        self.enterContext(unittest.mock.patch.dict(os.environ, roots))

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
        server = self.enterContext(LiveServer(*flags, listen="127.0.0.1:0"))
        return server.address.rpartition(":")[2]

    def expect(self, said, address, settings):
        """Expects the error whether settings come from arguments or from the environment."""
        for tell in (with_arguments, with_environment):
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

    def test_plain_text_tokens_to_other_machines_need_an_option(self):
        # To the client this is no address of their machine.
        address = f"0.0.0.0:{self.start(tls=False)}"
        for token in ({"token": TOKEN}, {"token_file": self.file("token", TOKEN.encode())}):
            self.expect("in plain text", address, token)
            self.expect("^ok$", address, {**token, "plaintext_token": True})

    def test_invalid_credentials_are_refused(self):
        node = self.issue("node-1", "node")
        good, empty = self.file("good", TOKEN.encode()), self.file("empty", b"")
        absent, torn = str(self.folder / "absent"), self.file("torn", b"caf\xc3\xa9" * 8)
        wrong = (absent, empty)
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


if __name__ == "__main__":
    unittest.main()
