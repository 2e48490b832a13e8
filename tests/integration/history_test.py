"""All draws of a run, thinned as they age, and runs that the server sorts, filters and pages."""

import json
import tempfile
import time
import unittest
import urllib.error
import urllib.parse
import urllib.request

import grpc
import sis
from server.testing.live_server import LiveServer
from server.testing.until import until
from sis.v1 import ratio_service_pb2 as pb
from sis.v1 import ratio_service_pb2_grpc
from tests.page.training_load import TrainingLoad

KEPT = 8
# Beyond the 256 stretches and those that are kept, so that some are merged.
DRAWS = 300


class HistoryTest(unittest.TestCase):
    def start(self, *flags):
        server = LiveServer(*flags)
        self.addCleanup(server.close)
        client = sis.Client(server.address)
        self.addCleanup(client.close)
        channel = grpc.insecure_channel(server.address)
        self.addCleanup(channel.close)
        return server, client, ratio_service_pb2_grpc.RatioServiceStub(channel)

    def test_all_draws_are_there_and_add_up_to_what_was_answered(self):
        _, client, _ = self.start(f"--steps_kept={KEPT}")
        load = TrainingLoad(client, "run-1")
        self.assertEqual(client.get_history(load.run), [])
        answered, begun = [], time.time()
        for draw in range(DRAWS):
            answered.append(load.step(draw, prefix_curve=()).totals)
        history = client.get_history(load.run)
        self.assertEqual(len(history), 256 + KEPT)
        self.assertEqual(list(client.list_steps(load.run)), list(range(DRAWS - KEPT, DRAWS)))
        next_draw, last_time = 0, begun - 1
        for stretch in history:
            self.assertEqual(stretch.first_draw, next_draw)
            next_draw = stretch.last_draw + 1
            self.assertEqual(stretch.draws, next_draw - stretch.first_draw)
            totals = sum(answered[stretch.first_draw : next_draw], sis.Totals())
            for name, value in vars(totals).items():
                self.assertEqual(getattr(stretch.totals, name), value, name)
            self.assertEqual(stretch.missing, {sis.MissingReason.NEVER_ARRIVED: 2 * stretch.draws})
            self.assertEqual(stretch.sequences, 13 * stretch.draws)
            self.assertEqual(set(stretch.corrections), {"plain", "clipped", "applied"})
            self.assertEqual(stretch.corrections["plain"].positions, totals.scored)
            self.assertLess(last_time, stretch.begun_at)
            self.assertLessEqual(stretch.begun_at, stretch.ended_at)
            last_time = stretch.ended_at
        self.assertEqual(next_draw, DRAWS)
        self.assertLess(last_time, time.time() + 1)
        self.assertGreater(history[0].draws, 1)
        self.assertEqual([stretch.draws for stretch in history[-KEPT:]], [1] * KEPT)
        # A new incarnation begins anew.
        run = client.create_run("run-1", seed=7, vocabulary_size=60, top_k=8, incarnation=2)
        self.assertEqual(client.get_history(run), [])
        with self.assertRaises(sis.FailedPrecondition):
            client.get_history(load.run)
        with self.assertRaises(sis.NotFound):
            client.get_history(sis.Run("nowhere", 1, run.config))

    def test_a_killed_server_has_lost_no_more_than_the_last_seconds(self):
        """With RocksDB: what was stored before is there again, and goes on."""
        with tempfile.TemporaryDirectory() as folder:
            store = f"--store=rocksdb:{folder}/db"
            server, client, _ = self.start(store, f"--steps_kept={KEPT}")
            load = TrainingLoad(client, "run-1")

            def times_stored():
                return server.metrics().get('sis_store_operations_total{operation="put_history",result="OK"}', 0)

            for draw in range(3 * KEPT):
                stored = times_stored()
                load.step(draw, prefix_curve=())
            # So the next begins seconds from now, after the next draw.
            until(times_stored, lambda times: times > stored)
            load.step(3 * KEPT, prefix_curve=())
            before, stored = client.get_history(load.run), times_stored()
            until(times_stored, lambda times: times > stored)
            load.step(3 * KEPT + 1, prefix_curve=())  # which may be lost
            server.kill()

            server, client, _ = self.start(store, f"--steps_kept={KEPT}")
            self.assertNotIn("damaged", server.said["store"])
            after = client.get_history(load.run)
            self.assertEqual(after[: len(before)], before)
            self.assertLessEqual(len(after), len(before) + 1)
            self.assertEqual(client.list_steps(load.run), {})
            with urllib.request.urlopen(
                f"http://{server.admin_address}/api/GetHistory?run_id=run-1", timeout=30
            ) as answer:
                self.assertEqual(len(json.load(answer)["stretches"]), len(after))
            # It goes on, and a clean end loses nothing.
            load = TrainingLoad(client, "run-1")
            load.step(100)
            went_on = client.get_history(load.run)
            self.assertEqual(went_on[: len(after)], after)
            self.assertEqual(went_on[-1].last_draw, 100)
            server.close()
            server, client, _ = self.start(store)
            self.assertEqual(client.get_history(load.run), went_on)
            client.delete_run("run-1")
            server.close()
            _, client, _ = self.start(store)
            self.assertEqual(client.list_runs(), [])

    def test_runs_are_sorted_filtered_and_paged_by_the_server(self):
        server, client, stub = self.start("--metric_runs=2")
        loads = {name: TrainingLoad(client, name) for name in ("run-a", "run-b", "run-c")}
        client.create_run("run-new", seed=1, vocabulary_size=10, top_k=2, model="Other")
        for draw in range(4):
            loads["run-b"].step(draw, shift=1)
            loads["run-c"].step(draw)
        loads["run-a"].step(0)
        loads["run-c"].step(4)

        def listed(**fields):
            return [run.run_id for run in stub.ListRuns(pb.ListRunsRequest(**fields)).runs]

        self.assertEqual(listed(), ["run-a", "run-b", "run-c", "run-new"])
        self.assertEqual(listed(order=pb.WORST_FIRST)[0], "run-b")
        self.assertEqual(listed(order=pb.LATEST_FIRST), ["run-c", "run-a", "run-b", "run-new"])
        of = {
            name: client.get_step(load.run, client.get_run(name).last_draw).totals
            for name, load in loads.items()
        }
        for order, value in (
            (pb.LOWEST_ACCEPT_RATE_FIRST, lambda totals: totals.accept_rate),
            (pb.LARGEST_D_FIRST, lambda totals: -totals.mean_d),
            (pb.MOST_MISSING_FIRST, lambda totals: -totals.missing),
        ):
            self.assertEqual(listed(order=order), [*sorted(of, key=lambda name: (value(of[name]), name)), "run-new"])
        self.assertEqual(listed(order=pb.MOST_BYTES_FIRST)[-1], "run-new")
        self.assertEqual(listed(containing="N-B"), ["run-b"])
        self.assertEqual(listed(containing="other"), ["run-new"])
        self.assertEqual(listed(limit=2, offset=1), ["run-b", "run-c"])
        self.assertEqual(listed(limit=2, offset=4), [])
        answer = stub.ListRuns(pb.ListRunsRequest(containing="tiny", limit=1))
        self.assertEqual((answer.all_runs, answer.containing_runs, len(answer.runs)), (4, 3, 1))
        self.assertEqual(answer.broken, 1)
        for run in stub.ListRuns(pb.ListRunsRequest()).runs:
            self.assertEqual(run.HasField("last_totals"), run.run_id in of)
            if run.run_id in of:
                self.assertEqual(run.last_totals.d, of[run.run_id].d)
                self.assertLess(abs(run.last_evaluated_at - time.time()), 600)
            # The newest have metrics of their own.
            self.assertEqual(run.shares_metrics, run.run_id in ("run-a", "run-b"), run.run_id)
            has_metrics = any(f'run="{run.run_id}"' in series for series in server.metrics())
            self.assertEqual(has_metrics, not run.shares_metrics)
        for wrong in ({"limit": 1001}, {"order": 7}, {"containing": "x" * 257}):
            with self.assertRaises(grpc.RpcError) as refused:
                stub.ListRuns(pb.ListRunsRequest(**wrong))
            self.assertEqual(refused.exception.code(), grpc.StatusCode.INVALID_ARGUMENT)

        def over_http(method, **fields):
            query = urllib.parse.urlencode(fields)
            with urllib.request.urlopen(f"http://{server.admin_address}/api/{method}?{query}", timeout=30) as answer:
                return json.load(answer)

        answer = over_http("ListRuns", containing="RUN-", order="LARGEST_D_FIRST", limit=1, offset=1)
        self.assertEqual(len(answer["runs"]), 1)
        self.assertEqual((answer["allRuns"], answer["containingRuns"]), (4, 4))
        self.assertEqual([answer["runs"][0]["runId"]], listed(order=pb.LARGEST_D_FIRST)[1:2])
        with self.assertRaises(urllib.error.HTTPError) as refused:
            over_http("ListRuns", order="SIDEWAYS")
        self.assertEqual(refused.exception.code, 400)
        refused.exception.close()
        self.assertEqual(len(over_http("GetHistory", run_id="run-c")["stretches"]), 5)


if __name__ == "__main__":
    unittest.main()
