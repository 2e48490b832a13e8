"""What needs no engine: the report, and what is said where an arm fails. The arms themselves
are run by tools/demo --llm."""

import io
import os
import re
import tempfile
import unittest
import xml.dom.minidom

from client.demo.language_model import demo, report, results
from client.demo.language_model.arms import ARMS
from client.demo.language_model.settings import Settings
from client.demo.progress import Progress

SERVER = "server/main/sis_server"
TINY = Settings(updates=2, seconds=60)


def measured(arm, count):
    """As arm.py writes it: rewards where a rollout is made. The further an update from its rollout, the larger D."""
    made = []
    for step in range(count):
        stale = step % TINY.updates
        line = {"step": step + 1, "accept_rate": 0.8 - 0.1 * stale, "d": 0.04 + 0.1 * stale, "d_sis": 0.02, "missing": 0.0}
        if stale == 0:
            line.update(reward=0.2 + 0.05 * arm + 0.01 * step)
        made.append({**line, "residual_mass": 0.1, "staleness": float(stale)})
    return made


class ReportTest(unittest.TestCase):
    def test_compares_what_both_arms_came_to(self):
        # The arm that is ahead has begun a rollout that the other has not.
        made = results.Results(TINY, [measured(0, 12), measured(1, 15)], ["sis_tokens_total 1"])
        self.assertEqual(made.rollouts, 6)
        rows = {row[0]: row[1:] for row in results.table(made)}
        self.assertEqual(rows["accept rate"], ["75.0%", "75.0%"])
        self.assertEqual(rows["D of the first update of a rollout, the engine's mismatch"], ["0.0400"] * 2)
        self.assertEqual(rows["reward, last rollouts (1)"], ["0.300", "0.350"])
        self.assertIn("differ by +0.050", results.verdict(made))
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "report.html")
            report.write(made, path)
            with open(path, encoding="utf-8") as file:
                page = file.read()
        charts = re.findall(r"<svg xmlns:xlink=.*?</svg>", page, re.DOTALL)
        self.assertEqual(len(charts), 5)
        for chart in charts:
            xml.dom.minidom.parseString(chart)
            self.assertNotIn("nan", chart)
        self.assertIsNone(re.search(r'(src|href)\s*=\s*"(?!#)|url\((?!#)|@import|<script', page))


class DemoTest(unittest.TestCase):
    def test_says_which_part_failed_and_where_it_tells_why(self):
        with tempfile.TemporaryDirectory() as folder:
            with self.assertRaisesRegex(RuntimeError, f"weights failed; see {folder}/weights.log"):
                demo.run(TINY, SERVER, "/bin/false", folder, Progress(io.StringIO()))
            os.mkdir(os.path.join(folder, "SmolLM2-135M-Instruct"))
            with self.assertRaisesRegex(RuntimeError, f"trainer of ({'|'.join(re.escape(a.name) for a in ARMS)}) failed"):
                demo.run(TINY, SERVER, "/bin/false", folder, Progress(io.StringIO()))


if __name__ == "__main__":
    unittest.main()
