"""Limits of one connection and one message (docs/security.md), with the library that clients use."""

import unittest

import grpc

import sis
from sis.v1 import ratio_service_pb2 as pb
from sis.v1 import ratio_service_pb2_grpc
from tests.integration.live_server import ServersTest

PATIENCE = 30.0
RUN = pb.RunRef(run_id="run")
HEADER = pb.AppendHeader(run=RUN, vocabulary_size=10, sampling=sis.Sampling("raw").to_proto())
NOWHERE = pb.RunRef(run_id="nowhere")


def padded(message, size):
    """Returns the message, padded to `size` bytes."""
    known = message.SerializeToString()
    field_and_length = 2 + 3
    padding = size - len(known) - field_and_length
    assert 1 << 14 <= padding < 1 << 21, "or its length takes other than 3 bytes"
    length = bytes([padding & 127 | 128, padding >> 7 & 127 | 128, padding >> 14])
    return known + b"\xc2\x3e" + length + padding * b"x"  # field 1000


class ConnectionLimitsTest(ServersTest):
    def connect(self, *flags):
        server = self.serve(*flags)
        self.address = server.address
        channel = self.enterContext(grpc.insecure_channel(server.address))
        stub = ratio_service_pb2_grpc.RatioServiceStub(channel)
        stub.CreateRun(pb.CreateRunRequest(run_id="run", config=pb.RunConfig(vocabulary_size=10, top_k=2)))
        return channel, stub

    def code_of(self, call, *arguments, **named):
        try:
            call(*arguments, **named)
        except grpc.RpcError as error:
            return error.code()
        return grpc.StatusCode.OK

    def test_metadata(self):
        _, stub = self.connect()
        for kibibytes, code in ((15, grpc.StatusCode.OK), (17, grpc.StatusCode.RESOURCE_EXHAUSTED)):
            metadata = [("authorization", "x" * (kibibytes << 10))]
            self.assertIs(self.code_of(stub.GetServer, pb.GetServerRequest(), metadata=metadata), code)

    def test_messages(self):
        most = 1 << 16
        channel, _ = self.connect(f"--max_message_bytes={most}")
        header = pb.AppendRequest(header=HEADER).SerializeToString()
        entry = pb.AppendRequest(batch=pb.AppendBatch(entries=[pb.AppendEntry()]))
        for method, before, request, answer in (
            ("GetRun", [], pb.GetRunRequest(run_id="nowhere"), grpc.StatusCode.NOT_FOUND),
            ("FetchTopK", [], pb.FetchTopKRequest(run=NOWHERE), grpc.StatusCode.NOT_FOUND),
            ("Evaluate", [], pb.EvaluateRequest(run=NOWHERE), grpc.StatusCode.NOT_FOUND),
            ("Append", [], pb.AppendRequest(header=pb.AppendHeader(run=NOWHERE)), grpc.StatusCode.NOT_FOUND),
            ("Append", [header], entry, grpc.StatusCode.OK),
        ):
            call = channel.stream_stream(f"/sis.v1.RatioService/{method}")
            for size, code in ((most, answer), (most + 1, grpc.StatusCode.RESOURCE_EXHAUSTED)):
                with self.subTest(method, size=size):
                    messages = [*before, padded(request, size)]
                    self.assertIs(self.code_of(lambda: list(call(iter(messages)))), code)

    def test_the_first_message_of_a_connection_may_be_as_large_as_others(self):
        self.connect()
        request = pb.EvaluateRequest(run=NOWHERE, gathered=pb.Gathered(log_probs=bytes(60 << 20)))
        options = [("grpc.max_send_message_length", -1), ("grpc.use_local_subchannel_pool", 1)]
        with grpc.insecure_channel(self.address, options) as channel:
            stub = ratio_service_pb2_grpc.RatioServiceStub(channel)
            self.assertIs(self.code_of(stub.Evaluate, request, timeout=PATIENCE), grpc.StatusCode.NOT_FOUND)


if __name__ == "__main__":
    unittest.main()
