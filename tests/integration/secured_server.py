"""A server with identities, and certificates of its own authority."""

import hashlib
import pathlib
import tempfile
import unittest

import grpc

import sis
from server.testing.certificates import Authority
from server.testing.live_server import LiveServer
from server.testing.random_records import random_record

CONFIG = {"seed": 1, "vocabulary_size": 32, "top_k": 4}
SAMPLING = sis.Sampling("raw")
ROLES = ("viewer", "worker", "trainer", "admin")


def token(identity, role):
    return hashlib.sha256(f"{identity} {role}".encode()).hexdigest()[:32]


def outcome(call, *metadata):
    """How a call ends: its code and words."""
    try:
        call(metadata)
    except grpc.RpcError as error:
        return error.code(), error.details()
    return grpc.StatusCode.OK, ""


def bearer(text):
    return ("authorization", f"Bearer {text}")


class SecuredServerTest(unittest.TestCase):
    """`identities` is a file that knows alice and bob, with a token for each role."""

    def setUp(self):
        self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.authority = Authority(self.folder, "authority")
        self.identities = self.folder / "identities"
        self.write_identities(
            *(f"token {token(name, role)} {name} {role}" for name in ("alice", "bob") for role in ROLES)
        )

    def write_identities(self, *lines):
        new = self.folder / "identities.new"
        new.write_text("\n".join(lines))
        new.rename(self.identities)

    def tls_flags(self):
        self.certificate, self.key = self.authority.issue("localhost", "server")
        return [f"--tls_certificate={self.certificate}", f"--tls_key={self.key}", "--reload_interval=1s"]

    def start(self, *flags, **named):
        return self.enterContext(LiveServer(*flags, **named))

    def client(self, server, **credentials):
        address = server.address.replace("127.0.0.1", "localhost")
        return self.enterContext(sis.Client(address, timeout=20, credentials=sis.Credentials(**credentials)))

    def append(self, client, run, sequence="s", rows=2):
        record = random_record(1, rows, CONFIG["vocabulary_size"], CONFIG["top_k"])
        with client.append(run, sampling=SAMPLING) as stream:
            stream.block(sequence, first_position=0, policy_version=0, **record._asdict())

    def channel(self, address, options=()):
        return self.enterContext(grpc.insecure_channel(address, options))

    def stub(self, address, options=()):
        return sis.v1.ratio_service_pb2_grpc.RatioServiceStub(self.channel(address, options))
