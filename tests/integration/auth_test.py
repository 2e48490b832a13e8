"""Permissions of callers, against real servers with real certificates."""

import functools
import unittest

import grpc

import sis
from server.testing.certificates import Authority
from server.testing.until import until
from sis.v1 import ratio_service_pb2 as pb
from tests.integration import every_method
from tests.integration.secured_server import CONFIG, ROLES, SecuredServerTest, bearer, outcome, token

# The least role of each method, said here once more so that the server's table can't change unseen.
LEAST_ROLES = {
    "GetRun": "viewer",
    "ListRuns": "viewer",
    "GetStep": "viewer",
    "ListSteps": "viewer",
    "GetServer": "viewer",
    "InspectRun": "viewer",
    "InspectSequence": "viewer",
    "ListSequences": "viewer",
    "CreateRun": "worker",
    "Append": "worker",
    "FetchTopK": "trainer",
    "Evaluate": "trainer",
    "AdvanceVersion": "trainer",
    "Release": "trainer",
    "DeleteRun": "trainer",
}


def calls_of(channel, run_id):
    """Every method of the service, on a run, as functions of call metadata."""

    def call(method, request, metadata):
        list(every_method.begin(channel, method, request, metadata=metadata))

    return {name: functools.partial(call, name, request) for name, request in every_method.requests(run_id).items()}


class SecurityTest(SecuredServerTest):
    def test_every_role_may_call_what_it_needs_and_nothing_else(self):
        server = self.start(f"--identities={self.identities}")
        calls = calls_of(self.channel(server.address), "r")
        self.assertEqual(calls.keys(), LEAST_ROLES.keys())
        methods = pb.DESCRIPTOR.services_by_name["RatioService"].methods_by_name.keys()
        self.assertEqual(set(methods), LEAST_ROLES.keys())
        for method, call in calls.items():
            for metadata in [(), (bearer("x" * 32),), (("authorization", token("alice", "admin")),), (bearer(""),)]:
                self.assertEqual(outcome(call, *metadata)[0], grpc.StatusCode.UNAUTHENTICATED, (method, metadata))
            for role in ROLES:
                outcome(calls["CreateRun"], bearer(token("alice", "trainer")))
                code, message = outcome(call, bearer(token("alice", role)))
                allowed = ROLES.index(role) >= ROLES.index(LEAST_ROLES[method])
                refused = code in (grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.UNAUTHENTICATED)
                self.assertEqual(refused, not allowed, (method, role, code, message))
                if not allowed:
                    self.assertIn(LEAST_ROLES[method], message)

    def test_anothers_run_is_as_if_it_were_not_there(self):
        server = self.start(f"--identities={self.identities}")
        channel, stub = self.channel(server.address), self.stub(server.address)
        alice = bearer(token("alice", "trainer"))
        self.assertEqual(outcome(calls_of(channel, "hers")["CreateRun"], alice)[0], grpc.StatusCode.OK)
        before = stub.GetRun(pb.GetRunRequest(run_id="hers"), metadata=[alice])
        self.assertEqual(before.run.config.owner, "alice")
        hers, nobodys = calls_of(channel, "hers"), calls_of(channel, "nope")
        bob = bearer(token("bob", "trainer"))
        for method in LEAST_ROLES:
            if method == "CreateRun":
                continue
            code, message = outcome(hers[method], bob)
            self.assertEqual((code, message.replace("hers", "nope")), outcome(nobodys[method], bob), method)
            # Naming an incarnation tells nothing either.
        for incarnation in (0, 1, 2, 7):
            request = pb.AdvanceVersionRequest(run=pb.RunRef(run_id="hers", incarnation=incarnation))
            code, _ = outcome(lambda m: stub.AdvanceVersion(request, metadata=m), bob)
            self.assertEqual(code, grpc.StatusCode.NOT_FOUND)
            request = pb.CreateRunRequest(run_id="hers", incarnation=incarnation, config=before.run.config)
            for owner in ("", "alice", "bob"):
                request.config.owner = owner
                code, message = outcome(lambda m: stub.CreateRun(request, metadata=m), bob)
                self.assertEqual(code, grpc.StatusCode.PERMISSION_DENIED, message)
        self.assertEqual(list(stub.ListRuns(pb.ListRunsRequest(), metadata=[bob]).runs), [])
        self.assertFalse(stub.DeleteRun(pb.DeleteRunRequest(run=pb.RunRef(run_id="hers")), metadata=[bob]).deleted)
        self.assertEqual(stub.GetRun(pb.GetRunRequest(run_id="hers"), metadata=[alice]), before)

        # An admin may do everything with it, and it stays hers.
        admin = bearer(token("bob", "admin"))
        self.assertEqual(len(stub.ListRuns(pb.ListRunsRequest(), metadata=[admin]).runs), 1)
        later = pb.CreateRunRequest(run_id="hers", incarnation=2, config=sis.RunConfig(**CONFIG).to_proto())
        self.assertTrue(stub.CreateRun(later, metadata=[admin]).created)
        self.assertEqual(stub.GetRun(pb.GetRunRequest(run_id="hers"), metadata=[alice]).run.config.owner, "alice")
        # A worker of hers opens no later one.
        later.incarnation = 3
        code, message = outcome(lambda m: stub.CreateRun(later, metadata=m), bearer(token("alice", "worker")))
        self.assertEqual(code, grpc.StatusCode.PERMISSION_DENIED)
        self.assertIn("trainers", message)

    def test_a_worker_and_a_viewer_live_through_the_loss_of_a_run(self):
        server = self.start(f"--identities={self.identities}", listen="127.0.0.1:0")
        address = server.address
        trainer, worker, viewer = (self.client(server, token=token("alice", role)) for role in ROLES[2::-1])
        run = trainer.create_run("r", **CONFIG)
        trainer.advance_version(run, 3)
        self.assertEqual(worker.get_run("r").policy_version, 3)
        viewer.get_run("r")
        server.kill()
        server = self.start(f"--identities={self.identities}", listen=address)

        def done(call):
            """Once connections that are gone have been noticed."""
            try:
                call()
            except sis.Unavailable:
                return False
            return True

        def is_lost():
            with self.assertRaises(sis.NotFound):
                viewer.get_run("r")

        until(lambda: done(is_lost))
        until(lambda: done(lambda: self.append(worker, run)))
        self.assertEqual(viewer.get_run("r").positions, 2)

    def test_certificates_of_clients(self):
        clients = Authority(self.folder, "clients")
        names = {}
        for name in ("trainer-1", "ci", "stranger"):
            names[name] = dict(zip(("certificate", "key"), clients.issue(name, name)))
        forged = dict(zip(("certificate", "key"), Authority(self.folder, "forger").issue("trainer-1", "forged")))
        flags = [*self.tls_flags(), f"--tls_client_ca={clients.path}"]
        ca = self.authority.path

        # By name, in the file; a token does in place of a certificate.
        self.write_identities("certificate trainer-1 alice trainer", f"token {token('bob', 'admin')} bob admin")
        server = self.start(*flags, f"--identities={self.identities}", listen="127.0.0.1:0")
        self.client(server, ca=ca, **names["trainer-1"]).create_run("r", **CONFIG)
        status = self.client(server, ca=ca, token=token("bob", "admin")).get_run("r")
        self.assertEqual(status.owner, "alice")
        with self.assertRaises(sis.Unauthenticated):
            self.client(server, ca=ca, **names["stranger"]).list_runs()
        with self.assertRaises((sis.Unavailable, sis.DeadlineExceeded)):
            self.client(server, ca=ca, **forged).list_runs()

        # Without a file the name itself is the identity, and no one without a certificate connects.
        server = self.start(*flags, "--certificate_role=worker", listen="127.0.0.1:0")
        self.client(server, ca=ca, **names["ci"]).create_run("r", **CONFIG)
        self.assertEqual(self.client(server, ca=ca, **names["ci"]).get_run("r").owner, "ci")
        with self.assertRaises(sis.NotFound):
            self.client(server, ca=ca, **names["stranger"]).get_run("r")
        with self.assertRaises(sis.PermissionDenied):
            self.client(server, ca=ca, **names["ci"]).delete_run("r")
        with self.assertRaises((sis.Unavailable, sis.DeadlineExceeded)):
            self.client(server, ca=ca).list_runs()

    def test_a_certificates_name_that_is_no_identity_is_refused_and_nothing_stored(self):
        clients = Authority(self.folder, "clients")
        flags = [*self.tls_flags(), f"--tls_client_ca={clients.path}", "--certificate_role=worker"]
        flags += [f"--store=rocksdb:{self.folder}/store"]
        server = self.start(*flags, listen="127.0.0.1:0")

        def client(name, uri="spiffe://example.org/"):
            certificate, key = clients.issue(name, "of client", uri=uri)
            return self.client(server, ca=self.authority.path, certificate=certificate, key=key)

        too_long, longest = ("spiffe://example.org/" + "a" * length for length in (236, 235))
        for refused, why in [
            (client("", too_long), "first alternative name: an identity of 257 bytes"),
            (client("Zo\u00eb"), "common name.* not visible ASCII"),
            (client("two\nlines"), "common name.* not visible ASCII"),
        ]:
            with self.assertRaisesRegex(sis.Unauthenticated, why):
                refused.create_run("bad", **CONFIG)
        client("", longest).create_run("good", **CONFIG)
        client("Jane Doe").create_run("hers", **CONFIG)
        server.close()

        server = self.start(*flags, listen="127.0.0.1:0")
        self.assertEqual(client("", longest).get_run("good").owner, longest)
        self.assertEqual(client("Jane Doe").get_run("hers").owner, "Jane Doe")


if __name__ == "__main__":
    unittest.main()
