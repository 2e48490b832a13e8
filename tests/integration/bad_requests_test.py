"""Requests that make no sense are refused by every method, and the server goes on. No request gets an answer many times
as large as itself, whatever names it holds; nor a message that nobody can read."""

import copy
import unittest

import grpc

from server.testing.live_server import LiveServer
from sis.v1 import ratio_service_pb2 as pb
from tests.integration import every_method

LONG = 1 << 20
MAX_MESSAGE_BYTES = 1024
REQUESTS = every_method.requests("run")
RUN = REQUESTS["Release"].run


def paths_to_strings(message):
    """The fields that lead to each string of a message type."""
    for field in message.fields:
        if field.type == field.TYPE_STRING:
            yield [field]
        elif field.type == field.TYPE_MESSAGE:
            yield from ([field, *rest] for rest in paths_to_strings(field.message_type))


def with_string(message, path, value):
    """The message with another value in one of its strings."""
    message = whole = copy.deepcopy(message)
    for field in path[:-1]:
        inner = getattr(message, field.name)
        if field.label == field.LABEL_REPEATED:
            inner = inner[0] if inner else inner.add()
        message = inner
    last = path[-1]
    if last.label == last.LABEL_REPEATED:
        getattr(message, last.name).append(value)
    else:
        setattr(message, last.name, value)
    return whole


class BadRequestsTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = cls.enterClassContext(LiveServer())
        cls.channel = grpc.insecure_channel(
            cls.server.address, [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
        )
        cls.addClassCleanup(cls.channel.close)
        code, _, _ = cls.call("CreateRun", REQUESTS["CreateRun"])
        assert code is grpc.StatusCode.OK

    @classmethod
    def call(cls, method, *requests):
        """Any call, of one request or of several: its code, message and answers, as bytes."""
        stream = every_method.begin(cls.channel, method, *requests)
        answers = []
        try:
            answers.extend(stream)
        except grpc.RpcError:
            pass
        return stream.code(), stream.details(), answers

    def append(self, batch):
        return self.call("Append", REQUESTS["Append"], pb.AppendRequest(batch=batch))

    def assert_small(self, request, message, answers, times=2):
        self.assertLessEqual(len(message.encode()), MAX_MESSAGE_BYTES)
        self.assertLessEqual(sum(map(len, answers)), times * request.ByteSize() + (64 << 10))

    def test_bytes_that_are_no_message(self):
        for method in pb.DESCRIPTOR.services_by_name["RatioService"].methods:
            fields = method.input_type.fields_by_number
            # A field longer than the message; a string that isn't UTF-8.
            for request in (b"\x0a\x7f", b"\x0a\x02\xff\xff"):
                if not fields or request[1] == 2 and fields[1].type != fields[1].TYPE_STRING:
                    continue
                with self.subTest(method.name, request=request):
                    call = self.channel.stream_stream(f"/sis.v1.RatioService/{method.name}")(iter([request]))
                    # gRPC's own answer, as the handler is not called; that of a stream is.
                    code = "INVALID_ARGUMENT" if method.name == "Append" else "UNIMPLEMENTED"
                    self.assertEqual(call.code().name, code, call.details())
        self.assertIs(self.call("ListRuns", pb.ListRunsRequest())[0], grpc.StatusCode.OK)

    def test_a_stream_begins_with_one_header(self):
        header, batch = REQUESTS["Append"], pb.AppendRequest(batch=pb.AppendBatch())
        for requests, message in (
            ([batch], "must come first"),
            ([pb.AppendRequest()], "neither header nor batch"),
            ([header, header], "sent twice"),
        ):
            code, told, _ = self.call("Append", *requests)
            self.assertIs(code, grpc.StatusCode.INVALID_ARGUMENT, message)
            self.assertIn(message, told)

    def test_long_names(self):
        checked = 0
        for method, request in REQUESTS.items():
            for path in paths_to_strings(request.DESCRIPTOR):
                # To delete a run that is not there succeeds.
                if method == "DeleteRun" or method == "Append" and path[0].name != "header":
                    continue
                with self.subTest(method, path=".".join(field.name for field in path)):
                    spoiled = with_string(request, path, "x" * LONG)
                    code, message, answers = self.call(method, spoiled)
                    self.assertIn(
                        code,
                        (
                            grpc.StatusCode.INVALID_ARGUMENT,
                            grpc.StatusCode.NOT_FOUND,
                            grpc.StatusCode.PERMISSION_DENIED,
                        ),
                        message[:200],
                    )
                    self.assertNotEqual(message, "")
                    self.assert_small(spoiled, message, answers)
                    checked += 1
        self.assertGreater(checked, 15)

    def test_entries(self):
        """Few with long names, and many small ones."""
        long, most = pb.SequenceRef(id="x" * LONG), 1 << 16
        for entry, count, times in (
            (pb.AppendEntry(sequence=long, block=b""), 3, 2),
            (pb.AppendEntry(sequence=long, seal=pb.Seal()), 3, 2),
            (pb.AppendEntry(), most, 4),
            (pb.AppendEntry(sequence=every_method.SEQUENCE, block=b""), most, 4),
            (pb.AppendEntry(sequence=every_method.SEQUENCE, seal=pb.Seal(length=1 << 30)), most, 4),
        ):
            batch = pb.AppendBatch(entries=[entry] * count)
            code, message, answers = self.append(batch)
            self.assertIs(code, grpc.StatusCode.OK, message[:200])
            self.assert_small(batch, message, answers, times)
            acks = pb.AppendResponse.FromString(answers[0]).acks
            self.assertEqual({ack.code for ack in acks}, {grpc.StatusCode.INVALID_ARGUMENT.value[0]})
            self.assertEqual(len(acks), count)
            self.assertNotEqual(acks[0].message, "")
            self.assertLessEqual(max(len(ack.message) for ack in acks), MAX_MESSAGE_BYTES)

    def test_messages_cut_no_character(self):
        for first in ("", "a", "aa", "aaa"):
            wide = first + "\U0001f600" * 100
            batch = pb.AppendBatch(entries=[pb.AppendEntry(sequence=pb.SequenceRef(id=wide), block=b"")])
            code, message, answers = self.append(batch)
            self.assertIs(code, grpc.StatusCode.OK, message)
            ack = pb.AppendResponse.FromString(answers[0]).acks[0]
            self.assertRegex(ack.message, "sequence.id.* bytes")
            for method, request in {
                "GetRun": pb.GetRunRequest(run_id=wide),
                "CreateRun": pb.CreateRunRequest(run_id=wide),
                "Release": pb.ReleaseRequest(run=RUN, sequences=[pb.SequenceRef(id=wide)]),
            }.items():
                code, message, _ = self.call(method, request)
                self.assertIn(code, (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND), method)
                self.assertNotIn("\ufffd", message)
            self.assertIn("sequence.id", message)  # of a Release


if __name__ == "__main__":
    unittest.main()
