"""`sisctl diagnose` of runs whose trainer, engine or settings are wrong in a known way, on a real server."""

import json
import unittest

import numpy as np

import sis
from server.testing.called_sisctl import sisctl
from server.testing.live_server import LiveServer
from tests.integration.faulty_training import LENGTH, ROWS, VOCABULARY, FaultyTraining

NOISE = 0.02


class DiagnoseTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = cls.enterClassContext(LiveServer())
        cls.client = cls.enterClassContext(sis.Client(cls.server.address, timeout=30))

    def sisctl(self, *words):
        return sisctl(*words, SIS_ADDRESS=self.server.address, COLUMNS="1000")

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

    def evaluated(self, name, draw=1, **fault):
        training = FaultyTraining(self.client, name)
        training.evaluate(draw, noise=NOISE, **fault)
        return training

    def test_faults_of_every_position(self):
        """By name, after the run's settings, the trainer's, and the words of the verdict."""
        for name, load, fault, faults, said in (
            ("healthy", {}, {}, [], "[Nn]o fault was found"),
            ("temperature", {}, {"temperature": 0.7}, ["temperature"], r"B looks like A at temperature 0\.(6[7-9]|7[0-3])"),
            ("template", {}, {"shift": LENGTH}, ["weights"], "chat template"),
            ("column", {}, {"shifted_slots": 1}, ["lists_shifted"], "."),
            ("rows", {}, {"shift": -1}, ["lists_shifted"], "."),
            ("stale", {"versions": 3}, {"old_noise": 1.5}, ["staleness"], "."),
            ("small", {"top_k": 4, "scale": 1.8}, {}, ["coverage"], "K is too small"),
            ("4 bits", {}, {"noise": 0.1}, [], "4-bit weights"),
        ):
            with self.subTest(name):
                FaultyTraining(self.client, name.replace(" ", "-"), **load).evaluate(1, **{"noise": NOISE, **fault})
                found, report = self.diagnose(name.replace(" ", "-"))
                self.assertEqual([each for each, _ in found], faults, report["verdict"])
                self.assertRegex(report["verdict"][0], said)

    def test_masked_positions_are_omitted_and_reported(self):
        mask = np.ones(ROWS, np.uint8)
        mask[140:160] = 0
        self.evaluated("masked", options=sis.EvaluateOptions(mask=mask))
        faults, report = self.diagnose("masked")
        self.assertEqual(faults, [])
        self.assertEqual([(part["name"], part["positions"]) for part in report["left_out"]], [("masked", 20)])
        self.assertEqual(report["d"]["positions"], ROWS - 20)

    def test_a_sampled_token_that_the_trainer_finds_impossible(self):
        self.evaluated("possible")
        _, healthy = self.diagnose("possible")
        self.evaluated("impossible", impossible=[123])
        faults, report = self.diagnose("impossible")
        self.assertEqual(faults, [])
        self.assertFalse(report["undecided"])
        # It counts as 64 nats, as in the service's sums.
        self.assertAlmostEqual(report["d"]["mean"], healthy["d"]["mean"] + 64 / ROWS, delta=0.1 / ROWS)

    def test_rows_of_the_next_position_in_one_sequence(self):
        rows = np.arange(ROWS)
        rows[5 * LENGTH : 6 * LENGTH] = np.roll(rows[5 * LENGTH : 6 * LENGTH], -1)
        self.evaluated("one", rows=rows)
        faults, report = self.diagnose("one")
        self.assertEqual(faults, [("lists_shifted", [report["sequences"].index("s5")])])

    def test_the_last_draw_comes_first_though_its_number_is_lower(self):
        training = self.evaluated("resumed")
        records = self.client.fetch_top_k(training.run, ["s6", "s7"])
        self.client.evaluate(
            training.run, records, draw=0, log_probs=records.log_probs, sampled_log_probs=records.sampled_log_probs
        )
        _, report = self.diagnose("resumed")
        self.assertEqual(report["sequences"][:3], ["s6", "s7", "s0"])

    def test_what_nobody_evaluated_fails(self):
        self.client.create_run("empty", seed=1, vocabulary_size=VOCABULARY, top_k=4)
        code, _, err = self.sisctl("diagnose", "empty")
        self.assertEqual(code, 1)
        self.assertIn("nothing has been evaluated", err)
        self.assertEqual(self.sisctl("diagnose", "unknown")[0], 1)
        self.assertEqual(self.sisctl("diagnose")[0], 2)


if __name__ == "__main__":
    unittest.main()
