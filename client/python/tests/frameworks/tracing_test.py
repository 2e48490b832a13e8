"""The client's spans by OpenTelemetry's SDK."""

import asyncio
import string
import unittest

import numpy as np
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider, sampling
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from server.testing.live_server import LiveServer
from server.testing.random_records import drawn, log_softmax

import sis

VOCABULARY, K = 16, 4
# Enough sequences for both replicas to have some.
LENGTHS = {name: 1 + 7 * i % 50 for i, name in enumerate(string.ascii_lowercase)}
SAMPLING = sis.Sampling("raw")


def blocks():
    generator = np.random.default_rng(1)
    for name, length in LENGTHS.items():
        record = drawn(log_softmax(generator.normal(size=(length, VOCABULARY))), generator, K)
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
        self.servers = [LiveServer() for _ in range(2)]
        for server in self.servers:
            self.addCleanup(server.close)
        self.exporter.clear()

    def open_run(self, address):
        client = sis.Client(address, timeout=60)
        self.addCleanup(client.close)
        return client, client.create_run("r", seed=1, vocabulary_size=VOCABULARY, top_k=K)

    def step(self, client, run):
        """A step of training: what is appended, fetched and evaluated of it."""
        sis.append_many(client, run, blocks(), sampling=SAMPLING)
        records = client.fetch_top_k(run, list(LENGTHS))
        values = np.zeros((len(records), K), np.float32) - 3
        return client.evaluate(
            run, records, draw=1, log_probs=values, sampled_log_probs=values[:, 0], outputs=["accepted"]
        )

    def test_each_call_of_a_step_has_a_span(self):
        for addresses in (self.servers[0].address, [server.address for server in self.servers]):
            with self.subTest(addresses):
                self.exporter.clear()
                self.step(*self.open_run(addresses))
                spans = {span.name: span for span in self.exporter.get_finished_spans()}
                self.assertEqual(set(spans), {"sis.append_many", "sis.fetch_top_k", "sis.evaluate"})
                for span in spans.values():
                    self.assertIs(span.kind, trace.SpanKind.CLIENT)
                    self.assertEqual(span.attributes["sis.run"], "r")
                self.assertEqual(spans["sis.evaluate"].attributes["sis.positions"], sum(LENGTHS.values()))

    def test_calls_by_asyncio_belong_to_the_span_around_them(self):
        async def run_it():
            client, run = self.open_run(self.servers[0].address)
            with self.tracer.start_as_current_span("step") as step:
                await asyncio.to_thread(sis.append_many, client, run, blocks(), sampling=SAMPLING)
                await asyncio.to_thread(client.fetch_top_k, run, ["a"])
            return step.get_span_context()

        step = asyncio.run(run_it())
        spans = [span for span in self.exporter.get_finished_spans() if span.name.startswith("sis.")]
        self.assertEqual({span.name for span in spans}, {"sis.append_many", "sis.fetch_top_k"})
        self.assertEqual({span.parent.span_id for span in spans}, {step.span_id})

    def test_each_flush_of_a_stream_has_a_span(self):
        client, run = self.open_run(self.servers[0].address)
        with self.tracer.start_as_current_span("rollout") as rollout:
            with client.append(run, sampling=SAMPLING) as stream:
                for block in blocks():
                    stream.append_many([block])
                    stream.flush()
        flushes = [span for span in self.exporter.get_finished_spans() if span.name == "sis.flush"]
        self.assertEqual(len(flushes), len(LENGTHS) + 1)  # and as it closes
        self.assertEqual({span.parent.span_id for span in flushes}, {rollout.get_span_context().span_id})

    def test_what_failed_is_an_error(self):
        client, run = self.open_run(self.servers[0].address)
        with self.assertRaises(sis.InvalidArgument):
            client.evaluate(
                run, [sis.Slice("a", 0, 1, attempt=0)], draw=1, top_k=K + 1,
                log_probs=np.zeros((1, K)), sampled_log_probs=np.zeros(1),
            )  # fmt: skip
        (span,) = self.exporter.get_finished_spans()
        self.assertIs(span.status.status_code, trace.StatusCode.ERROR)


if __name__ == "__main__":
    unittest.main()
