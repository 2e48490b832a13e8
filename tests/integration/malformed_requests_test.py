"""What is no message in protobuf is refused in words, by every method."""

import unittest

import grpc

from server.testing.live_server import LiveServer
from sis.v1 import ratio_service_pb2 as pb

# A tag of no wire type; a field longer than the message; where a string is the first field, one
# that isn't UTF-8.
MALFORMED = (b"\x07", b"\x0a\x7f", b"\x0a\x02\xff\xff")


class MalformedRequestsTest(unittest.TestCase):
    def test_every_method(self):
        server = LiveServer()
        self.addCleanup(server.close)
        with grpc.insecure_channel(server.address) as channel:
            for method in pb.DESCRIPTOR.services_by_name["RatioService"].methods:
                for request in MALFORMED:
                    fields = method.input_type.fields_by_number
                    if request == MALFORMED[2] and not (fields and fields[1].type == fields[1].TYPE_STRING):
                        continue
                    with self.subTest(method.name, request=request):
                        call = channel.stream_stream(f"/sis.v1.RatioService/{method.name}")(iter([request]))
                        self.assertIs(call.code(), grpc.StatusCode.INVALID_ARGUMENT)
                        self.assertRegex(call.details(), rf"not an? (sis\.v1\.)?{method.input_type.name}")


if __name__ == "__main__":
    unittest.main()
