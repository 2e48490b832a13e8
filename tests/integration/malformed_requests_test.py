"""Every method refuses bytes that are not its message in protobuf, and the server goes on."""

import unittest

import grpc

from server.testing.live_server import LiveServer
from sis.v1 import ratio_service_pb2 as pb

# A field longer than the message; a string that isn't UTF-8.
MALFORMED = (b"\x0a\x7f", b"\x0a\x02\xff\xff")


class MalformedRequestsTest(unittest.TestCase):
    def test_every_method(self):
        server = LiveServer()
        self.addCleanup(server.close)
        with grpc.insecure_channel(server.address) as channel:
            for method in pb.DESCRIPTOR.services_by_name["RatioService"].methods:
                for request in MALFORMED:
                    fields = method.input_type.fields_by_number
                    if not fields:
                        continue
                    if request == MALFORMED[1] and fields[1].type != fields[1].TYPE_STRING:
                        continue
                    with self.subTest(method.name, request=request):
                        call = channel.stream_stream(f"/sis.v1.RatioService/{method.name}")(iter([request]))
                        # gRPC's own answer, as the handler is not called.
                        expected = grpc.StatusCode.UNIMPLEMENTED
                        if method.name == "Append":
                            expected = grpc.StatusCode.INVALID_ARGUMENT
                        self.assertIs(call.code(), expected, call.details())
            self.assertEqual(channel.unary_unary("/sis.v1.RatioService/ListRuns")(b""), b"")


if __name__ == "__main__":
    unittest.main()
