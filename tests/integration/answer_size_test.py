"""No request gets an answer many times as large as itself, whatever names it holds; nor a message
that nobody can read."""

import copy
import unittest

import grpc

from server.testing.live_server import LiveServer
from sis.v1 import ratio_service_pb2 as pb

LONG = 1 << 20
MOST_MESSAGE_BYTES = 1024
RUN = pb.RunRef(run_id="run")
SEQUENCE = pb.SequenceRef(id="s")
HEADER = pb.AppendHeader(
    run=RUN,
    vocabulary_size=10,
    sampling=pb.Sampling(log_probs=pb.Sampling.LOG_PROBS_RAW, temperature=1),
)
REQUESTS = {
    "CreateRun": pb.CreateRunRequest(run_id="new", config=pb.RunConfig(vocabulary_size=10, top_k=2)),
    "AdvanceVersion": pb.AdvanceVersionRequest(run=RUN),
    "GetRun": pb.GetRunRequest(run_id="run"),
    "GetStep": pb.GetStepRequest(run=RUN),
    "ListSteps": pb.ListStepsRequest(run=RUN),
    "ListRuns": pb.ListRunsRequest(),
    "ListSequences": pb.ListSequencesRequest(run=RUN),
    "Append": pb.AppendRequest(header=HEADER),
    "Release": pb.ReleaseRequest(run=RUN, sequences=[SEQUENCE]),
    "FetchTopK": pb.FetchTopKRequest(run=RUN, slices=[pb.Slice(sequence=SEQUENCE)]),
    "Evaluate": pb.EvaluateRequest(run=RUN, slices=[pb.Slice(sequence=SEQUENCE, length=1)]),
}


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


class AnswerSizeTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = LiveServer()
        cls.addClassCleanup(cls.server.close)
        cls.channel = grpc.insecure_channel(
            cls.server.address, [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
        )
        cls.addClassCleanup(cls.channel.close)
        created = pb.CreateRunRequest(run_id="run", config=pb.RunConfig(vocabulary_size=10, top_k=2))
        code, _, _ = cls.call("CreateRun", created)
        assert code is grpc.StatusCode.OK

    @classmethod
    def call(cls, method, *requests):
        """Any call, of one request or of several: its code, message and answers, as bytes."""
        stream = cls.channel.stream_stream(
            f"/sis.v1.RatioService/{method}", request_serializer=lambda request: request.SerializeToString()
        )(iter(requests))
        answers = []
        try:
            answers.extend(stream)
        except grpc.RpcError:
            pass
        return stream.code(), stream.details(), answers

    def append(self, batch):
        return self.call("Append", pb.AppendRequest(header=HEADER), pb.AppendRequest(batch=batch))

    def assert_small(self, request, message, answers, times=2):
        self.assertLessEqual(len(message.encode()), MOST_MESSAGE_BYTES)
        self.assertLessEqual(sum(map(len, answers)), times * request.ByteSize() + (64 << 10))

    def test_long_names(self):
        checked = 0
        for method, request in REQUESTS.items():
            for path in paths_to_strings(request.DESCRIPTOR):
                if method == "Append" and path[0].name != "header":
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

    def test_long_names_in_a_batch(self):
        for name, batch in {
            "block": pb.AppendBatch(entries=[pb.AppendEntry(sequence=pb.SequenceRef(id="x" * LONG), block=b"")] * 3),
            "seal": pb.AppendBatch(
                entries=[pb.AppendEntry(sequence=pb.SequenceRef(id="x" * LONG), seal=pb.Seal())] * 3
            ),
        }.items():
            with self.subTest(name):
                code, message, answers = self.append(batch)
                self.assertIs(code, grpc.StatusCode.OK, message[:200])
                self.assert_small(batch, message, answers)
                acks = pb.AppendResponse.FromString(answers[0]).acks
                self.assertEqual(len(acks), len(batch.entries))
                for ack in acks:
                    self.assertNotEqual(ack.code, 0)
                    self.assertLessEqual(len(ack.message), MOST_MESSAGE_BYTES)
                    self.assertNotEqual(ack.message, "")

    def test_many_small_entries(self):
        for entry in (
            pb.AppendEntry(),
            pb.AppendEntry(sequence=SEQUENCE, block=b""),
            pb.AppendEntry(sequence=SEQUENCE, seal=pb.Seal(length=1 << 30)),
        ):
            batch = pb.AppendBatch(entries=[entry] * (1 << 16))
            code, message, answers = self.append(batch)
            self.assertIs(code, grpc.StatusCode.OK, message)
            self.assert_small(batch, message, answers, times=4)
            acks = pb.AppendResponse.FromString(answers[0]).acks
            self.assertEqual(len(acks), 1 << 16)
            self.assertNotEqual(acks[0].message, "")
            for ack in acks:
                self.assertEqual(ack.code, grpc.StatusCode.INVALID_ARGUMENT.value[0])

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


if __name__ == "__main__":
    unittest.main()
