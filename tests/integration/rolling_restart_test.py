"""Three servers restarted one after the other while workers append and a trainer evaluates: it costs
no step and no acked block that their stores keep."""

import concurrent.futures
import contextlib
import threading
import time
import unittest
import unittest.mock

import sis
from client.demo import trainer
from sis._servers.placement import Placement
from tests.integration import fleet_load
from tests.integration.redis_servers import RedisCluster

# The demonstration, with short steps. The test ends it.
SETTINGS = trainer.Settings(accuracy=0.15, rollouts=100_000, prompts=4, updates=3)


class PatientClient(sis.Client):
    """Repeats the calls that are UNAVAILABLE while a node of Redis is away."""

    def advance_version(self, *arguments):
        return self._patiently(super().advance_version, arguments)

    def release(self, *arguments):
        return self._patiently(super().release, arguments)

    @staticmethod
    def _patiently(call, arguments):
        for _ in range(120):
            try:
                return call(*arguments)
            except sis.Unavailable:
                time.sleep(0.5)
        return call(*arguments)


class TrainedEnough(Exception):
    pass


def train(addresses, begun, enough):
    """Trains the demonstration until a rollout ends after `enough` is set. Sets `begun` after the first rollout.
    Returns all rollouts."""
    rollouts = []

    def show(rollout):
        rollouts.append(rollout)
        begun.set()
        if enough.is_set():
            raise TrainedEnough

    start = trainer.warmed_up(SETTINGS, 1)
    with unittest.mock.patch.object(trainer.sis, "Client", PatientClient), contextlib.suppress(TrainedEnough):
        trainer.train(addresses, "demo", "sis", 3, SETTINGS, start, show)
    return rollouts


class RollingRestartTest(fleet_load.LoadedServersTest):
    def roll(self, stores, servers, load, seconds=0):
        """Restarts each of the servers under load. Returns for each the sequences acked when it got SIGTERM, and those
        acked when it was ready again. `seconds`: pause after each."""
        restarts = []
        for index, store in enumerate(stores):
            load.go_on()
            before = set(load.acked())
            address = servers[index].address
            servers[index].close()
            self.assertEqual(servers[index].process.returncode, 0)
            during = load.steps
            load.until(lambda: load.steps >= during + 3)  # steps go on without it
            servers[index] = self.serve(store, listen=address)
            restarts.append((before, set(load.acked())))
            time.sleep(seconds)
        load.go_on()
        return restarts

    def test_in_memory_each_costs_its_share_and_no_more(self):
        stores = ["memory"] * 3
        servers, addresses, load = self.begin(stores)
        restarts = self.roll(stores, servers, load)
        self.end(load)
        missing = fleet_load.missing_of(addresses, load.acked())
        self.assertLessEqual(set(missing.values()), {sis.MissingReason.NEVER_ARRIVED})
        placement = Placement(addresses)
        owner = {sequence: placement.replica(fleet_load.RUN_ID, sequence) for sequence in load.acked()}
        for index, (before, back) in enumerate(restarts):
            share = {sequence for sequence in load.acked() if owner[sequence] == index}
            self.assertLessEqual(share & before, set(missing))
            self.assertEqual(set(missing) & (share - back), set())

    def test_over_a_cluster_nothing_is_lost_when_servers_and_nodes_restart_during_a_training(self):
        cluster = RedisCluster(self.folder)
        self.addCleanup(cluster.kill)
        stores = [cluster.store] * 3
        servers, addresses, load = self.begin(stores, allowed={sis.MissingReason.STORE_DOWN})
        begun, enough = threading.Event(), threading.Event()
        with concurrent.futures.ThreadPoolExecutor(1) as executor:
            demo = executor.submit(train, addresses, begun, enough)
            try:
                while not begun.wait(1):
                    self.assertFalse(demo.done())
                # Clients skip a server for ten seconds at most: never all of them at a time.
                self.roll(stores, servers, load, seconds=10)
                for node in cluster.nodes:
                    node.close()
                    during = load.steps
                    load.until(lambda: load.steps >= during + 3)
                    node.start()
                    cluster.wait_until_whole()
                    load.go_on()
            finally:
                enough.set()
            rollouts = demo.result()
        self.end(load)
        # Every rollout was in the memory of a server when it was evaluated, or read from a node that was there.
        self.assertGreater(len(rollouts), 1)
        self.assertEqual([totals.missing for rollout in rollouts for totals in rollout.updates if totals.missing], [])
        self.assertEqual(fleet_load.missing_of(addresses, load.acked()), {})
        # New servers must find all sequences in the stores alone, without the memory of the old ones.
        fresh = [self.serve(store).address for store in stores]
        self.assertEqual(fleet_load.missing_of(fresh, load.acked()), {})


if __name__ == "__main__":
    unittest.main()
