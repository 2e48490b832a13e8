"""Servers and stores are killed, and hold the promises of acks in docs/operations.md, row by row.

store_test.py has the rows of memory and of RocksDB. A series has three kills, or as many as SIS_KILLS in the
environment says.
"""

import os
import time
import unittest

import sis
from server.testing.until import until
from tests.integration import fleet_load
from tests.integration.redis_servers import RedisCluster, RedisServer, with_replica

KILLS = int(os.environ.get("SIS_KILLS", 3))
NEVER_ARRIVED = sis.MissingReason.NEVER_ARRIVED
# How long everysec may keep an acked block from the disk: Redis waits up to two seconds for a slow one.
EVERYSEC = 2.5


def takes_appends(server):
    return any(value for series, value in server.metrics().items() if "started_total" in series and "Append" in series)


class AckedBlocksTest(fleet_load.LoadedServersTest):
    def redis(self, *arguments):
        redis = RedisServer(f"{self.folder}/redis", *arguments)
        self.addCleanup(redis.kill)
        return redis

    def missing(self, store, sequences):
        """By servers that have nothing in memory."""
        return fleet_load.missing_of([self.serve(store).address], sequences)

    def kill_servers(self, stores):
        """Always the same one: clients skip it for a while, and must find another."""
        servers, _, load = self.begin(stores)
        for _ in range(KILLS):
            load.until(lambda: takes_appends(servers[0]))
            load.go_on()
            servers[0].kill()
            servers[0] = self.serve(stores[0], listen=servers[0].address)
        load.go_on()
        self.end(load)
        return servers, load.acked()

    def test_rocksdb_keeps_acked_blocks_when_servers_are_killed_again_and_again(self):
        stores = [f"rocksdb:{self.folder}/{index}" for index in range(2)]
        servers, acked = self.kill_servers(stores)
        self.assertEqual(fleet_load.missing_of([server.address for server in servers], acked), {})

    def test_redis_keeps_acked_blocks_when_servers_are_killed_again_and_again(self):
        """Even without persistence: only servers are killed."""
        store = self.redis(None).store
        _, acked = self.kill_servers([store] * 2)
        self.assertEqual(self.missing(store, acked), {})

    def test_appendfsync_always_keeps_acked_blocks_when_nodes_are_killed_again_and_again(self):
        cluster = RedisCluster(self.folder, "always")
        self.addCleanup(cluster.kill)
        *_, load = self.begin([cluster.store] * 2)
        for kill in range(KILLS):
            load.go_on()
            node = cluster.nodes[kill % len(cluster.nodes)]
            node.kill()
            node.start()
            cluster.wait_until_whole()
        load.go_on()
        self.end(load)
        self.assertEqual(self.missing(cluster.store, load.acked()), {})

    def killed_under_load(self, redis):
        """Returns the sequences that were acked before the end of `redis`, and when that was."""
        *_, load = self.begin([redis.store])
        load.go_on(sequences=100)
        acked = load.acked()
        redis.kill()
        killed = time.monotonic()
        # With the only store away nothing more is acked, and steps may fail.
        load.stop()
        redis.start()
        return acked, load.acked(killed - EVERYSEC)

    def test_everysec_keeps_records_acked_some_seconds_before_redis_is_killed(self):
        redis = self.redis("everysec")
        acked, earlier = self.killed_under_load(redis)
        missing = self.missing(redis.store, acked)
        self.assertLessEqual(set(missing.values()), {NEVER_ARRIVED})
        self.assertEqual(set(missing) & set(earlier), set())

    def test_without_persistence_nothing_is_there_when_redis_was_killed(self):
        redis = self.redis(None)
        acked, _ = self.killed_under_load(redis)
        with sis.Client(self.serve(redis.store).address, timeout=20) as client:
            self.assertEqual(client.list_runs(), [])
            run = fleet_load.create_run(client)
            records = client.fetch_top_k(run, [sis.Slice(name, 0, fleet_load.POSITIONS) for name in acked])
        self.assertFalse(records.present.any())
        self.assertEqual({missing.reason for missing in records.missing}, {NEVER_ARRIVED})

    def test_a_promoted_replica_has_the_records_that_reached_it(self):
        primary, replica = with_replica(self.folder, self.addCleanup)
        store = f"redis://{primary.node},{replica.node}"
        servers, _, load = self.begin([store] * 2)
        load.go_on(sequences=100)
        reached = load.acked()
        # The replica receives writes in their order, so this one comes after all the others.
        primary.ask("SET", "mark", "1")
        until(lambda: replica.ask("GET", "mark") == "1")
        load.go_on()
        primary.kill()
        acked = load.acked()
        replica.ask("REPLICAOF", "NO", "ONE")
        load.go_on()  # the servers find it
        self.end(load)
        missing = self.missing(store, load.acked())
        self.assertLessEqual(set(missing.values()), {NEVER_ARRIVED})
        self.assertEqual(set(missing) & set(reached), set())
        self.assertLessEqual(set(missing), set(acked) - set(reached))
        for server in servers:
            server.close()


if __name__ == "__main__":
    unittest.main()
