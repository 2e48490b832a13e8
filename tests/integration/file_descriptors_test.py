"""More clients than a server has file descriptors for: who is connected goes on, and so does the
store."""

import pathlib
import resource
import socket
import tempfile
import unittest

import sis
from server.testing.live_server import LiveServer
from server.testing.until import until
from tests.integration.large_sequences import CONFIG, POSITIONS, append, name, recorded

# At some 408 bytes a position more than the 32 MiB after which RocksDB begins new files.
SEQUENCES = 60


class FileDescriptorsTest(unittest.TestCase):
    def setUp(self):
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if hard < 2048:
            self.skipTest(f"needs 2048 file descriptors of its own, has {hard}")
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2048), hard))

    def assert_there(self, client, run, number):
        records = client.fetch_top_k(run, [sis.Slice(name(number), 0, POSITIONS)])
        self.assertEqual(records.log_probs.tobytes(), recorded(number)[1].tobytes())
        evaluation = client.evaluate(
            run, records, draw=1, log_probs=records.log_probs, sampled_log_probs=records.sampled_log_probs
        )
        self.assertEqual((evaluation.totals.scored, evaluation.missing), (POSITIONS, ()))

    def test_who_is_connected_appends_and_reads_while_others_are_refused(self):
        for limit in (256, 1024):
            with self.subTest(limit=limit), tempfile.TemporaryDirectory() as folder:
                server = LiveServer(
                    f"--store=rocksdb:{folder}/store",
                    cache_bytes=16 << 20,
                    prefix=["sh", "-c", f'ulimit -n {limit} && exec "$0" "$@"'],
                )
                self.addCleanup(server.kill)
                host, _, port = server.address.rpartition(":")

                def is_served():
                    """A new connection, which stays: gRPC greets whoever connects."""
                    connection = socket.create_connection((host, int(port)), timeout=20)
                    self.addCleanup(connection.close)
                    try:
                        return bool(connection.recv(1))
                    except ConnectionError:
                        return False

                def tables():
                    return list(pathlib.Path(folder).glob("store/*.sst"))

                with sis.Client(server.address, timeout=20) as client:
                    run = client.create_run("run", **CONFIG)
                    append(client, run, [0])
                    self.assertFalse([is_served() for _ in range(limit)][-1])
                    self.assertEqual(tables(), [])
                    append(client, run, range(1, SEQUENCES))
                    for number in (0, SEQUENCES - 1):  # of the store, and of memory
                        self.assert_there(client, run, number)
                    until(tables)  # written by a thread of RocksDB's own
                    # RocksDB has closed some, which others got: there is still none to be had.
                    self.assertFalse([is_served() for _ in range(20)][-1])
                server.kill()


if __name__ == "__main__":
    unittest.main()
