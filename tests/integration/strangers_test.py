"""What a connection may bring before anybody has said who is there, and after it."""

import ipaddress
import pathlib
import tempfile
import threading
import unittest

import grpc

from server.testing.live_server import LiveServer
from server.testing.process_status import process_status
from sis.v1 import ratio_service_pb2 as pb
from sis.v1 import ratio_service_pb2_grpc
from tests.integration.header_flood import HeaderFlood

MEBIBYTE = 1 << 20
MESSAGE, GRPC_MEMORY = 4 * MEBIBYTE, 64 * MEBIBYTE
# What is sent between two looks, and lies in the sockets' buffers.
ON_THE_WAY = 16 * MEBIBYTE
# The most that a connection may bring, whatever else is allowed.
MOST = 8 * MEBIBYTE
PATIENCE = 60
# About as large as a message may be; of a run that isn't there.
LARGEST = pb.EvaluateRequest(run=pb.RunRef(run_id="x"), gathered=pb.Gathered(log_probs=bytes(MESSAGE - 100)))


def link_local_address():
    """Of this machine, with its interface: fe80::1%eth0. None if there is none."""
    try:
        interfaces = pathlib.Path("/proc/net/if_inet6").read_text(encoding="ascii")
    except OSError:
        return None
    for line in interfaces.splitlines():
        digits, *_, name = line.split()
        if digits.startswith("fe80"):
            return f"{ipaddress.IPv6Address(bytes.fromhex(digits))}%{name}"
    return None


class StrangersTest(unittest.TestCase):
    def start(self, *flags, listen="127.0.0.1:0"):
        server = LiveServer(
            f"--max_message_bytes={MESSAGE}", f"--grpc_memory_bytes={GRPC_MEMORY}", *flags, listen=listen
        )
        self.addCleanup(server.kill)
        return server

    def stub(self, server):
        return self.stub_at(server.address.replace("0.0.0.0", "127.0.0.1"))

    def stub_at(self, address):
        channel = grpc.insecure_channel(address)
        self.addCleanup(channel.close)
        return ratio_service_pb2_grpc.RatioServiceStub(channel)

    def cut(self, server):
        return server.metrics()["sis_cut_connections_total"]

    def test_headers_that_never_end_are_cut(self):
        server = self.start()
        before = process_status(server.process, "VmRSS")
        flood = HeaderFlood(server.address)
        self.addCleanup(flood.close)
        sent, cut = flood.send(64 * MESSAGE)
        self.assertTrue(cut)
        self.assertLess(sent, MESSAGE + ON_THE_WAY)
        self.assertEqual(self.cut(server), 1)
        grown = (process_status(server.process, "VmHWM") - before) << 10
        self.assertLess(grown, 4 * (MESSAGE + ON_THE_WAY))
        self.assertTrue(self.stub(server).GetServer(pb.GetServerRequest(), timeout=PATIENCE).ready)

    def test_the_default_flags_allow_no_more_than_a_small_message(self):
        server = LiveServer()
        self.addCleanup(server.kill)
        flood = HeaderFlood(server.address)
        self.addCleanup(flood.close)
        sent, cut = flood.send(16 * MOST)
        self.assertTrue(cut)
        self.assertLess(sent, MOST + ON_THE_WAY)
        self.assertEqual(self.cut(server), 1)

    def test_connections_over_the_link_are_watched_and_known_like_others(self):
        address = link_local_address()
        if address is None:
            self.skipTest("no interface has an address of its link")
        server = self.start("--insecure", listen="[::]:0")
        host_and_port = f"[{address}]:{server.address.rpartition(':')[2]}"
        stub = self.stub_at(host_and_port)
        for _ in range(4):
            self.assertIs(self.evaluate(stub), grpc.StatusCode.NOT_FOUND)
        self.assertEqual(self.cut(server), 0)
        flood = HeaderFlood(host_and_port)
        self.addCleanup(flood.close)
        self.assertTrue(flood.send(64 * MESSAGE)[1])
        self.assertEqual(self.cut(server), 1)

    def test_many_together_are_cut_before_each_would_be(self):
        server = self.start()
        floods = [HeaderFlood(server.address) for _ in range(12)]
        for flood in floods:
            self.addCleanup(flood.close)
        senders = [threading.Thread(target=flood.send, args=[3 * MEBIBYTE]) for flood in floods]
        for sender in senders:
            sender.start()
        for sender in senders:
            sender.join()
        # All together are 36 MiB, of which 16 may be there.
        while self.cut(server) < 6:
            pass
        self.assertTrue(self.stub(server).GetServer(pb.GetServerRequest(), timeout=PATIENCE).ready)

    def test_who_is_known_brings_what_it_likes(self):
        for listen in ("127.0.0.1:0", "0.0.0.0:0", "[::1]:0"):
            with self.subTest(listen):
                server = self.start("--insecure", listen=listen)
                stub = self.stub(server)
                for _ in range(2 * GRPC_MEMORY // MESSAGE):
                    self.assertIs(self.evaluate(stub), grpc.StatusCode.NOT_FOUND)
                self.assertEqual(self.cut(server), 0)

    def test_who_has_no_token_is_not_known(self):
        server = self.start(f"--identities={self.identities()}")
        stub = self.stub(server)
        refused = {grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.UNAVAILABLE}
        while self.cut(server) == 0:
            self.assertIn(self.evaluate(stub), refused)
        token = [("authorization", "Bearer 0123456789abcdef")]
        while self.evaluate(stub, token) is grpc.StatusCode.UNAVAILABLE:
            pass  # over the connection that is just being cut
        for _ in range(8):
            self.assertIs(self.evaluate(stub, token), grpc.StatusCode.NOT_FOUND)

    def evaluate(self, stub, metadata=None):
        """How a call with the largest message ends."""
        with self.assertRaises(grpc.RpcError) as raised:
            stub.Evaluate(LARGEST, timeout=PATIENCE, metadata=metadata)
        return raised.exception.code()

    def identities(self):
        file = tempfile.NamedTemporaryFile("w")
        self.addCleanup(file.close)
        file.write("token 0123456789abcdef alice admin\n")
        file.flush()
        return file.name


if __name__ == "__main__":
    unittest.main()
