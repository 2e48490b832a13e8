"""`sisctl diagnose` of runs whose trainer, engine or settings are wrong in a known way, on a real server."""

import contextlib
import io
import json
import os
import sys
import unittest
from unittest import mock

import numpy as np

import sis
from server.testing.live_server import LiveServer
from sis.cli.main import run as sisctl

VOCABULARY, LENGTH, SEQUENCES = 400, 100, 8


def normalised(logits):
    return (logits - np.logaddexp.reduce(logits, axis=-1, keepdims=True)).astype(np.float32)


def contexts(rng):
    """Log-probs [T, V] of a language: Zipf's law, what the context prefers, and mostly a token that it demands."""
    rows = np.arange(LENGTH)
    logits = -1.1 * np.log(np.arange(VOCABULARY) + 2) + 0.7 * rng.normal(size=(LENGTH, VOCABULARY))
    for _ in range(8):
        logits[rows, (VOCABULARY ** rng.random(LENGTH)).astype(int) - 1] += 3 * rng.random(LENGTH)
    demanded = (VOCABULARY ** rng.random(LENGTH)).astype(int) - 1
    logits[rows, demanded] += rng.choice([2, 5, 8, 10], LENGTH)
    return normalised(logits)


def as_said(rows):
    """The current policy's log-probs as the trainer gathers them."""
    return lambda records: sis.gather(records, rows)


class DiagnoseTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = LiveServer()
        cls.addClassCleanup(cls.server.close)
        cls.client = sis.Client(cls.server.address, timeout=30)
        cls.addClassCleanup(cls.client.close)

    def run_of(self, name, current, *, top_k=20, gather=as_said, mask=None):
        """A run whose trainer has current([T, V] of a sequence, its number, rng) where the engine had the first."""
        rng = np.random.default_rng(7)
        run = self.client.create_run(name, seed=1, vocabulary_size=VOCABULARY, top_k=top_k)
        names = [f"response {number}" for number in range(SEQUENCES)]
        behaviour = [contexts(rng) for _ in names]
        ids = np.broadcast_to(np.arange(VOCABULARY), (LENGTH, VOCABULARY))
        with self.client.append(run, sampling=sis.Sampling("raw")) as stream:
            for number, rows in enumerate(behaviour):
                sampled = (rows + rng.gumbel(size=rows.shape)).argmax(axis=1)
                own = np.take_along_axis(rows, sampled[:, None], axis=1)[:, 0]
                block = sis.canonical(ids, rows, sampled, own, top_k)._asdict()
                stream.block(names[number], first_position=0, policy_version=0, **block)
        records = self.client.fetch_top_k(run, names)
        rows = np.concatenate([current(rows, number, rng) for number, rows in enumerate(behaviour)])
        log_probs, sampled_log_probs = gather(rows)(records)
        self.client.evaluate(
            run, records, draw=1, log_probs=log_probs, sampled_log_probs=sampled_log_probs,
            options=sis.EvaluateOptions(mask=mask),
        )  # fmt: skip
        return run

    def sisctl(self, *words):
        """Exit code, standard output, standard error."""
        out, err = io.TextIOWrapper(io.BytesIO(), newline=""), io.StringIO()
        with contextlib.ExitStack() as stack:
            stack.enter_context(mock.patch.dict(os.environ, {"SIS_ADDRESS": self.server.address, "COLUMNS": "1000"}))
            stack.enter_context(mock.patch.object(sys, "argv", ["sisctl", *words]))
            stack.enter_context(contextlib.redirect_stdout(out))
            stack.enter_context(contextlib.redirect_stderr(err))
            with self.assertRaises(SystemExit) as ended:
                sisctl()
        out.flush()
        return ended.exception.code or 0, out.buffer.getvalue().decode(), err.getvalue()

    def diagnose(self, name):
        text_code, text, _ = self.sisctl("diagnose", name)
        code, out, err = self.sisctl("diagnose", name, "-o", "json")
        self.assertIn(code, (0, 3), err)
        report = json.loads(out)
        faults = [(check["name"], check["sequences"]) for check in report["checks"] if check["outcome"] == "fault"]
        self.assertEqual([text_code, code], [3 if faults else 0] * 2)
        for sentence in report["verdict"]:
            self.assertIn(sentence, text)
        for check in report["checks"]:
            self.assertTrue(check["setting"], check["name"])
        return faults, report

    def noisy(self, scale):
        return lambda rows, number, rng: normalised(rows + scale * rng.normal(size=rows.shape))

    def test_masked_positions_are_omitted_and_reported(self):
        mask = np.ones(SEQUENCES * LENGTH, np.uint8)
        mask[140:160] = 0
        self.run_of("masked", self.noisy(0.02), mask=mask)
        faults, report = self.diagnose("masked")
        self.assertEqual(faults, [])
        self.assertEqual([(part["name"], part["positions"]) for part in report["left_out"]], [("masked", 20)])
        self.assertEqual(report["d"]["positions"], SEQUENCES * LENGTH - 20)

    def test_a_sampled_token_that_the_trainer_finds_impossible(self):
        def gather(rows):
            def values(records):
                log_probs, sampled_log_probs = sis.gather(records, rows)
                sampled_log_probs[123] = -np.inf
                return log_probs, sampled_log_probs

            return values

        self.run_of("possible", self.noisy(0.02))
        _, healthy = self.diagnose("possible")
        self.run_of("impossible", self.noisy(0.02), gather=gather)
        faults, report = self.diagnose("impossible")
        self.assertEqual(faults, [])
        self.assertFalse(report["undecided"])
        # It counts as 64 nats, as in the service's sums.
        positions = SEQUENCES * LENGTH
        self.assertAlmostEqual(report["d"]["mean"], healthy["d"]["mean"] + 64 / positions, delta=0.1 / positions)
        self.assertEqual(report["d"]["level"], "4_bit", report["d"])

    def test_rows_of_the_next_position_in_one_sequence(self):
        noisy = self.noisy(0.02)

        def current(rows, number, rng):
            rows = noisy(rows, number, rng)
            return np.roll(rows, -1, axis=0) if number == 5 else rows

        self.run_of("one", current)
        faults, report = self.diagnose("one")
        self.assertEqual(faults, [("lists_shifted", [5])])
        self.assertEqual(report["sequences"][5], "response 5")

    def test_the_last_draw_comes_first_though_its_number_is_lower(self):
        run = self.run_of("resumed", self.noisy(0.02))
        records = self.client.fetch_top_k(run, ["response 6", "response 7"])
        self.client.evaluate(
            run, records, draw=0, log_probs=records.log_probs, sampled_log_probs=records.sampled_log_probs
        )
        _, report = self.diagnose("resumed")
        self.assertEqual(report["sequences"][:3], ["response 6", "response 7", "response 0"])

    def test_what_nobody_evaluated_fails(self):
        self.client.create_run("empty", seed=1, vocabulary_size=VOCABULARY, top_k=4)
        code, _, err = self.sisctl("diagnose", "empty")
        self.assertEqual(code, 1)
        self.assertIn("nothing has been evaluated", err)
        self.assertEqual(self.sisctl("diagnose", "unknown")[0], 1)
        self.assertEqual(self.sisctl("diagnose")[0], 2)


if __name__ == "__main__":
    unittest.main()
