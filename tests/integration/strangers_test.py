"""What a connection may bring before anybody has said who is there, and after it."""

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
PATIENCE = 60
# About as large as a message may be; of a run that isn't there.
LARGEST = pb.ReleaseRequest(run=pb.RunRef(run_id="x"), sequences=[pb.SequenceRef(id="y" * (MESSAGE - 100))])


class StrangersTest(unittest.TestCase):
    def start(self, *flags, listen="127.0.0.1:0"):
        server = LiveServer(
            f"--max_message_bytes={MESSAGE}", f"--grpc_memory_bytes={GRPC_MEMORY}", *flags, listen=listen
        )
        self.addCleanup(server.kill)
        return server

    def stub(self, server):
        channel = grpc.insecure_channel(server.address.replace("0.0.0.0", "127.0.0.1"))
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
                    self.assertIs(self.release(stub), grpc.StatusCode.NOT_FOUND)
                self.assertEqual(self.cut(server), 0)

    def test_who_has_no_token_is_not_known(self):
        server = self.start(f"--identities={self.identities()}")
        stub = self.stub(server)
        refused = {grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.UNAVAILABLE}
        while self.cut(server) == 0:
            self.assertIn(self.release(stub), refused)
        token = [("authorization", "Bearer 0123456789abcdef")]
        while self.release(stub, token) is grpc.StatusCode.UNAVAILABLE:
            pass  # over the connection that is just being cut
        for _ in range(8):
            self.assertIs(self.release(stub, token), grpc.StatusCode.NOT_FOUND)

    def release(self, stub, metadata=None):
        """How a call with the largest message ends."""
        with self.assertRaises(grpc.RpcError) as raised:
            stub.Release(LARGEST, timeout=PATIENCE, metadata=metadata)
        return raised.exception.code()

    def identities(self):
        file = tempfile.NamedTemporaryFile("w")
        self.addCleanup(file.close)
        file.write("token 0123456789abcdef alice admin\n")
        file.flush()
        return file.name


if __name__ == "__main__":
    unittest.main()
