"""Traces by OpenTelemetry's SDK: a server's spans, read from its file, are children of those of the
client."""

import asyncio
import base64
import collections
import contextlib
import pathlib
import string
import tempfile
import time
import unittest

import numpy as np
from google.protobuf import json_format
from opentelemetry import trace
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import TracerProvider, sampling
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from server.testing.live_server import LiveServer

import sis
import sis.aio

VOCABULARY, K = 16, 4
# So many that each of two replicas has some.
LENGTHS = {name: 1 + 7 * i % 50 for i, name in enumerate(string.ascii_lowercase)}
SERVICE = "sis.v1.RatioService"
SAMPLING = sis.Sampling("raw")

ServerSpan = collections.namedtuple("ServerSpan", "method trace_id parent_id attributes start end")


def hexadecimal(field):
    """OTLP/JSON has ids in hexadecimal, which protobuf's own JSON takes for base64."""
    return base64.b64encode(field).decode()


def spans_in(path):
    found = []
    for line in path.read_text().splitlines():
        request = json_format.Parse(line, ExportTraceServiceRequest())
        for resource in request.resource_spans:
            (scope,) = resource.scope_spans
            for span in scope.spans:
                assert span.kind == span.SPAN_KIND_SERVER, span
                assert len(hexadecimal(span.span_id)) == 16, span
                attributes = {
                    each.key: getattr(each.value, each.value.WhichOneof("value")) for each in span.attributes
                }
                assert attributes["rpc.system"] == "grpc" and attributes["rpc.service"] == SERVICE, attributes
                assert span.name == f"{SERVICE}/{attributes['rpc.method']}", span
                found.append(
                    ServerSpan(
                        attributes["rpc.method"],
                        hexadecimal(span.trace_id),
                        hexadecimal(span.parent_span_id),
                        attributes,
                        span.start_time_unix_nano,
                        span.end_time_unix_nano,
                    )
                )
    return found


def log_softmax(logits):
    return (logits - np.logaddexp.reduce(logits, axis=1, keepdims=True)).astype(np.float32)


def blocks():
    generator = np.random.default_rng(1)
    for name, length in LENGTHS.items():
        values = log_softmax(generator.normal(size=(length, VOCABULARY)))
        sampled = values.argmax(axis=1)
        ids = np.broadcast_to(np.arange(VOCABULARY), values.shape)
        record = sis.canonical(ids, values, sampled, values.max(axis=1), K)
        yield sis.Block(name, first_position=0, policy_version=1, **record._asdict())


class TracingTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.exporter = InMemorySpanExporter()
        provider = TracerProvider(sampler=sampling.ParentBased(sampling.ALWAYS_ON))
        provider.add_span_processor(SimpleSpanProcessor(cls.exporter))
        trace.set_tracer_provider(provider)  # once in a process
        cls.tracer = trace.get_tracer("test")

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.files = [pathlib.Path(folder.name, name) for name in ("first", "second")]
        self.servers = []
        for file in self.files:
            self.servers.append(LiveServer(f"--trace_file={file}"))
            self.addCleanup(self.servers[-1].close)
        self.exporter.clear()

    def server_spans(self):
        """All that there are, once there are no more calls."""
        for server in self.servers:
            server.close()
        return [span for file in self.files for span in spans_in(file)]

    def open_run(self, address):
        client = sis.Client(address, timeout=60)
        self.addCleanup(client.close)
        return client, client.create_run("r", seed=1, vocabulary_size=VOCABULARY, top_k=K)

    def step(self, client, run):
        """A step of training: what is appended, fetched and evaluated of it."""
        client.append_many(run, blocks(), sampling=SAMPLING)
        records = client.fetch_top_k(run, list(LENGTHS))
        values = np.zeros((len(records), K), np.float32) - 3
        return client.evaluate(
            run, records, draw=1, log_probs=values, sampled_log_probs=values[:, 0], outputs=["accepted"]
        )

    def check_step(self, servers, client_spans):
        """Every server's span is a child of the client's that it belongs to, and says what it was
        about."""
        by_name = {span.name: span for span in client_spans}
        self.assertEqual(set(by_name), {"sis.append_many", "sis.fetch_top_k", "sis.evaluate"})
        parents = {"Append": "sis.append_many", "FetchTopK": "sis.fetch_top_k", "Evaluate": "sis.evaluate"}
        spans = [span for span in self.server_spans() if span.method != "CreateRun"]
        sizes = collections.defaultdict(lambda: [0, 0])
        for span in spans:
            parent = by_name[parents[span.method]]
            self.assertEqual(span.parent_id, trace.format_span_id(parent.context.span_id))
            self.assertEqual(span.trace_id, trace.format_trace_id(parent.context.trace_id))
            self.assertIs(parent.kind, trace.SpanKind.CLIENT)
            self.assertEqual(parent.attributes["sis.run"], "r")
            self.assertEqual(span.attributes["sis.run"], "r")
            self.assertEqual(span.attributes["rpc.grpc.status_code"], 0)
            self.assertLessEqual(span.start, span.end)
            # One clock here.
            self.assertLessEqual(parent.start_time, span.start)
            self.assertLessEqual(span.end, time.time_ns())
            sizes[span.method][0] += span.attributes["sis.sequences"]
            sizes[span.method][1] += span.attributes["sis.positions"]
        total = [len(LENGTHS), sum(LENGTHS.values())]
        self.assertEqual(sizes, {"Append": total, "FetchTopK": total, "Evaluate": total})
        counts = collections.Counter(span.method for span in spans)
        self.assertEqual(counts, {"Append": servers, "FetchTopK": servers, "Evaluate": servers})
        self.assertEqual(by_name["sis.evaluate"].attributes["sis.positions"], total[1])

    def test_a_step(self):
        client, run = self.open_run(self.servers[0].address)
        self.step(client, run)
        spans = self.exporter.get_finished_spans()
        self.assertEqual(len({span.context.trace_id for span in spans}), 3)  # nothing is around them
        self.check_step(1, spans)

    def test_a_step_over_replicas(self):
        client, run = self.open_run([server.address for server in self.servers])
        self.step(client, run)
        self.check_step(2, self.exporter.get_finished_spans())

    def test_a_step_by_asyncio(self):
        async def run_it():
            async with sis.aio.Client(self.servers[0].address, timeout=60) as client:
                run = await client.create_run("r", seed=1, vocabulary_size=VOCABULARY, top_k=K)
                with self.tracer.start_as_current_span("step") as step:
                    await client.append_many(run, blocks(), sampling=SAMPLING)
                    await client.fetch_top_k(run, ["a"])
                return step.get_span_context()

        step = asyncio.run(run_it())
        spans = [span for span in self.exporter.get_finished_spans() if span.name.startswith("sis.")]
        self.assertEqual({span.name for span in spans}, {"sis.append_many", "sis.fetch_top_k"})
        self.assertEqual({span.parent.span_id for span in spans}, {step.span_id})
        self.assertEqual(
            {(span.method, span.parent_id) for span in self.server_spans() if span.method != "CreateRun"},
            {
                ("Append", trace.format_span_id(spans[0].context.span_id)),
                ("FetchTopK", trace.format_span_id(spans[1].context.span_id)),
            },
        )

    def test_a_stream_is_part_of_what_it_was_opened_in(self):
        client, run = self.open_run(self.servers[0].address)
        with self.tracer.start_as_current_span("rollout") as rollout, contextlib.ExitStack() as streams:
            stream = streams.enter_context(client.append(run, sampling=SAMPLING))
            for block in blocks():
                stream.append_many([block])
                stream.flush()
        flushes = [span for span in self.exporter.get_finished_spans() if span.name == "sis.flush"]
        self.assertEqual(len(flushes), len(LENGTHS) + 1)  # and as it closes
        self.assertEqual({span.parent.span_id for span in flushes}, {rollout.get_span_context().span_id})
        appended = [span for span in self.server_spans() if span.method == "Append"]
        parent = trace.format_span_id(rollout.get_span_context().span_id)
        self.assertEqual([span.parent_id for span in appended], [parent] * len(LENGTHS))
        positions = [span.attributes["sis.positions"] for span in appended]
        self.assertEqual(positions, list(LENGTHS.values()))

    def test_each_append_many_has_its_own_batches(self):
        client, run = self.open_run(self.servers[0].address)
        for block in blocks():
            client.append_many(run, [block], sampling=SAMPLING)
        calls = [trace.format_span_id(span.context.span_id) for span in self.exporter.get_finished_spans()]
        self.assertEqual(len(calls), len(LENGTHS))
        appended = [span.parent_id for span in self.server_spans() if span.method == "Append"]
        self.assertEqual(appended, calls)

    def test_large_evaluates_have_a_span_for_each_request(self):
        client, run = self.open_run(self.servers[0].address)
        client._servers.micro_batch_bytes = 400
        self.step(client, run)
        (evaluate,) = [span for span in self.exporter.get_finished_spans() if span.name == "sis.evaluate"]
        answered = [span for span in self.server_spans() if span.method == "Evaluate"]
        self.assertGreater(len(answered), 2)
        parent = trace.format_span_id(evaluate.context.span_id)
        self.assertEqual({span.parent_id for span in answered}, {parent})
        self.assertEqual(sum(span.attributes["sis.positions"] for span in answered), sum(LENGTHS.values()))

    def test_what_failed(self):
        client, run = self.open_run(self.servers[0].address)
        with self.assertRaises(sis.InvalidArgument):
            client.evaluate(
                run, [sis.Slice("a", 0, 1, attempt=0)], draw=1, top_k=K + 1,
                log_probs=np.zeros((1, K)), sampled_log_probs=np.zeros(1),
            )  # fmt: skip
        (span,) = self.exporter.get_finished_spans()
        self.assertIs(span.status.status_code, trace.StatusCode.ERROR)
        codes = [span.attributes["rpc.grpc.status_code"] for span in self.server_spans()]
        self.assertEqual(codes, [3])

    def test_only_what_is_sampled_is_written(self):
        client, run = self.open_run(self.servers[0].address)
        unsampled = trace.SpanContext(
            trace_id=1, span_id=2, is_remote=False, trace_flags=trace.TraceFlags(0)
        )
        with trace.use_span(trace.NonRecordingSpan(unsampled)):
            self.step(client, run)
        self.assertEqual(self.exporter.get_finished_spans(), ())
        self.assertEqual(self.servers[0].metrics()["sis_dropped_spans_total"], 0)
        self.assertEqual(self.server_spans(), [])


if __name__ == "__main__":
    unittest.main()
