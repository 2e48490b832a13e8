"""`sisctl export`: its lines are what fetch_top_k and inspect_sequence say, over two replicas."""

import json
import pathlib
import subprocess
import unittest

import numpy as np

import sis
from server.testing.live_server import two_replicas

SISCTL = pathlib.Path("client/cli/sisctl")
VOCABULARY, TOP_K = 16, 4
# More than is read at once, and one that begins in the middle of that.
LENGTHS = {"a": 100, 'b "quoted" ü': 20000, "c": 50}
EVALUATED = ["a", "c"]


def log_softmax(logits):
    return (logits - np.logaddexp.reduce(logits, axis=1, keepdims=True)).astype(np.float32)


class ExportTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        servers = two_replicas(cls.addClassCleanup)
        cls.addresses = [server.address for server in servers]
        cls.client = sis.Client(cls.addresses, timeout=30)
        cls.addClassCleanup(cls.client.close)
        cls.run_ = cls.client.create_run(
            "r", seed=1, vocabulary_size=VOCABULARY, top_k=TOP_K, mass=0.7, log_prob_encoding="float32"
        )
        generator = np.random.default_rng(1)
        values = {}
        with cls.client.append(cls.run_, sampling=sis.Sampling("raw")) as stream:
            for version, (name, length) in enumerate(LENGTHS.items()):
                values[name] = log_softmax(2 * generator.normal(size=(length, VOCABULARY)))
                sampled = (values[name] + generator.gumbel(size=values[name].shape)).argmax(axis=1)
                ids = np.broadcast_to(np.arange(VOCABULARY), values[name].shape)
                own = np.take_along_axis(values[name], sampled[:, None], axis=1)[:, 0]
                record = sis.canonical(ids, values[name], sampled, own, TOP_K)
                for begin in range(0, length, 5000):
                    block = {key: value[begin : begin + 5000] for key, value in record._asdict().items()}
                    stream.block(name, first_position=begin, policy_version=version, **block)
            one = {key: value[:1] for key, value in record._asdict().items()}
            for position in (0, 8):  # what is between never comes
                stream.block("gap", first_position=position, policy_version=0, **one)
        cls.records = cls.client.fetch_top_k(cls.run_, list(LENGTHS))
        evaluated = cls.client.fetch_top_k(cls.run_, EVALUATED)
        current = np.concatenate([values[name] for name in EVALUATED])
        log_probs, own = sis.gather(evaluated, log_softmax(current + 0.3 * generator.normal(size=current.shape)))
        mask = np.ones(len(evaluated), np.uint8)
        mask[5:9] = 0
        cls.client.evaluate(
            cls.run_, evaluated, draw=7, log_probs=log_probs, sampled_log_probs=own,
            options=sis.EvaluateOptions(mask=mask),
        )  # fmt: skip
        command = [SISCTL, f"--server={','.join(cls.addresses)}", "export", "r"]
        lines = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=60, check=True).stdout.splitlines()
        cls.rows = [json.loads(line) for line in lines]

    def of(self, name):
        return [row for row in self.rows if row["sequence"] == name]

    def test_a_line_per_position(self):
        self.assertEqual(len(self.rows), sum(LENGTHS.values()) + 9)
        self.assertEqual(len({tuple(row) for row in self.rows}), 1, "all have the same names")
        for name, length in {**LENGTHS, "gap": 9}.items():
            self.assertEqual([row["position"] for row in self.of(name)], list(range(length)))
        for version, name in enumerate(LENGTHS):
            self.assertEqual({row["newest_policy_version"] for row in self.of(name)}, {version})

    def test_records(self):
        rows = [row for name in LENGTHS for row in self.of(name)]
        self.assertEqual([row["sampled_id"] for row in rows], self.records.sampled_ids.tolist())
        sampled = np.array([row["sampled_log_prob"] for row in rows], np.float32)
        np.testing.assert_array_equal(sampled, self.records.sampled_log_probs)
        used = [self.records.ids[i][self.records.ids[i] >= 0].tolist() for i in range(len(rows))]
        self.assertGreater(len({len(ids) for ids in used}), 2, "sets of this run are ragged")
        self.assertEqual([row["ids"] for row in rows], used)
        log_probs = np.concatenate([np.array(row["log_probs"], np.float32) for row in rows])
        np.testing.assert_array_equal(log_probs, self.records.log_probs[self.records.ids >= 0])
        self.assertEqual({row["missing"] for row in rows}, {None})

    def test_what_never_arrived(self):
        rows = self.of("gap")
        self.assertEqual([row["missing"] for row in rows], [None, *["never_arrived"] * 7, None])
        for name in ("sampled_id", "sampled_log_prob", "ids", "log_probs"):
            self.assertEqual([row[name] is None for row in rows], [False, *[True] * 7, False])

    def test_evaluated_values(self):
        for name in EVALUATED:
            kept = self.client.inspect_sequence(self.run_, name)
            rows = self.of(name)
            self.assertEqual({row["draw"] for row in rows}, {7})
            self.assertEqual([row["decision"] for row in rows], [sis.Decision(d).name.lower() for d in kept.decisions])
            scored = [i for i, decision in enumerate(kept.decisions) if decision in (1, 2, 3)]
            for column, values in (
                ("log_ratio", kept.log_ratios), ("acceptance_probability", kept.acceptance_probabilities),
                ("log_envelope", kept.log_envelopes), ("residual_mass", kept.residual_masses),
                ("staleness", kept.staleness),
            ):  # fmt: skip
                told = np.array([rows[i][column] for i in scored], values.dtype)
                np.testing.assert_array_equal(told, values[scored], column)
                others = {row[column] for i, row in enumerate(rows) if i not in scored}
                self.assertEqual(others, {None} if name == "a" else set())
            for i in scored:
                current = kept.current_log_probs[i][kept.top_k_ids[i] >= 0]
                np.testing.assert_array_equal(np.array(rows[i]["current_log_probs"], np.float32), current)
        columns = ("draw", "decision", "log_ratio", "current_log_probs")
        for row in [*self.of("gap"), *self.of('b "quoted" ü')]:
            self.assertEqual([row[column] for column in columns], [None] * 4)

    def test_a_silent_replica_is_said(self):
        servers = two_replicas(self.addCleanup)
        addresses = [server.address for server in servers]
        with sis.Client(addresses, timeout=30) as client:
            client.create_run("r", seed=1, vocabulary_size=VOCABULARY, top_k=TOP_K)
        servers[1].kill()
        command = [SISCTL, f"--server={','.join(addresses)}", "export", "r"]
        result = subprocess.run(command, capture_output=True, text=True, timeout=60)
        self.assertEqual(result.returncode, 1)
        self.assertIn("server 2 of 2 gives no answer, and what it holds is not shown", result.stderr)


if __name__ == "__main__":
    unittest.main()
