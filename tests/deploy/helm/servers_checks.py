"""That rendered flags start real servers.

Run by chart_test.py, in an environment that has Helm."""

import datetime
import os
import ssl
import tempfile
import time
import unittest
import unittest.mock

import numpy as np
from cryptography import x509

import sis
from server.testing.random_records import log_softmax, record_of
from server.testing.until import until
from tests.deploy import one_step
from tests.deploy.helm import rendered_servers, reset_flood
from tests.deploy.helm.mounted_secrets import TOKEN, MountedSecrets
from tests.deploy.helm.rendered_chart import INSECURE, documents

TLS = {"tlsSecret": "tls", "identitiesSecret": "identities"}


def fill_cache(client):
    """Until sequences make way for others."""
    run = client.create_run("full", seed=1, vocabulary_size=128, top_k=100, evict_unread=True)
    log_probs = log_softmax(np.random.default_rng(1).normal(size=(1024, 128)))
    record = record_of(log_probs, np.zeros(len(log_probs), np.int32), 100)
    appended = 0
    with client.append(run, sampling=sis.Sampling("processed", temperature=1.0), worker="worker") as stream:
        while client.get_run("full").sequences == appended:
            for _ in range(64):
                stream.block(f"sequence-{appended}", first_position=0, policy_version=0, **record._asdict())
                stream.seal(f"sequence-{appended}", length=len(log_probs))
                appended += 1
            stream.flush()


def shown_end(address):
    """When the certificate ends that a client is shown there, in seconds since 1970."""
    host, port = address.split(":")
    shown = x509.load_pem_x509_certificate(ssl.get_server_certificate((host, int(port))).encode())
    return shown.not_valid_after.replace(tzinfo=datetime.timezone.utc).timestamp()


class RenderedServersChecks(unittest.TestCase):
    """Servers with the rendered flags, except that addresses and folders are this machine's."""

    SMALL = {"cacheMiB": 64, "messageMiB": 16}

    @classmethod
    def setUpClass(cls):
        cls.secrets = MountedSecrets(cls.enterClassContext(tempfile.TemporaryDirectory()))

    def serve(self, **values):
        """Starts servers. Checks that all processes answer the probes of their containers, and that
        /metrics has the end of each certificate that clients see."""
        objects = list(documents({**INSECURE, "serviceMonitor": {"enabled": True}, **values}))
        servers = rendered_servers.RenderedServers(objects, self.secrets.folder)
        self.addCleanup(servers.close)
        servers.check_probes(self)
        if "tlsSecret" in values.get("security", {}):
            self.assertEqual(servers.certificate_ends(), list(map(shown_end, servers.addresses)))
        return servers

    def as_alice(self):
        """Sets the environment that the pods of Alice's clients have."""
        return unittest.mock.patch.dict(os.environ, {"SIS_CA_FILE": self.secrets.ca, "SIS_TOKEN": TOKEN})

    def test_every_form_serves(self):
        for values in (
            {"replicaCount": 3},
            {"replicaCount": 3, "store": {"kind": "rocksdb"}},
            {"form": "sidecar", "sidecar": {"trainer": {"image": "trainer"}}},
            # Without a device too.
            {"replicaCount": 1, "gpu": {"count": 1, "cacheMiB": 64}},
        ):
            with self.subTest(values):
                servers = self.serve(memory=self.SMALL, **values)
                self.assertEqual(len(servers.addresses), values.get("replicaCount", 1))
                one_step.check_a_step(self, writes=servers.addresses, reads=servers.addresses)

    def test_with_tls_and_tokens_only_who_has_one_may_call(self):
        for values in (
            {"replicaCount": 3, "store": {"kind": "rocksdb"}},
            {"replicaCount": 2, "proxy": {"enabled": True}},
        ):
            servers = self.serve(memory=self.SMALL, security=TLS, **values)
            with unittest.mock.patch.dict(os.environ, {"SIS_CA_FILE": self.secrets.ca}):
                with sis.Client(servers.addresses[0]) as client, self.assertRaises(sis.Unauthenticated):
                    client.list_runs()
            with self.as_alice():
                one_step.check_a_step(self, writes=servers.addresses, reads=servers.addresses)

    def test_helm_test_fails_unless_every_server_answers_a_client(self):
        certified = {"tlsSecret": "tls", "clientCertificates": True}
        for values in (
            {"replicaCount": 3},
            {"replicaCount": 2, "security": TLS, "test": {"clientSecret": "client"}},
            {"replicaCount": 2, "security": TLS, "test": {"clientSecret": "client"}, "proxy": {"enabled": True}},
            {
                "replicaCount": 1,
                "security": certified,
                "flags": {"certificate_role": "viewer"},
                "test": {"clientSecret": "client"},
            },
            {"replicaCount": 1, "security": {"insecure": True, "identitiesSecret": "identities"}},
        ):
            with self.subTest(values=values):
                servers = self.serve(memory=self.SMALL, **values)
                count = len(servers.addresses)
                self.assertEqual(servers.helm_test(), [0] * count)
                servers.kill_server(count - 1)
                self.assertEqual(servers.helm_test(), [0] * (count - 1) + [1])
                servers.close()

    def test_a_renewed_certificate_is_shown_to_clients_and_its_end_to_prometheus(self):
        for proxy in (False, True):
            self.secrets.renew(datetime.timedelta(hours=1))
            servers = self.serve(replicaCount=1, memory=self.SMALL, security=TLS, proxy={"enabled": proxy})
            before = shown_end(servers.addresses[0])
            self.secrets.renew(datetime.timedelta(hours=5))
            until(lambda: shown_end(servers.addresses[0]) > before + 3 * 3600)
            # A proxy reads the file by itself, and the server when it next looks.
            until(lambda: servers.certificate_ends() == [shown_end(servers.addresses[0])])
            with self.as_alice():
                one_step.check_a_step(self, writes=servers.addresses, reads=servers.addresses)
            servers.close()

    def test_behind_a_proxy_a_flood_of_resets_costs_no_memory_and_delays_no_call(self):
        proxy = {"enabled": True, "callsPerSecond": 100}
        servers = self.serve(replicaCount=1, memory=self.SMALL, security=TLS, proxy=proxy)
        (address,) = servers.addresses
        with self.as_alice():
            one_step.check_a_step(self, writes=[address], reads=[address])
            before = servers.resident_bytes()
            with sis.Client(address) as client:
                flood = reset_flood.ResetFlood(address, seconds=5, ca=self.secrets.ca)
                resident, answered = [], set()
                while flood.alive():
                    self.assertEqual(len(client.list_runs()), 1)
                    answered.add(int(3 * flood.progress()))
                    resident.append(servers.resident_bytes())
                    time.sleep(0.05)
            sent, closed = flood.join()
            # The flood's address stays blocked after the flood; other addresses are served.
            self.assertTrue(flood.is_refused())
            with sis.Client(address) as client:
                self.assertEqual(len(client.list_runs()), 1)
        self.assertGreater(sent, 1000)
        self.assertGreater(closed, 0)
        self.assertLessEqual({0, 1, 2}, answered)
        self.assertLess(max(resident) - before, 64 << 20)

    def test_a_full_server_stays_below_its_memory_limit(self):
        # Little but the cache, without which the limit would be below it; and room for what gRPC takes
        # of one worker's messages.
        memory = {"cacheMiB": 320, "messageMiB": 1, "messagesInFlight": 48, "runs": 2}
        servers = self.serve(replicaCount=1, memory=memory, evaluateThreads=1)
        (address,) = servers.addresses
        one_step.check_a_step(self, writes=[address], reads=[address])
        with sis.Client(address) as client:
            fill_cache(client)
        (most,), (limit,) = servers.most_resident_bytes(), servers.memory_limits()
        self.assertGreater(most, 320 << 20)
        self.assertLess(most, limit)


if __name__ == "__main__":
    unittest.main()
