"""Client.export: the Parquet file holds what fetch_top_k and inspect_sequence say, over real
servers."""

import contextlib
import json
import pathlib
import tempfile
import unittest
from unittest import mock

import matplotlib.pyplot
import numpy as np
import pandas
import pyarrow.parquet
from server.testing.live_server import LiveServer, two_replicas
from server.testing.random_records import drawn, log_softmax, record_of

import sis
import sis.export

NOTEBOOK = pathlib.Path(__file__).parents[2] / "examples/export.ipynb"
VOCABULARY, K = 32, 6
# Over several batches and row groups, one longer than a batch.
AT_ONCE = 100
LENGTHS = {"a": 30, "b": 250, "c": 75, "d": 1}
EVALUATED = ["a", "b"]


class ExportTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.servers = two_replicas(cls.addClassCleanup)
        cls.client = sis.Client([server.address for server in cls.servers], timeout=30)
        cls.addClassCleanup(cls.client.close)
        cls.run_ = cls.client.create_run(
            "r", seed=1, vocabulary_size=VOCABULARY, top_k=K, mass=0.7, log_prob_encoding="float32"
        )
        generator = np.random.default_rng(1)
        cls.values = {}
        with cls.client.append(cls.run_, sampling=sis.Sampling("raw")) as stream:
            for version, (name, length) in enumerate(LENGTHS.items()):
                values = cls.values[name] = log_softmax(2 * generator.normal(size=(length, VOCABULARY)))
                record = drawn(values, generator, K)
                stream.block(name, first_position=0, policy_version=version, **record._asdict())
            one = {key: value[:1] for key, value in record._asdict().items()}
            for position in (0, 8):  # what is between never comes
                stream.block("gap", first_position=position, policy_version=0, **one)
        cls.records = cls.client.fetch_top_k(cls.run_, EVALUATED)
        current = np.concatenate([cls.values[name] for name in EVALUATED])
        current = log_softmax(current + 0.3 * generator.normal(size=current.shape))
        cls.mask = np.ones(len(cls.records), np.uint8)
        cls.mask[5:9] = 0
        log_probs, own = sis.gather(cls.records, current)
        cls.evaluation = cls.client.evaluate(
            cls.run_, cls.records, draw=7, log_probs=log_probs, sampled_log_probs=own,
            outputs=["decisions", "acceptance_probabilities"], options=sis.EvaluateOptions(mask=cls.mask),
        )  # fmt: skip
        cls.current_log_probs = log_probs
        cls.log_ratios = own - cls.records.sampled_log_probs
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.folder = pathlib.Path(folder.name)
        cls.file = cls.folder / "run.parquet"
        with mock.patch.object(sis.export, "POSITIONS_AT_ONCE", AT_ONCE):
            cls.exported = sis.export.export(cls.client, cls.run_, str(cls.file))
        cls.table = pandas.read_parquet(cls.file)

    def of(self, *names):
        return pandas.concat([self.table[self.table.sequence == name] for name in names])

    def test_a_row_per_position(self):
        total = sum(LENGTHS.values()) + 9
        self.assertEqual(self.exported, (len(LENGTHS) + 1, total))
        self.assertEqual(len(self.table), total)
        for name, length in {**LENGTHS, "gap": 9}.items():
            self.assertEqual(list(self.of(name).position), list(range(length)))
        for version, name in enumerate(LENGTHS):
            self.assertEqual(set(self.of(name).newest_policy_version), {version})
        self.assertEqual(pyarrow.parquet.read_schema(self.file), sis.export.schema())

    def test_batches_are_small(self):
        file = pyarrow.parquet.ParquetFile(self.file)
        self.assertEqual(
            [file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)], [100, 100, 100, 65]
        )

    def test_a_replica_that_fails_during_a_call_leaves_no_holes(self):
        servers = two_replicas(self.addCleanup)
        client = sis.Client([server.address for server in servers], timeout=5)
        self.addCleanup(client.close)
        run = client.create_run("half", seed=1, vocabulary_size=VOCABULARY, top_k=K)
        record = record_of(self.values["d"], np.array([0]), K)
        with client.append(run, sampling=sis.Sampling("raw")) as stream:
            for number in range(16):
                stream.block(f"s{number}", first_position=0, policy_version=0, **record._asdict())
        path = self.folder / "half.parquet"
        path.write_text("an older one")

        def rows(*of_part, original=sis.export._rows):
            servers[1].close()
            return original(*of_part)

        with mock.patch.object(sis.export, "_rows", rows), mock.patch.object(sis.export, "POSITIONS_AT_ONCE", 1):
            with self.assertRaises(sis.Unavailable):
                sis.export.export(client, run, str(path))
        self.assertEqual(path.read_text(), "an older one")
        self.assertEqual(list(self.folder.glob("half*")), [path])

    def test_records(self):
        rows = self.of(*EVALUATED)
        np.testing.assert_array_equal(rows.sampled_id, self.records.sampled_ids)
        np.testing.assert_array_equal(rows.sampled_log_prob, self.records.sampled_log_probs)
        lengths = set()
        for i, (ids, log_probs) in enumerate(zip(rows.ids, rows.log_probs)):
            used = self.records.ids[i] >= 0
            lengths.add(len(ids))
            np.testing.assert_array_equal(ids, self.records.ids[i][used])
            np.testing.assert_array_equal(log_probs, self.records.log_probs[i][used])
        self.assertGreater(len(lengths), 2, "sets of this run are ragged")
        self.assertTrue(rows.missing.isna().all())

    def test_what_never_arrived(self):
        rows = self.of("gap")
        self.assertEqual(list(rows.missing.isna()), [True, *[False] * 7, True])
        gone = rows[1:8]
        self.assertEqual(set(gone.missing), {"never_arrived"})
        for column in ("sampled_id", "sampled_log_prob", "ids", "log_probs"):
            self.assertTrue(gone[column].isna().all(), column)
            self.assertFalse(rows[column].iloc[[0, 8]].isna().any(), column)

    def test_decisions(self):
        rows = self.of(*EVALUATED)
        self.assertEqual(set(rows.draw), {7})
        names = [sis.Decision(decision).name.lower() for decision in self.evaluation.decisions]
        self.assertEqual(list(rows.decision), names)
        self.assertGreater(len(set(names)), 3)
        scored = self.mask.astype(bool)
        for column, values in (("log_ratio", self.log_ratios),
                               ("acceptance_probability", self.evaluation.acceptance_probabilities)):  # fmt: skip
            np.testing.assert_array_equal(rows[column][scored], values[scored])
            self.assertTrue(rows[column][~scored].isna().all())
        for i in np.flatnonzero(scored):
            used = self.records.ids[i] >= 0
            np.testing.assert_array_equal(rows.current_log_probs.iloc[i], self.current_log_probs[i][used])
        self.assertTrue(rows.current_log_probs[~scored].isna().all())
        for column in ("draw", "decision", "log_ratio", "staleness", "current_log_probs"):
            self.assertTrue(self.of("c", "d", "gap")[column].isna().all(), column)

    def test_the_notebook_draws_what_the_service_says(self):
        notebook = json.loads(NOTEBOOK.read_text())
        drawn, names = [], {}
        show = mock.patch.object(matplotlib.pyplot, "show", lambda: drawn.append(matplotlib.pyplot.gcf()))
        with contextlib.chdir(self.folder), show:
            for cell in notebook["cells"]:
                if cell["cell_type"] == "code":
                    exec(compile("".join(cell["source"]), cell["id"], "exec"), names)
        self.addCleanup(matplotlib.pyplot.close, "all")
        self.assertEqual(len({figure.number for figure in drawn}), 4)
        for figure in drawn:
            for axes in figure.axes:
                self.assertTrue(axes.lines or axes.patches)
        totals = self.evaluation.totals
        scored = totals.accepted + totals.rejected + totals.outside_top_k
        self.assertEqual(names["accept_rate"].to_dict(), {7: totals.accepted / scored})
        # The service sums in fixed point.
        self.assertAlmostEqual(names["deviation"].D[7], totals.d, delta=1e-4)
        self.assertAlmostEqual(names["deviation"].D_SIS[7], totals.d_sis, delta=1e-4)
        self.assertAlmostEqual(names["residual_mass"][-1], totals.residual_mass / scored, delta=1e-5)
        q = np.exp(self.records.log_probs[self.mask.astype(bool)].astype(np.float64))
        self.assertAlmostEqual(names["coverage"][-1], q.sum(axis=1).mean(), delta=1e-5)
        self.assertAlmostEqual(names["coverage"][0], q[:, 0].mean(), delta=1e-5)
        accepted = np.bincount(self.records.sampled_ids[self.evaluation.decisions == 1], minlength=VOCABULARY)
        others = np.isin(self.evaluation.decisions, (2, 3))
        rejected = np.bincount(self.records.sampled_ids[others], minlength=VOCABULARY)
        odds = (accepted + 0.5) / (rejected + 0.5)
        order = sorted(names["distinctive"].index, key=lambda token: odds[token])
        np.testing.assert_allclose(odds[names["distinctive"].index], odds[order])

    def test_a_failure_leaves_no_file(self):
        file = self.folder / "nothing.parquet"
        with self.assertRaises(sis.NotFound):
            sis.export.export(self.client, sis.Run("nowhere", 1, self.run_.config), str(file))
        other = LiveServer()
        addresses = [self.servers[0].address, other.address]
        with sis.Client(addresses, timeout=30) as client:
            client.create_run("r", seed=1, vocabulary_size=VOCABULARY, top_k=K, mass=0.7, log_prob_encoding="float32")
            other.kill()
            with self.assertRaises(sis.Unavailable):
                sis.export.export(client, self.run_, str(file))
        self.assertEqual([path.name for path in self.folder.iterdir()], ["run.parquet"])


if __name__ == "__main__":
    unittest.main()
