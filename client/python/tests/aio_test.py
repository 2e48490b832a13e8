import asyncio
import inspect
import time
import unittest

import fake_service
import numpy as np

import sis
import sis.aio
from sis.engines import Columns
from sis.engines._adapter import Adapter

K = 2
RECORD = {
    "sampled_ids": [1, 2],
    "sampled_log_probs": [-1.0, -2.0],
    "top_k_ids": [[1, 2], [1, 2]],
    "top_k_log_probs": [[-1.0, -2.0], [-1.0, -2.0]],
}


class Engine(Adapter):
    """An adapter of outputs that are numbers of tokens."""

    sampling = sis.Sampling("processed")
    cumulative = False

    def length(self, output):
        return output

    def ended(self, output):
        return "finished"

    def columns(self, pieces):
        rows = sum(piece.stop - piece.start for piece in pieces)
        return Columns(
            np.zeros((rows, 1), int), np.full((rows, 1), -1.0), np.zeros(rows, int), np.full(rows, -1.0), None
        )  # fmt: skip


class AioTest(unittest.IsolatedAsyncioTestCase):
    def setUp(self):
        self.service = fake_service.FakeService()
        server, self.address = fake_service.start(self.service)
        self.addCleanup(server.stop, None)

    def test_it_has_every_method_of_the_client(self):
        for blocking, asynchronous in (
            (sis.Client, sis.aio.Client),
            (sis.AppendStream, sis.aio.AppendStream),
            (sis.engines.Recorder, sis.aio.Recorder),
        ):
            names = {name for name, _ in inspect.getmembers(blocking) if not name.startswith("_")}
            lacking = names - {name for name, _ in inspect.getmembers(asynchronous)}
            # Methods that only other parts of the package call.
            self.assertEqual(lacking - {"put", "flush_untraced", "unflushed", "must_wait"}, set())

    async def test_a_record_goes_there_and_back(self):
        async with sis.aio.Client(self.address, timeout=20) as client:
            run = await client.create_run("r", seed=1, vocabulary_size=5, top_k=K)
            async with await client.append(run, sampling=sis.Sampling("raw")) as stream:
                await stream.block("s", first_position=0, policy_version=0, **RECORD)
                self.assertEqual(await stream.flush(), {("s", 0): 2})
                await stream.seal("s", length=2)
            records = await client.fetch_top_k(run, ["s"])
            evaluation = await client.evaluate(
                run, records, draw=1, log_probs=records.log_probs, sampled_log_probs=records.sampled_log_probs
            )
            self.assertEqual(evaluation.accepted.tolist(), [True, False])
            self.assertEqual((await client.list_steps(run, draws=[1]))[1].totals.accepted, 1)
            self.assertEqual((await client.release(run, ["s"])).sequences, 1)
            with self.assertRaises(sis.NotFound):
                await client.get_run("none")

    async def test_the_event_loop_runs_while_the_server_is_slow(self):
        self.service.before_batch = lambda batch: time.sleep(0.5)
        async with sis.aio.Client(self.address, timeout=20) as client:
            run = await client.create_run("r", seed=1, vocabulary_size=5, top_k=K)
            async with await client.append(run, sampling=sis.Sampling("raw")) as stream:
                await stream.block("s", first_position=0, policy_version=0, **RECORD)
                flushing = asyncio.ensure_future(stream.flush())
                turns = 0
                while not flushing.done():
                    await asyncio.sleep(0.01)
                    turns += 1
            self.assertGreater(turns, 3)

    async def test_an_exception_leaves_the_stream_unflushed(self):
        async with sis.aio.Client(self.address, timeout=20) as client:
            run = await client.create_run("r", seed=1, vocabulary_size=5, top_k=K)
            with self.assertRaises(KeyError):
                async with await client.append(run, sampling=sis.Sampling("raw")) as stream:
                    await stream.block("s", first_position=0, policy_version=0, **RECORD)
                    raise KeyError
            self.assertEqual(self.service.sequences, {})

    async def test_a_recorder(self):
        async with sis.aio.Client(self.address, timeout=20) as client:
            run = await client.create_run("r", seed=1, vocabulary_size=5, top_k=K)
            async with sis.aio.Recorder(client, run, Engine(), policy_version=3) as recorder:
                await recorder.add("s", 4)
                self.assertEqual(await recorder.flush(), {("s", 0): 4})
                await recorder.add_many(iter([("u", 1), ("t", 2)]))
            self.assertEqual(len(self.service.sequences["r", "t", 0].rows), 2)


if __name__ == "__main__":
    unittest.main()
