"""Tokens, certificates and authorities that change under servers and clients at work."""

import datetime
import hashlib
import os
import pathlib
import time
import unittest

import grpc

import sis
from server.testing.certificates import Authority
from server.testing.until import until
from sis.v1 import ratio_service_pb2 as pb
from tests.integration.secured_server import CONFIG, SAMPLING, SecuredServerTest, bearer, outcome, token

PATIENCE = 30.0


def writing_stderr_to(path):
    """Returns the prefix of a command whose stderr goes to the file."""
    return ["sh", "-c", f'exec "$@" 2>{path}', "sh"]


def is_refused(client):
    """Returns True if the client's token or certificate is unknown."""
    try:
        client.list_runs()
    except sis.Unauthenticated:
        return True
    return False


class ReloadedCredentialsTest(SecuredServerTest):
    def connects(self, server, **credentials):
        """Whether TLS comes about between the server and a new client."""
        try:
            self.client(server, **credentials).list_runs()
        except (sis.Unavailable, sis.DeadlineExceeded):
            return False
        return True

    def test_tls_with_tokens_and_reload_of_everything_under_live_connections(self):
        said = self.folder / "stderr"
        flags = [*self.tls_flags(), f"--identities={self.identities}"]
        server = self.start(*flags, listen="127.0.0.1:0", prefix=writing_stderr_to(said))
        ca = self.authority.path
        old = self.client(server, ca=ca, token=token("alice", "trainer"))
        run = old.create_run("r", **CONFIG)
        self.append(old, run)
        for role, error in [("viewer", sis.PermissionDenied), ("boss", sis.Unauthenticated)]:
            with self.assertRaises(error):
                self.client(server, ca=ca, token=token("alice", role)).advance_version(run, 1)
        with self.assertRaises(sis.Unauthenticated):
            self.client(server, ca=ca).list_runs()
        # Plain text, and a server that somebody else vouches for.
        for credentials in ({}, {"ca": Authority(self.folder, "other").path}):
            with self.assertRaises((sis.Unavailable, sis.DeadlineExceeded)):
                self.client(server, **credentials).list_runs()

        # Other authority, other certificate: who connects from now on needs the new one.
        stream = old.append(run, sampling=SAMPLING)
        stream.flush()
        authority = Authority(self.folder, "new-authority")
        self.authority = authority
        self.tls_flags()
        until(lambda: self.connects(server, ca=authority.path, token=token("alice", "viewer")))
        self.assertEqual(old.get_run("r").positions, 2)

        # A file that makes no sense changes nothing.
        self.write_identities("token short alice admin")
        until(lambda: "identities: not read again: " in said.read_text())
        self.assertEqual(old.get_run("r").positions, 2)

        # A token that has gone is refused in calls, and in the stream that was open.
        new = "n" * 32
        self.write_identities(f"sha256 {hashlib.sha256(new.encode()).hexdigest()} alice trainer")
        until(lambda: is_refused(old))
        with self.assertRaises((sis.Error, RuntimeError)):
            stream.seal("s", length=2)
            stream.flush()
        stream.abandon()
        self.assertEqual(self.client(server, ca=authority.path, token=new).get_run("r").positions, 2)

    def test_streams_of_a_token_that_has_gone_are_cancelled(self):
        server = self.start(f"--identities={self.identities}", "--reload_interval=1s", listen="127.0.0.1:0")
        secret = token("alice", "trainer")
        client = self.client(server, token=secret)
        self.append(client, client.create_run("r", **CONFIG), rows=100_000)
        # Little is sent ahead of what is read.
        stub = self.stub(server.address, [("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 1 << 16)])
        run, sequence = pb.RunRef(run_id="r"), pb.SequenceRef(id="s")
        named = {"metadata": [bearer(secret)], "timeout": PATIENCE}
        fetch = stub.FetchTopK(pb.FetchTopKRequest(run=run, slices=[pb.Slice(sequence=sequence)], whole_blocks=True), **named)
        self.assertTrue(next(fetch).slices)
        self.write_identities(f"token {token('bob', 'trainer')} bob trainer")
        until(lambda: is_refused(client))
        code, _ = outcome(lambda _: list(fetch))
        self.assertIs(code, grpc.StatusCode.CANCELLED)

    def test_tls_files_that_make_no_sense_change_nothing(self):
        clients = Authority(self.folder, "clients").path
        said = self.folder / "stderr"
        flags = [*self.tls_flags(), f"--tls_client_ca={clients}", f"--identities={self.identities}"]
        server = self.start(*flags, listen="127.0.0.1:0", prefix=writing_stderr_to(said))

        def connect():
            self.client(server, ca=self.authority.path, token=token("alice", "viewer")).list_runs()

        for flag, path in (("certificate", self.certificate), ("key", self.key), ("client_ca", clients)):
            file = pathlib.Path(path)
            whole = file.read_bytes()
            file.write_bytes(b"")  # as it is for a moment when it is written in place
            until(lambda: f"tls: not read again: --tls_{flag}: {path}: no " in said.read_text())
            connect()
            file.write_bytes(whole)
        _, key = self.authority.issue("localhost", "another")
        pathlib.Path(key).rename(self.key)
        until(lambda: f"tls: not read again: --tls_key: {self.key}: not the key of" in said.read_text())
        connect()
        self.assertNotIn("tls: read again", said.read_text())
        self.authority.issue("localhost", "server")
        until(lambda: "tls: read again" in said.read_text())
        connect()

    def failed(self, server, files):
        return server.metrics()[f'sis_reload_failed{{files="{files}"}}'] == 1

    def test_a_reload_that_fails_shows_in_the_metrics_whatever_the_file_has_become(self):
        flags = [*self.tls_flags(), f"--identities={self.identities}"]
        server = self.start(*flags, listen="127.0.0.1:0")
        end = self.certificate_end(server)
        self.assertIsNotNone(end)
        identities = self.identities.read_text()

        def replace_by_fifo(path):
            fifo = self.folder / "fifo"
            os.mkfifo(fifo)  # to which nobody writes
            fifo.rename(path)

        def replace_by_garbage(path):
            path.write_bytes(b"garbage")

        certificate = pathlib.Path(self.certificate)
        for replace in (replace_by_garbage, replace_by_fifo):
            with self.subTest(replace.__name__):
                for path in (self.identities, certificate):
                    replace(path)
                until(lambda: self.failed(server, "identities") and self.failed(server, "tls"))
                # The earlier files stay in use, and their expiry stays in the metrics.
                self.assertEqual(self.certificate_end(server), end)
                self.client(server, ca=self.authority.path, token=token("alice", "viewer")).list_runs()
                certificate.unlink()
                self.authority.issue("localhost", "server")
                self.write_identities(identities)
                until(lambda: not self.failed(server, "identities") and not self.failed(server, "tls"))
                end = self.certificate_end(server)

    def certificate_end(self, server):
        """As the metric says it, in seconds since 1970."""
        return server.metrics().get("sis_tls_certificate_not_after_timestamp_seconds")

    def test_a_certificate_that_ends_under_a_server(self):
        flags = [*self.tls_flags(), f"--identities={self.identities}"]
        # Certificates say when they end in UTC, wherever the server is.
        server = self.start(*flags, listen="127.0.0.1:0", prefix=["env", "TZ=Asia/Tokyo"])
        credentials = {"ca": self.authority.path, "token": token("alice", "trainer")}
        old = self.client(server, **credentials)
        run = old.create_run("r", **CONFIG)
        hour = 3600
        self.assertAlmostEqual(self.certificate_end(server), time.time() + hour, delta=0.5 * hour)
        self.authority.issue("localhost", "server", ends=datetime.timedelta(hours=-1))
        until(lambda: self.certificate_end(server), lambda end: abs(time.time() - hour - end) < 0.5 * hour)
        until(lambda: not self.connects(server, **credentials))
        # Existing connections continue.
        self.append(old, run)
        self.assertEqual(old.get_run("r").positions, 2)
        self.authority.issue("localhost", "server")
        until(lambda: self.connects(server, **credentials))
        self.assertIsNone(self.certificate_end(self.start(listen="127.0.0.1:0")))

    def test_when_the_certificate_of_a_proxy_in_front_ends(self):
        self.tls_flags()
        server = self.start(f"--proxy_certificate={self.certificate}", "--reload_interval=1s", listen="127.0.0.1:0")
        self.client(server).list_runs()  # in plain text, as the proxy does
        for hours in (1, 5):
            self.authority.issue("localhost", "server", ends=datetime.timedelta(hours=hours))
            end = time.time() + hours * 3600
            until(lambda: self.certificate_end(server), lambda told: abs(told - end) < 1800)
        pathlib.Path(self.certificate).write_bytes(b"garbage")
        until(lambda: self.failed(server, "proxy_certificate"))
        self.assertAlmostEqual(self.certificate_end(server), end, delta=1800)

    def test_another_authority_and_other_names_of_clients(self):
        first, second = (Authority(self.folder, name) for name in ("first", "second"))
        old, new = (
            dict(zip(("certificate", "key"), authority.issue("trainer-1", f"trainer-of-{name}")), ca=self.authority.path)
            for name, authority in (("first", first), ("second", second))
        )
        self.write_identities("certificate trainer-1 alice trainer", f"token {token('bob', 'viewer')} bob viewer")
        server = self.start(
            *self.tls_flags(), f"--tls_client_ca={first.path}", f"--identities={self.identities}", listen="127.0.0.1:0"
        )
        self.assertTrue(self.connects(server, **old))
        self.assertFalse(self.connects(server, **new))
        pathlib.Path(second.path).rename(first.path)
        until(lambda: self.connects(server, **new))
        self.assertFalse(self.connects(server, **old))

        # A name that has gone is refused in calls over connections that it opened.
        client = self.client(server, **new)
        client.list_runs()
        self.write_identities(f"token {token('bob', 'viewer')} bob viewer")
        until(lambda: is_refused(client))


if __name__ == "__main__":
    unittest.main()
