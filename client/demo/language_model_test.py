"""What needs no engine: the report, from what a program in the place of the engines says."""

import contextlib
import io
import json
import os
import pathlib
import re
import tempfile
import unittest
import xml.dom.minidom

from client.demo import language_model
from client.study.language_model.settings import Settings
from client.study.runs.program import Progress

os.environ["PATH"] = f"{pathlib.Path('server/main').resolve()}{os.pathsep}{os.environ['PATH']}"

SETTINGS = Settings(rollouts=8, updates=2)
# As training.py writes it: the further an update from its rollout, the larger D.
PROGRAM = """\
#!/usr/bin/env python3
import json, pathlib, sys
module, *given = sys.argv[3:]
if module.endswith(".weights"):
    pathlib.Path(*given).mkdir()
    sys.exit()
for line in sys.stdin:
    given = json.loads(line)
    assert given["generates"] == {} and given["seed"] == 3 and given["address"]
    gain = 0.1 * (given["arm"] == "grpo+sampled")
    # With SIS the time is up earlier.
    rewards = [0.2 + 0.1 * rollout + gain for rollout in range(6 if gain else 7)]
    for step in range(2 * len(rewards)):
        stale = step % 2
        update = {"accept_rate": 0.8 - 0.1 * stale, "d": 0.04 + 0.1 * stale, "d_sis": 0.02}
        update["residual_mass"] = 0.1
        print(json.dumps({**update, **({} if stale else {"reward": rewards[step // 2]})}), flush=True)
    rollouts = {"reward": rewards, "accept_rate": [0.75] * len(rewards)}
    print(json.dumps({"final_reward": 0.5 + gain, "rollouts": rollouts}), flush=True)
"""


class LanguageModelTest(unittest.TestCase):
    def run_demo(self, program):
        said = io.StringIO()
        with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(said):
            output = pathlib.Path(folder)
            python = output / "python"
            python.write_text(program)
            python.chmod(0o755)
            language_model.run(3, SETTINGS, str(python), output, Progress(said))
            return (output / "report.html").read_text(encoding="utf-8"), said.getvalue()

    def test_reports_what_the_arms_came_to(self):
        page, said = self.run_demo(PROGRAM)
        rest = "75.0% | 0.090 | 0.040 | 0.020 | 10.00% |\n"
        self.assertIn(f"| bfloat16 | GRPO | 0.200 | 0.450 | 0.700 | {rest}", said)
        self.assertIn(f"| bfloat16 | GRPO + SIS | 0.300 | 0.550 | 0.800 | {rest}", said)
        self.assertIn(" 3: accepted 80%, D 0.040, D_SIS 0.020\n", said)
        self.assertRegex(said, r"3: rollouts 0\.[23]0 to 0\.80, held out 0\.[56]00")
        charts = re.findall(r"<svg .*?</svg>", page, re.DOTALL)
        self.assertEqual(len(charts), 4)
        for chart in charts:
            xml.dom.minidom.parseString(chart)
            self.assertNotIn("nan", chart)

    def test_says_which_part_failed_and_where_it_tells_why(self):
        for broken, name in (
            ("pathlib.Path(*given).mkdir()", "weights"),
            ("rewards = ", "bfloat16-grpo(-sampled)?-3"),
        ):
            with self.assertRaisesRegex(RuntimeError, rf"^{name} failed; see .*/\d+\.log$"):
                self.run_demo(PROGRAM.replace(broken, f"sys.exit('it broke'); {broken}"))


if __name__ == "__main__":
    unittest.main()
