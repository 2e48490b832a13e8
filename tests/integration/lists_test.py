"""The steps of a run, and runs that the server sorts, filters and pages."""

import dataclasses
import tempfile
import time
import unittest

import grpc
import sis
from server.testing.until import until
from sis.v1 import ratio_service_pb2 as pb
from sis.v1 import ratio_service_pb2_grpc
from tests.integration.live_server import ServersTest
from tests.page.training_load import TrainingLoad

# More than have claims.
DRAWS = 70


class ListsTest(ServersTest):
    def start(self, *flags):
        server = self.serve(*flags)
        channel = self.enterContext(grpc.insecure_channel(server.address))
        return server, self.connect(server), ratio_service_pb2_grpc.RatioServiceStub(channel)

    def test_steps_come_page_by_page_and_are_what_was_answered(self):
        _, client, stub = self.start()
        load = TrainingLoad(client, "run-1")
        self.assertEqual(client.list_steps(load.run), {})
        answered, last_time = [], time.time() - 1
        for draw in range(DRAWS):
            answered.append(load.step(draw, prefix_curve=()).totals)
        steps = client.list_steps(load.run)
        self.assertEqual(list(steps), list(range(DRAWS)))
        for draw, step in steps.items():
            self.assertEqual(step.totals, answered[draw])
            self.assertEqual(step.missing, {sis.MissingReason.NEVER_ARRIVED: 2})
            self.assertEqual(step.sequences, 13)
            self.assertEqual(set(step.corrections), {"plain", "clipped", "applied"})
            self.assertEqual(step.corrections["plain"].positions, step.totals.scored)
            self.assertIsNone(step.distributions)
            self.assertLess(last_time, step.begun_at)
            self.assertLessEqual(step.begun_at, step.ended_at)
            last_time = step.ended_at
        self.assertLess(last_time, time.time() + 1)
        whole = client.list_steps(load.run, draws=[DRAWS - 1])[DRAWS - 1]
        self.assertEqual(dataclasses.replace(whole, distributions=None), steps[DRAWS - 1])
        self.assertEqual(sum(whole.distributions.log_envelope.counts), whole.totals.scored)

        def page(**fields):
            answer = stub.ListSteps(pb.ListStepsRequest(run=load.run.to_proto(), **fields))
            return [kept.draw for kept in answer.steps], answer.more

        self.assertEqual(page(limit=DRAWS), (list(range(DRAWS)), False))
        self.assertEqual(page(after=2, limit=3), ([3, 4, 5], True))
        self.assertEqual(page(after=DRAWS - 3), ([DRAWS - 2, DRAWS - 1], False))
        self.assertEqual(page(after=DRAWS, limit=2), ([0, 1], True), "that draw is not kept")
        with self.assertRaises(grpc.RpcError) as refused:
            page(limit=1001)
        self.assertEqual(refused.exception.code(), grpc.StatusCode.INVALID_ARGUMENT)
        # A draw without claims is counted from zero.
        load.step(0, prefix_curve=())
        self.assertEqual(list(client.list_steps(load.run, after=DRAWS - 1)), [0])
        # A new incarnation has no steps.
        run = client.create_run("run-1", seed=7, vocabulary_size=60, top_k=8, incarnation=2)
        self.assertEqual(client.list_steps(run), {})
        with self.assertRaises(sis.FailedPrecondition):
            client.list_steps(load.run)
        with self.assertRaises(sis.NotFound):
            client.list_steps(sis.Run("nowhere", 1, run.config))
        with self.assertRaisesRegex(ValueError, "draws: must not be given together"):
            client.list_steps(run, draws=[1], after=1)

    def test_a_killed_server_has_lost_no_more_than_the_last_seconds(self):
        """With RocksDB: what was stored before is there again, and goes on."""
        with tempfile.TemporaryDirectory() as folder:
            store = f"--store=rocksdb:{folder}/db"
            server, client, _ = self.start(store)
            load = TrainingLoad(client, "run-1")

            def times_stored():
                return server.metrics().get('sis_store_operations_total{operation="put_steps",result="OK"}', 0)

            for draw in range(10):
                stored = times_stored()
                load.step(draw)
            # So the next begins seconds from now, after the next draw.
            until(times_stored, lambda times: times > stored)
            stored = times_stored()
            load.step(10)
            before = client.list_steps(load.run)
            whole = client.list_steps(load.run, draws=[10])[10]
            until(times_stored, lambda times: times > stored)
            load.step(11)  # which may be lost
            server.kill()

            server, client, _ = self.start(store)
            self.assertNotIn("damaged", server.said["store"])
            after = client.list_steps(load.run)
            self.assertEqual([*after][: len(before)], [*before])
            self.assertEqual({draw: after[draw] for draw in before}, before)
            self.assertLessEqual(len(after), len(before) + 1)
            self.assertEqual(client.list_steps(load.run, draws=[10])[10], whole)
            # It goes on, and a clean end loses nothing.
            load = TrainingLoad(client, "run-1")
            load.step(100)
            went_on = client.list_steps(load.run)
            self.assertEqual([*went_on], [*after, 100])
            server.close()
            server, client, _ = self.start(store)
            self.assertEqual(client.list_steps(load.run), went_on)
            client.delete_run("run-1")
            server.close()
            _, client, _ = self.start(store)
            self.assertEqual(client.list_runs(), [])

    def test_runs_come_by_id_with_their_last_totals(self):
        server, client, stub = self.start("--metric_runs=2")
        loads = {name: TrainingLoad(client, name) for name in ("run-a", "run-b", "run-c")}
        client.create_run("run-new", seed=1, vocabulary_size=10, top_k=2, model="Other")
        for draw in range(4):
            loads["run-b"].step(draw, shift=1)
            loads["run-c"].step(draw)
        loads["run-a"].step(0)
        loads["run-c"].step(4)

        of = {
            name: next(iter(client.list_steps(load.run, draws=[client.get_run(name).last_draw]).values())).totals
            for name, load in loads.items()
        }
        listed = stub.ListRuns(pb.ListRunsRequest()).runs
        self.assertEqual([run.run_id for run in listed], ["run-a", "run-b", "run-c", "run-new"])
        self.assertEqual([run.verdict == pb.VERDICT_BROKEN for run in listed], [False, True, False, False])
        for run in listed:
            self.assertEqual(run.HasField("last_totals"), run.run_id in of)
            if run.run_id in of:
                self.assertEqual(run.last_totals.d, of[run.run_id].d)
                self.assertLess(abs(run.last_evaluated_at - time.time()), 600)
            status = client.get_run(run.run_id)
            rules = [finding.rule for finding in status.findings]
            self.assertEqual((run.verdict, [finding.rule for finding in run.findings]), (status.verdict, rules))
            worst = max([sis.Verdict.HEALTHY, *(finding.verdict for finding in status.findings)])
            self.assertEqual(status.verdict, worst)
            verdict = server.metrics().get(f'sis_run_verdict{{run="{run.run_id}"}}')
            self.assertEqual(verdict, None if run.shares_metrics else status.verdict - sis.Verdict.HEALTHY)
            # The newest have metrics of their own.
            self.assertEqual(run.shares_metrics, run.run_id in ("run-a", "run-b"), run.run_id)
            has_metrics = any(f'run="{run.run_id}"' in series for series in server.metrics())
            self.assertEqual(has_metrics, not run.shares_metrics)


if __name__ == "__main__":
    unittest.main()
