"""sisctl compare as people call it, at recordings of real engines."""

import json
import pathlib
import unittest

from server.testing.called_sisctl import sisctl


TESTDATA = pathlib.Path(__file__).parent.parent / "diagnose/testdata"
FLOAT32, FOUR_BIT, TEMPERATURE, TOP_P = (
    TESTDATA / f"smollm2_{name}.jsonl" for name in ("float32", "4_bit", "float32_temperature_0.7", "float32_top_p_0.9")
)


class CompareTest(unittest.TestCase):
    def test_exit_codes(self):
        for words, code, said in (
            ([FLOAT32, FOUR_BIT], 0, "No fault was found"),
            ([FOUR_BIT, TEMPERATURE], 3, "B looks like A at temperature 0.70"),
            ([FLOAT32, TOP_P], 3, "those of B are processed"),
            ([FLOAT32, "nowhere.json"], 1, "nowhere.json: No such file"),
            ([FLOAT32, TESTDATA / "README.md"], 1, "README.md: not JSON"),
            ([FLOAT32, TESTDATA / "sglang.json"], 1, "both must hold those of the same prompts"),
            ([FLOAT32], 2, "Missing argument 'B'"),
            (["-", "-"], 2, "only one of them can be standard input"),
            ([FLOAT32, FOUR_BIT, "--k", -1], 2, "--k"),
        ):
            with self.subTest(words):
                found, out, err = sisctl("compare", *words)
                self.assertEqual(found, code, out + err)
                self.assertIn(said, out + err)

    def test_a_table(self):
        _, out, _ = sisctl("compare", FOUR_BIT, TEMPERATURE, "--positions", 3)
        for pattern in (
            r"6 sequences, 157 positions in the same context",
            r"(?m)^ok +Do lists stand at the positions of their tokens\? +5\.99 +at most 0\.5 *$",
            r"(?m)^FAULT +Is the same temperature applied\? +0\.961 +at least 0\.2 *$",
            r"(?m)^- +Are all sequences apart alike\? +the log-probs are not of one kind *$",
            r"(?m)^positions 0-3 +24 +0\.7407 +0\.1639 *$",
            r"(?m)^accept rate +0\.746753 *$",
            r"The 3 of 157 positions with the largest \|log w\|",
            r'(?m)^ +0 +0 +-10\.5464 +-14\.3338 +-3\.7874 .* outside +"Conse" *$',
        ):
            self.assertRegex(out, pattern)

    def test_json(self):
        code, out, _ = sisctl("compare", FOUR_BIT, TEMPERATURE, "-o", "json", "--k", 2)
        report = json.loads(out)
        self.assertEqual((code, report["fault"]), (3, True))
        self.assertEqual(
            list(report),
            ["a", "b", "fault", "undecided", "verdict", "checks", "left_out", "d", "profile", "decisions", "positions"],
        )
        self.assertEqual((report["decisions"]["top_k"], len(report["positions"])), (2, 157))
        # A value that was not measured is null.
        self.assertIsNone(next(check for check in report["checks"] if check["name"] == "token_numbers")["value"])

    def test_standard_input(self):
        code, out, _ = sisctl("compare", "-", FLOAT32, given=FLOAT32.read_bytes())
        self.assertEqual(code, 0)
        self.assertIn("A: -\n", out)
        self.assertIn("The log-probs are equal", out)


if __name__ == "__main__":
    unittest.main()
