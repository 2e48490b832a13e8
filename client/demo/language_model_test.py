"""The report of the language model's demonstration, from what a program in place of the engines prints."""

import contextlib
import io
import os
import pathlib
import re
import tempfile
import unittest
import xml.dom.minidom

from client.demo import language_model
from client.demo.llm.settings import Settings
from client.demo.progress import Progress

os.environ["PATH"] = f"{pathlib.Path('server/main').resolve()}{os.pathsep}{os.environ['PATH']}"

SETTINGS = Settings(rollouts=8, updates=2)
# As training.py prints it: the further an update from its rollout, the larger D.
PROGRAM = """\
#!/usr/bin/env python3
import json, pathlib, sys
module, given = sys.argv[3:]
if module.endswith(".weights"):
    pathlib.Path(given).mkdir()
    sys.exit()
given = json.loads(given)
assert given["seed"] == 3 and given["address"] and given["run"] == given["arm"] + "-3"
gain = 0.1 * (given["arm"] == "sis")
# With SIS the time is up earlier.
rewards = [0.2 + 0.1 * rollout + gain for rollout in range(5 if gain else 6)]
for step in range(2 * len(rewards)):
    stale = step % 2
    update = {"accept_rate": 0.8 - 0.1 * stale, "d": 0.04 + 0.1 * stale, "d_sis": 0.02}
    print(json.dumps({**update, **({} if stale else {"reward": rewards[step // 2]})}), flush=True)
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

    def test_reports_what_was_measured(self):
        page, said = self.run_demo(PROGRAM)
        measured = r" +75\.0% +0\.090 +0\.020\n"
        self.assertRegex(said, r"\nwithout SIS +0\.200 +0\.600 +0\.600" + measured)
        self.assertRegex(said, r"\nwith SIS +0\.300 +0\.700 +0\.700" + measured)
        self.assertIn("accepted 80%, D 0.040, D_SIS 0.020\n", said)
        self.assertIn(": 5 rollouts of 8 problems", page)
        chart, = re.findall(r"<svg .*?</svg>", page, re.DOTALL)
        xml.dom.minidom.parseString(chart)
        self.assertNotIn("nan", chart)

    def test_names_the_program_that_failed_and_its_log(self):
        for broken, name in (("pathlib.Path(given).mkdir()", "weights"), ("rewards = ", "(grpo|sis)-3")):
            with self.assertRaisesRegex(RuntimeError, rf"^{name} failed; see .*/{name}\.log$"):
                self.run_demo(PROGRAM.replace(broken, f"sys.exit('it broke'); {broken}"))


if __name__ == "__main__":
    unittest.main()
