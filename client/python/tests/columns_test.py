"""Columns, by the client and the real server: what was appended is what is fetched."""

import asyncio
import signal
import tempfile
import unittest
import unittest.mock

import numpy as np

import sis
import sis.aio
from sis.servers.single_server import SingleServer
from server.testing.live_server import LiveServer, two_replicas

SAMPLING = sis.Sampling("raw")
VOCABULARY = 32
TOP_K = 4
COLUMNS = (sis.Column("experts", 6), sis.Column("teacher", 4, per_slot=True), sis.Column("mask", 1))


def record(rows, seed):
    logits = np.random.default_rng(seed).normal(size=(rows, VOCABULARY))
    values = (logits - np.logaddexp.reduce(logits, axis=1, keepdims=True)).astype(np.float32)
    ids = np.broadcast_to(np.arange(VOCABULARY), values.shape)
    return sis.canonical(ids, values, values.argmax(axis=1), values.max(axis=1), TOP_K)


def values_of(rows, seed):
    random = np.random.default_rng(seed)
    return {
        "experts": random.integers(0, 128, (rows, 3), np.int16),
        "teacher": random.normal(size=(rows, TOP_K)).astype(np.float32),
        "mask": random.integers(0, 2, rows).astype(bool),
    }


def raw(name, values):
    column = next(column for column in COLUMNS if column.name == name)
    shape = [len(values), *([TOP_K] if column.per_slot else []), column.bytes]
    return np.ascontiguousarray(values).view(np.uint8).reshape(shape)


class ColumnsTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = LiveServer(shared_memory_bytes=64 << 20)
        cls.addClassCleanup(cls.server.close)

    def setUp(self):
        self.client = sis.Client(self.server.address, timeout=30)
        self.addCleanup(self.client.close)
        self.run_ = self.create(self.client)

    def create(self, client, suffix="", **settings):
        name = self.id().split(".")[-1] + suffix
        given = {"seed": 1, "vocabulary_size": VOCABULARY, "top_k": TOP_K, "columns": COLUMNS, **settings}
        return client.create_run(name, **given)

    def expect(self, records, expected, first=0):
        """expected: by name values from position `first` on, or None."""
        for name, values in expected.items():
            total = len(records)
            present = np.zeros(total, bool)
            if values is None:
                values = np.zeros(0)
            else:
                present[first : first + len(values)] = True
                np.testing.assert_array_equal(
                    records.columns[name][first : first + len(values)], raw(name, values), name
                )
            np.testing.assert_array_equal(records.column_presence[name], present, name)
            self.assertFalse(records.columns[name][~present].any(), name)

    def test_with_the_block_or_later(self):
        values = values_of(20, 1)
        with self.client.append(self.run_, sampling=SAMPLING) as stream:
            first = {name: array[:12] for name, array in values.items() if name != "experts"}
            stream.block("a", first_position=0, policy_version=0, **record(12, 1)._asdict(), columns=first)
            stream.block("a", first_position=12, policy_version=0, **record(8, 2)._asdict())
            stream.append_column("a", 12, "mask", values["mask"][12:])
            stream.seal("a", length=20)
            self.assertEqual(stream.flush(), {("a", 0): 20})
        names = [column.name for column in COLUMNS]
        records = self.client.fetch_top_k(self.run_, ["a"], columns=names)
        self.expect(records, {"mask": values["mask"], "teacher": values["teacher"][:12], "experts": None})
        np.testing.assert_array_equal(records.columns["teacher"].view(np.float32)[:12, :, 0], values["teacher"][:12])

        # Another client, after the seal; a part of it comes twice.
        other = sis.Client(self.server.address, timeout=30)
        self.addCleanup(other.close)
        with other.append(self.run_, sampling=SAMPLING) as stream:
            stream.append_column("a", 12, "teacher", values["teacher"][12:])
            for _ in range(2):
                stream.append_column("a", 3, "experts", values["experts"][3:])
        slices = [sis.Slice("a", 3, 17), sis.Slice("nothing", 0, 2)]
        records = self.client.fetch_top_k(self.run_, slices, columns=names[::-1], arrays=["sampled_ids"])
        self.assertEqual(list(records.columns), names[::-1])
        self.expect(records, {name: array[3:] for name, array in values.items()})
        self.expect(records.select([0]), {name: array[3:] for name, array in values.items()})
        self.expect(records.select([1]), {name: None for name in names})
        # Nothing of it without being asked for.
        self.assertEqual(self.client.fetch_top_k(self.run_, ["a"]).columns, {})

    def test_in_shared_memory(self):
        values = values_of(70, 3)
        kept = record(70, 3)
        self.client.append_many(
            self.run_, [sis.Block("a", 0, 0, *kept, columns=values), sis.Block("b", 0, 0, *kept)], sampling=SAMPLING
        )
        segment = self.client.lease_segment(1 << 20)
        self.addCleanup(segment.close)
        names = ["teacher", "mask"]
        records = self.client.fetch_top_k(self.run_, ["b", "a"], columns=names, segment=segment)
        for name in names:
            self.assertTrue(segment.holds(records.columns[name]))
        self.expect(records, {name: values[name] for name in names}, first=70)
        np.testing.assert_array_equal(records.ids[70:], kept.top_k_ids)

    def test_refusals_change_nothing(self):
        values = values_of(5, 4)
        block = sis.Block("a", 0, 0, *record(5, 4), columns={"mask": values["mask"]})
        append = lambda *entries: self.client.append_many(self.run_, entries, sampling=SAMPLING)
        append(block)
        for entry, error in [
            (sis.ColumnValues("a", 3, "mask", values["mask"][:3]), "FAILED_PRECONDITION.*position 5 has no record"),
            (sis.ColumnValues("b", 0, "mask", values["mask"]), "FAILED_PRECONDITION.*no record"),
            (sis.ColumnValues("a", 0, "mask", ~values["mask"]), "ALREADY_EXISTS.*position 0 has another value"),
            (block._replace(columns={"mask": ~values["mask"]}), "ALREADY_EXISTS.*position 0 has another value"),
        ]:
            with self.assertRaisesRegex(sis.AppendError, error):
                append(entry)
        for entry, error in [
            (sis.ColumnValues("a", 0, "logits", values["mask"]), "column 'logits' is none of the run's"),
            (sis.ColumnValues("a", 0, "mask", values["mask"][:0]), "empty"),
            (sis.ColumnValues("a", 0, "experts", values["mask"]), r"must be \[5\] of 6 bytes"),
            (block._replace(columns={"teacher": values["teacher"][:4]}), r"must be \[5, 4\] of 4 bytes"),
        ]:
            with self.assertRaisesRegex(ValueError, error):
                append(entry)
        with self.assertRaisesRegex(ValueError, "column 'logits' is none"):
            self.client.fetch_top_k(self.run_, ["a"], columns=["logits"])
        other = sis.Run(self.run_.id, self.run_.incarnation, sis.RunConfig(1, VOCABULARY, TOP_K, columns=(sis.Column("logits", 6),)))
        with self.assertRaisesRegex(sis.NotFound, "has no column 'logits'"):
            self.client.fetch_top_k(other, ["a"], columns=["logits"])
        with self.assertRaisesRegex(sis.AppendError, "NOT_FOUND.*has no column 'logits'"):
            self.client.append_many(other, [sis.ColumnValues("a", 0, "logits", bytes_of(5, 6))], sampling=SAMPLING)
        with self.assertRaisesRegex(sis.AlreadyExists, "columns"):
            self.create(self.client, columns=COLUMNS[:2])
        with self.assertRaisesRegex(sis.InvalidArgument, r"columns\[0\].bytes 0 is not in"):
            self.create(self.client, "-other", columns=[sis.Column("a", 0)])
        self.expect(
            self.client.fetch_top_k(self.run_, ["a"], columns=["mask", "experts"]),
            {"mask": values["mask"], "experts": None},
        )
        self.assertEqual(self.client.get_run(self.run_.id).run.config.columns, COLUMNS)

    def test_a_server_that_knows_none_is_no_place_for_them(self):
        several = sis.Client([server.address for server in two_replicas(self.addCleanup)], timeout=30)
        self.addCleanup(several.close)
        last, get = several._service._servers[-1], SingleServer.GetRun
        for client, is_old in ((self.client, lambda server: True), (several, lambda server: server is last)):

            def old(server, request, is_old=is_old):
                answer = get(server, request)
                if is_old(server):
                    answer.run.config.ClearField("columns")
                return answer

            with unittest.mock.patch.object(SingleServer, "GetRun", old):
                self.create(client, "-none", columns=())
                with self.assertRaisesRegex(sis.Error, "knows no columns: upgrade it first"):
                    self.create(client, "-some")

    def test_they_go_with_their_records(self):
        values = values_of(100, 5)
        charged = lambda: self.client.get_run(self.run_.id).bytes
        block = sis.Block("a", 0, 0, *record(100, 5))
        self.client.append_many(self.run_, [block], sampling=SAMPLING)
        before = charged()
        with self.client.append(self.run_, sampling=SAMPLING) as stream:
            stream.append_column("a", 0, "experts", values["experts"])
            stream.flush()
            self.assertGreaterEqual(charged() - before, 100 * 6)
            stream.truncate("a", length=50)
            stream.flush()
            self.expect(
                self.client.fetch_top_k(self.run_, ["a"], columns=["experts"]), {"experts": values["experts"][:50]}
            )
            again = record(50, 6)
            stream.block("a", first_position=50, policy_version=0, **again._asdict())
        records = self.client.fetch_top_k(self.run_, ["a"], columns=["experts"])
        self.assertEqual(records.column_presence["experts"].tolist(), [True] * 50 + [False] * 50)
        self.client.release(self.run_, ["a"])
        self.assertEqual(charged(), 0)

    def test_a_restart(self):
        with tempfile.TemporaryDirectory() as folder:
            start = lambda: LiveServer(f"--store=rocksdb:{folder}")
            server = start()
            self.addCleanup(lambda: server.close())
            client = sis.Client(server.address, timeout=30)
            run = self.create(client, mass=0.9)
            values = values_of(300, 7)
            some = {"teacher": values["teacher"]}
            client.append_many(
                run, [sis.Block("a", 0, 0, *record(300, 7), columns=some), sis.Seal("a", 300)], sampling=SAMPLING
            )
            client.append_many(run, [sis.ColumnValues("a", 10, "experts", values["experts"][10:])], sampling=SAMPLING)
            client.close()
            server.process.send_signal(signal.SIGKILL)
            server._wait()
            server = start()
            with sis.Client(server.address, timeout=30) as client:
                records = client.fetch_top_k(run, ["a"], columns=["experts", "teacher", "mask"])
            self.expect(records, {"teacher": values["teacher"], "mask": None})
            self.expect(records, {"experts": values["experts"][10:]}, first=10)

    def test_over_replicas(self):
        servers = two_replicas(self.addCleanup)
        client = sis.Client([server.address for server in servers], timeout=30)
        self.addCleanup(client.close)
        run = self.create(client)
        names = [f"sequence-{number}" for number in range(8)]
        values = {name: values_of(9, number) for number, name in enumerate(names)}
        with client.append(run, sampling=SAMPLING) as stream:
            for number, name in enumerate(names):
                some = {"mask": values[name]["mask"]}
                stream.block(
                    name, first_position=0, policy_version=0, **record(9, number)._asdict(), columns=some
                )
                stream.append_column(name, 0, "experts", values[name]["experts"])
        fetch = lambda: client.fetch_top_k(
            run, [sis.Slice(name, 0, 9) for name in names], columns=["experts", "mask"]
        )
        for column in ("experts", "mask"):
            expected = np.concatenate([values[name][column] for name in names])
            self.expect(fetch(), {column: expected})
        servers[0].kill()
        records = fetch()
        there = records.present
        self.assertTrue(0 < there.sum() < len(there))
        for column in ("experts", "mask"):
            np.testing.assert_array_equal(records.column_presence[column], there)
            expected = raw(column, np.concatenate([values[name][column] for name in names]))
            np.testing.assert_array_equal(records.columns[column][there], expected[there])
            self.assertFalse(records.columns[column][~there].any())

    def test_in_coroutines(self):
        async def main():
            async with sis.aio.Client(self.server.address, timeout=30) as client:
                async with await client.append(self.run_, sampling=SAMPLING) as stream:
                    await stream.block("a", first_position=0, policy_version=0, **record(3, 8)._asdict())
                    await stream.append_column("a", 0, "mask", np.array([True, False, True]))
                return await client.fetch_top_k(self.run_, ["a"], columns=["mask"])

        records = asyncio.run(main())
        self.assertEqual(records.columns["mask"].tolist(), [[1], [0], [1]])


def bytes_of(rows, width):
    return np.zeros((rows, width), np.uint8)


if __name__ == "__main__":
    unittest.main()
