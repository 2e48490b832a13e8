"""That rendered flags start real servers.

Run by chart_test.py, in an environment that has Helm."""

import os
import tempfile
import time
import unittest
import unittest.mock

import numpy as np

import sis
from client.demo import arms
from client.demo.settings import Settings
from client.study.miniature import Miniature
from tests.deploy import one_step
from tests.deploy.helm import rendered_servers, reset_flood
from tests.deploy.helm.mounted_secrets import TOKEN, MountedSecrets
from tests.deploy.helm.rendered_chart import INSECURE, documents

TLS = {"tlsSecret": "tls", "identitiesSecret": "identities"}
# The demonstration, as small as it can be and still learn something.
DEMO = Settings(
    digits=1, warm_up_accuracy=0.15, rollouts=2, prompts=8, group=4, updates=3, learning_rate=3e-3
)


class RenderedServersChecks(unittest.TestCase):
    """The flags as they are rendered, but for addresses and folders, which are this machine's."""

    SMALL = {"cacheMiB": 64, "messageMiB": 16}

    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.folder = folder.name
        cls.secrets = MountedSecrets(cls.folder)
        cls.checkpoint = os.path.join(cls.folder, "checkpoint.npy")
        np.save(cls.checkpoint, Miniature(DEMO.digits).warm_up(1, DEMO.warm_up_accuracy))

    def check_the_demonstration(self, address):
        """Its worker and its trainer, processes of their own, as they find addresses and
        credentials in a pod. address: of one server, or of all replicas."""
        deadline = time.monotonic() + 100
        (learned,) = arms.train_arms(
            address, [arms.SAME_ENGINE.arms[1]], DEMO, 1, self.checkpoint, self.folder, deadline, lambda learned: None
        )
        self.assertEqual(len(learned), DEMO.rollouts)
        for rollout in learned:
            self.assertEqual(len(rollout.updates), DEMO.updates)
            for totals in rollout.updates:
                self.assertEqual(totals.missing, 0)
                self.assertGreater(totals.accepted, 0)
                self.assertLessEqual(totals.d_sis, totals.d)

    def servers(self, **values):
        """Of which all processes answer the probes of their containers."""
        objects = list(documents({**INSECURE, "podMonitor": {"enabled": True}, **values}))
        servers = rendered_servers.RenderedServers(objects, self.secrets.folder)
        self.addCleanup(servers.close)
        servers.check_probes(self)
        return servers

    def as_alice(self):
        """What the pods of her clients have in their environment."""
        return unittest.mock.patch.dict(os.environ, {"SIS_CA_FILE": self.secrets.ca, "SIS_TOKEN": TOKEN})

    def test_replicas_hold_a_sequence_each(self):
        for store in ("memory", "rocksdb"):
            servers = self.servers(servers=3, memory=self.SMALL, store={"kind": store})
            self.assertEqual(len(servers.addresses), 3)
            one_step.check_a_step(self, writes=servers.addresses, reads=servers.addresses)

    def test_any_server_of_a_fleet_answers_for_any_sequence(self):
        servers = self.servers(form="fleet", servers=2, memory=self.SMALL, memcached={"sizeMiB": 64})
        one_step.check_a_step(self, writes=servers.addresses[:1], reads=servers.addresses[1:])

    def test_with_tls_and_tokens_only_who_has_one_may_call(self):
        for values in (
            {"servers": 3, "store": {"kind": "rocksdb"}},
            {"form": "fleet", "servers": 2, "memcached": {"sizeMiB": 64}},
            {"servers": 2, "proxy": {"enabled": True}},
        ):
            servers = self.servers(memory=self.SMALL, security=TLS, **values)
            with unittest.mock.patch.dict(os.environ, {"SIS_CA_FILE": self.secrets.ca}):
                with sis.Client(servers.addresses[0]) as client, self.assertRaises(sis.Unauthenticated):
                    client.list_runs()
            with self.as_alice():
                one_step.check_a_step(self, writes=servers.addresses, reads=servers.addresses)
                # Of a fleet clients know one name, behind which they find any of its servers.
                fleet = "form" in values
                self.check_the_demonstration(servers.addresses[0] if fleet else servers.addresses)

    def test_a_trainer_shares_memory_with_its_sidecar(self):
        servers = self.servers(
            form="sidecar",
            memory={**self.SMALL, "sharedMiB": 64},
            sidecar={"trainer": {"image": "trainer"}},
        )
        one_step.check_a_step(self, writes=servers.addresses, reads=servers.addresses, shared_memory=True)
        self.check_the_demonstration(servers.addresses[0])

    def test_behind_a_proxy_a_flood_of_resets_costs_no_memory_and_nobody_waits(self):
        servers = self.servers(servers=1, memory=self.SMALL, proxy={"enabled": True, "callsPerSecond": 100})
        (address,) = servers.addresses
        one_step.check_a_step(self, writes=[address], reads=[address])
        before = servers.resident_bytes()
        with sis.Client(address) as client:
            flood = reset_flood.ResetFlood(address, seconds=5)
            answers = 0
            while flood.alive():
                self.assertEqual(len(client.list_runs()), 1)
                answers += 1
                time.sleep(0.05)
        sent, closed = flood.join()
        self.assertGreater(sent, 1000)
        self.assertGreater(closed, 0)
        self.assertGreater(answers, 0)
        self.assertLess(servers.resident_bytes() - before, 64 << 20)
        # The address of the flood is still refused; others connect as ever.
        with sis.Client(address) as client:
            self.assertEqual(len(client.list_runs()), 1)

    def test_without_a_device_the_gpu_values_serve_too(self):
        servers = self.servers(servers=1, memory=self.SMALL, gpu={"count": 1, "cacheMiB": 64})
        one_step.check_a_step(self, writes=servers.addresses, reads=servers.addresses)


if __name__ == "__main__":
    unittest.main()
