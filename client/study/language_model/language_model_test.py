"""What needs no engine: the task, weights of four bits, the order of the runs, the program that makes them (with another
program in the trainer's place), and the report from made-up results."""

import collections
import contextlib
import importlib.util
import io
import json
import os
import pathlib
import re
import signal
import tempfile
import textwrap
import threading
import unittest
import unittest.mock

import numpy as np

from client.study.language_model import report, results, study, task
from client.study.language_model.settings import Settings
from client.study.language_model.results import sources
from client.study.report import comparisons
from client.study.runs import design, make
from client.study.runs.design import Run
from client.study.runs.program import Progress

os.environ["PATH"] = f"{pathlib.Path('server/main').resolve()}{os.pathsep}{os.environ['PATH']}"

FOLDER = pathlib.Path("client/study/language_model")
DESIGN = FOLDER / "differences.txt"
PLAN = design.read(DESIGN)
CELLS = ("int4", "bfloat16_lag8", "int4_lag8", "bfloat16")
NAMES = ("GRPO", "GRPO + TIS", "damped truncation", "soft acceptance, EXPECTED")
SETTINGS = Settings.of(PLAN.settings)
SUMS = Settings(operation="+", smallest=1, largest=9, held_out=20)


def made_up(run):
    """A result as training.py writes it. Of its own for every run; damped truncation is better by 0.1."""
    draw = np.random.default_rng([run.seed, *str(run).encode()])
    rewards = np.round(np.linspace(0.1, 0.6, SETTINGS.rollouts) + draw.uniform(-0.05, 0.05, SETTINGS.rollouts), 5)
    final = 0.7 + draw.uniform(-0.02, 0.02) + 0.1 * (run.arm == "damped_truncation")
    names = ("accept_rate", "expected_accept_rate", "d", "d_sis", "staleness", "residual_mass", "gradient_norm")
    evaluated = range(SETTINGS.evaluated, SETTINGS.rollouts + 1, SETTINGS.evaluated)
    return {
        "sources": "abc",
        "final_reward": round(final, 5),
        "final_greedy": 0.8,
        "mean_reward": round(rewards.mean(), 5),
        "rollouts": {
            "reward": rewards.tolist(),
            **{name: draw.uniform(0.1, 0.9, SETTINGS.rollouts).round(4).tolist() for name in names},
        },
        "evaluations": {str(rollout): [0.5, 0.6] for rollout in evaluated},
        "versions": {"trl": "1.16.0"},
        "seconds": 120,
        "processor_seconds": 110,
    }


class InFolder(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.path = self.folder / "results.jsonl"


class TaskTest(unittest.TestCase):
    def test_problems_are_sums(self):
        for problem in sum(task.split(SUMS, seed=1), []):
            left, right = re.fullmatch(r"1 \+ 2 = 3\n(\d) \+ (\d) =", problem["prompt"]).groups()
            self.assertEqual(int(problem["answer"]), int(left) + int(right))

    def test_problems_are_differences(self):
        problems = sum(task.split(SETTINGS, seed=1), [])
        self.assertEqual(len(problems), 40 * 39 // 2)
        for problem in problems:
            left, right = re.fullmatch(r"15 - 11 = 4\n(\d\d) - (\d\d) =", problem["prompt"]).groups()
            self.assertEqual(int(problem["answer"]), int(left) - int(right))
            self.assertGreater(int(problem["answer"]), 0)

    def test_what_is_held_out_is_not_learned(self):
        learned, held_out = task.split(SUMS, seed=1)
        self.assertEqual((learned, held_out), task.split(SUMS, seed=1))
        self.assertNotEqual(held_out, task.split(SUMS, seed=2)[1])
        prompts = [{problem["prompt"] for problem in of} for of in (learned, held_out)]
        self.assertEqual([len(of) for of in prompts], [61, 20])
        self.assertEqual(len(prompts[0] | prompts[1]), 81)

    def test_only_the_number_alone_is_worth_1(self):
        self.assertEqual(task.reward([task.response("12"), task.response("12")], answer=["12", "11"]), [1.0, 0.0])
        for text in ("12\n", " 12", " 12.\n", " 11\n", " 123\n", " 1 2\n", " is 12\n", "\n", ""):
            self.assertEqual(task.reward([text], ["12"]), [0.0], msg=text)


@unittest.skipUnless(importlib.util.find_spec("torch"), "PyTorch is not installed")
class Int4Test(unittest.TestCase):
    def setUp(self):
        import torch
        from client.study.language_model import int4

        self.torch, self.int4 = torch, int4
        torch.manual_seed(0)
        self.weight = torch.randn(50, 96) * torch.rand(50, 1).exp()
        self.weight[3, 32:64] = 0
        self.weight[4] = -1.5

    def groups(self, weight):
        return weight.reshape(50, 3, 32)

    def test_nothing_is_further_than_half_a_step(self):
        rounded = self.int4.rounded(self.weight)
        step = self.groups(self.weight).abs().amax(-1, keepdim=True) / 8
        error = (self.groups(rounded) - self.groups(self.weight)).abs()
        # Opposite to the largest there are seven multiples, not eight.
        largest = self.groups(self.weight).gather(-1, self.groups(self.weight).abs().argmax(-1, keepdim=True))
        multiples = self.groups(self.weight) / (largest / -8).where(largest != 0, self.torch.ones(()))
        self.assertLessEqual(((error - step / 2) / step.clamp(min=1e-9))[multiples <= 7.5].max().item(), 1e-5)
        self.assertLessEqual(((error - step) / step.clamp(min=1e-9)).max().item(), 1e-5)
        self.assertGreater((multiples > 7.5).sum().item(), 5)
        # A sixteenth of the range is no small error.
        self.assertGreater((error / step.clamp(min=1e-9)).mean().item(), 0.2)

    def test_is_four_bits(self):
        # Of every sign and size: the largest, and as much the other way.
        self.weight[:, 0], self.weight[:, 1] = -9, 9
        self.weight[25:] *= -1
        rounded = self.groups(self.int4.rounded(self.weight))[:, 0]
        multiples = rounded / (rounded[:, :1] / -8)
        self.assertTrue(self.torch.equal(multiples, multiples.round()))
        self.assertEqual((multiples.min().item(), multiples.max().item()), (-8, 7))

    def test_rounding_twice_changes_nothing(self):
        once = self.int4.rounded(self.weight)
        self.assertTrue(self.torch.equal(self.int4.rounded(once), once))
        self.assertFalse(self.torch.equal(once, self.weight))
        # The largest of each group, a group of zeros and a group of one number are exact.
        self.assertTrue(self.torch.equal(self.groups(once).abs().amax(-1), self.groups(self.weight).abs().amax(-1)))
        self.assertTrue(self.torch.equal(once[3, 32:64], self.weight[3, 32:64]))
        self.assertTrue(self.torch.equal(once[4], self.weight[4]))

    def test_scales_with_the_weights(self):
        self.assertTrue(self.torch.equal(self.int4.rounded(-4 * self.weight), -4 * self.int4.rounded(self.weight)))

    def test_only_matrices_of_the_decoder(self):
        for name in ("model.layers.3.self_attn.q_proj.weight", "model.layers.0.mlp.down_proj.weight"):
            self.assertTrue(self.int4.is_linear_of_decoder(name), name)
        for name in ("model.embed_tokens.weight", "lm_head.weight", "model.layers.0.input_layernorm.weight"):
            self.assertFalse(self.int4.is_linear_of_decoder(name), name)


class RunsTest(unittest.TestCase):
    def test_the_design(self):
        self.assertEqual(tuple(PLAN.cells), CELLS)
        others, ours = ("grpo", "grpo+tis"), ("damped_truncation", "soft_acceptance+expected")
        for name, cell in PLAN.cells.items():
            engine, _, lag = name.partition("_lag")
            self.assertEqual(cell.settings, {"engine": engine, "lag": lag or "1"})
            self.assertEqual([comparisons.name(arm) for arm in cell.arms], list(NAMES))
            compared = {(arm, of, base) for where, arm, of, base in PLAN.primary if where == name}
            self.assertEqual(compared, {(arm, name, base) for arm in ours for base in others})

    def test_settings_are_those_of_the_design(self):
        self.assertEqual(SETTINGS, Settings())
        sums = Settings.of(design.read(FOLDER / "sums.txt").settings)
        self.assertEqual((sums.operation, sums.largest, sums.engine, sums.rollouts), ("+", 20, "vllm", 16))
        self.assertEqual([Settings.of({"bf16": value}).bf16 for value in ("true", "false")], [True, False])
        for wrong in ({"largets": "20"}, {"bf16": "no"}):
            with self.assertRaises(KeyError):
                Settings.of(wrong)

    def test_every_cut_is_balanced(self):
        runs = PLAN.runs
        self.assertEqual((len(runs), len(set(runs))), (4 * 4 * 16, 4 * 4 * 16))
        self.assertEqual(runs[0].seed, PLAN.first_seed)
        for first, cell in zip(range(0, len(runs), 4 * 16), CELLS, strict=True):
            of_arm = collections.Counter()
            for run in runs[first : first + 4 * 16]:
                self.assertEqual(run.cell, cell)
                of_arm[run.arm] += 1
                fewest = min(of_arm.values()) if len(of_arm) == 4 else 0
                self.assertLessEqual(max(of_arm.values()) - fewest, 1, run)

    def test_other_sources_are_told_from_these(self):
        before = sources(DESIGN)
        self.assertEqual(before, sources(DESIGN))
        self.assertNotEqual(before, sources(FOLDER / "sums.txt"))
        read = pathlib.Path.read_bytes
        for name in ("differences.txt", "arms.py", "trainer.py"):

            def changed(path, name=name):
                return read(path) + (b"\n" if path.name == name else b"")

            with unittest.mock.patch.object(pathlib.Path, "read_bytes", changed):
                self.assertNotEqual(sources(DESIGN), before, name)


class ResultsTest(InFolder):
    def test_what_was_written_is_read(self):
        self.assertEqual(results.read(self.path), {})
        made = {run: made_up(run) for run in PLAN.runs[:11]}
        results.write(self.path, made)
        self.assertEqual(results.read(self.path), made)
        self.assertEqual(list(PLAN.finished(made)), PLAN.runs[:8])
        with self.path.open("a") as file:
            file.write('{"cell": "int4", "arm": "gr')
        self.assertEqual(results.read(self.path), made)

    def test_two_programs_are_not_mixed(self):
        first, second = PLAN.runs[:2]
        for name, other in (("sources", "def"), ("versions", {"trl": "1.17.0"}), ("device", "a GPU")):
            results.write(self.path, {first: made_up(first), second: {**made_up(second), name: other}})
            with self.assertRaisesRegex(ValueError, f"results.jsonl: runs of different {name}"):
                results.read(self.path)


class StudyTest(InFolder):
    """Another program in the place of the Python with the engines."""

    def trainings(self, does):
        """does: lines of Python, with `run`, of training.py's arguments."""
        program = self.folder / "python"
        template = json.dumps({**made_up(Run("cell", "arm", 1)), "sources": None})
        program.write_text(textwrap.dedent("""\
            #!/usr/bin/env python3
            import json, os, pathlib, sys, time
            module, *given = sys.argv[3:]
            if module.endswith(".weights"):
                pathlib.Path(*given).mkdir()
                sys.exit()
            for line in sys.stdin:
                given = json.loads(line)
                run = f"{given['generates']['cell']} {given['arm']} {given['seed']}"
                made = json.loads('%s')
                del made["sources"], made["seconds"]
                made["final_greedy"] = given["settings"]["top_k"]
                print(json.dumps({"accept_rate": 0.5}), flush=True)
        """) % template + textwrap.indent(does + "\nprint(json.dumps(made), flush=True)\n", "    "))
        program.chmod(0o755)
        self.logs = self.folder / "logs"
        return study.Trainings(str(program), self.logs)

    def make_all(self, trainings):
        said = io.StringIO()
        try:
            make.make_missing(
                PLAN, results.read(self.path),
                lambda run: {"sources": "abc", **trainings.make(run, {"cell": run.cell}, SETTINGS, "127.0.0.1:1")},
                study.describe, Progress(said), 2,
                lambda there: results.write(self.path, there), trainings.stop,
            )  # fmt: skip
        finally:
            self.said = said.getvalue().splitlines()

    def test_makes_what_is_missing(self):
        runs = PLAN.runs
        there = {run: made_up(run) for run in runs[5:]}
        results.write(self.path, there)
        does = f"open({str(self.folder / 'made')!r}, 'a').write(run + chr(10))"
        self.make_all(self.trainings(does))
        made = (self.folder / "made").read_text().splitlines()
        self.assertEqual(sorted(made), sorted(map(str, runs[:5])))
        found = results.read(self.path)
        self.assertEqual(list(found), runs)
        self.assertEqual(found[runs[0]]["final_greedy"], SETTINGS.top_k)
        # Of the weights, and of two processes that made five runs.
        self.assertEqual(len(list(self.logs.glob("*.log"))), 3)
        self.assertIn(f"5 of {len(runs)} runs are to be made", self.said[0])
        self.assertRegex(self.said[-1], r"^256 runs \[#*\] 100%  .*accepted \d+%, \d+\.\d min; 0 min left$")

    def test_a_run_that_fails_ends_the_others_and_is_named(self):
        first, second, third = PLAN.runs[:3]
        name = design.plain(third)
        broken = f"if run == '{third}': sys.exit('it broke')\nif run not in {(str(first), str(second))!r}: time.sleep(600)"
        with self.assertRaisesRegex(RuntimeError, rf"^{re.escape(name)} failed; see .*\.log$") as raised:
            self.make_all(self.trainings(broken))
        self.assertIn("it broke", pathlib.Path(str(raised.exception).split("see ")[1]).read_text())
        self.assertLessEqual(set(results.read(self.path)), {first, second})

    def test_interrupted_it_keeps_what_is_finished(self):
        runs = PLAN.runs
        slow = "\n".join(
            (
                f"if run != '{runs[0]}':",
                f"    open({str(self.folder)!r} + f'/pid-{{os.getpid()}}', 'w')",
                "    time.sleep(600)",
            )
        )

        def interrupt():
            # Once the first is finished and two others are under way.
            while len(list(self.folder.glob("pid-*"))) < 2 or not self.path.exists():
                pass
            os.kill(os.getpid(), signal.SIGINT)

        # Where tests run without a terminal it may be ignored.
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        self.addCleanup(signal.signal, signal.SIGINT, before)
        threading.Thread(target=interrupt, daemon=True).start()
        with self.assertRaises(KeyboardInterrupt):
            self.make_all(self.trainings(slow))
        self.assertEqual(list(results.read(self.path)), runs[:1])
        for path in self.folder.glob("pid-*"):
            with self.assertRaises(ProcessLookupError):
                os.kill(int(path.name[4:]), 0)

    def test_results_of_other_sources_are_refused(self):
        run = PLAN.runs[0]
        results.write(self.path, {run: made_up(run)})
        arguments = ["study", f"--design={DESIGN}", "--python=p", f"--results={self.path}"]
        said = io.StringIO()
        with unittest.mock.patch("sys.argv", [*arguments, f"--folder={self.folder}"]), contextlib.redirect_stderr(said):
            self.assertEqual(study.main(), 1)
        self.assertIn("of other sources; move them away", said.getvalue())


class ReportTest(InFolder):
    def written(self, runs):
        made = {run: made_up(run) for run in runs}
        if made:
            results.write(self.path, made)
        report.write(DESIGN, self.path, self.folder)
        return (self.folder / "results.md").read_text(), made

    def test_without_results_it_says_so(self):
        text, _ = self.written([])
        self.assertIn("There are no results yet", text)
        self.assertNotIn("|", text)
        self.assertFalse((self.folder / "results.tsv").exists())

    def test_numbers_are_those_of_the_finished_seeds(self):
        runs = PLAN.runs
        text, made = self.written(runs[: 5 * 4 + 3])
        self.assertIn("**20 of 256 runs are finished: 5 of 16 seeds in `int4`.** Left out, as a seed isn't finished: 3.", text)
        seeds = range(PLAN.first_seed, PLAN.first_seed + 5)

        def values(cell, arm, of=lambda result: result["final_reward"]):
            return np.array([of(made[Run(cell, arm, seed)]) for seed in seeds])

        # Student's t, four degrees of freedom: 95%, and 95% for 16 together (99.6875%), from tables.
        for arm, base, said in (
            # There is one more of it, of the seed that isn't finished.
            ("damped_truncation", "grpo", "int4: damped truncation less GRPO"),
            ("soft_acceptance+expected", "grpo+tis", "int4: soft acceptance, EXPECTED less GRPO + TIS"),
        ):
            pairs = 1000 * (values("int4", arm) - values("int4", base))
            error = pairs.std(ddof=1) / 5**0.5
            row = re.search(rf"\| {re.escape(said)} \| 5 \| (.*) \| (.*) \| (.*) \|", text)
            for cell_text, quantile in ((row[1], 2.7764), (row[2], 6.3643)):
                self.assertRegex(cell_text, rf"^{re.escape(f'{pairs.mean():+.0f} ± {quantile * error:.0f}')}( \*)?$")
            within = abs(pairs.mean()) + 6.3643 * error <= 50
            self.assertEqual(row[3], "higher" if base == "grpo" else "as good as" if within else "not to be told apart")
        final = values("int4", "grpo+tis")
        last = values("int4", "grpo+tis", lambda result: np.mean(result["rollouts"]["reward"][-SETTINGS.rollouts // 4 :]))
        row = re.search(r"\| int4 \| GRPO \+ TIS \| (.*) \| (.*) \| (.*) \| (.*) \|\n", text)
        for cell_text, of in ((row[1], final), (row[4], last)):
            half = 2.7764 * of.std(ddof=1) / 5**0.5
            self.assertEqual(cell_text, f"{of.mean():.3f} ± {half:.3f}")
        d = values("int4", "grpo+tis", lambda result: np.mean(result["rollouts"]["d"])).mean()
        measured = (self.folder / "results.tsv").read_text()
        self.assertRegex(measured, rf"\nint4\tGRPO \+ TIS\t[\d.]+%\t[\d.]+%\t{d:.3f}\t")
        # Every arm less every arm that stands before it.
        self.assertEqual(len(re.findall(r"^\| int4 \| .* \| .* \| [+-]\d+ ± \d+", text, re.MULTILINE)), 6)
        picture = (self.folder / "results.svg").read_text()
        for said in ("int4: rollouts", "int4: the policy", *NAMES):
            self.assertIn(said, picture)

    def test_one_seed_has_no_intervals(self):
        text, _ = self.written(PLAN.runs[:4])
        self.assertIn("of one pair", text)
        self.assertNotIn("nan", text)
        self.assertNotIn("±", text.split("## What the arms came to")[1].split("##")[0].split("\n\n")[2])

    def test_the_committed_page_is_of_the_committed_results(self):
        published = pathlib.Path("docs/study")
        for name in ("sums", "differences"):
            report.write(FOLDER / f"{name}.txt", published / f"language_model_{name}.jsonl", self.folder)
            for file in (f"language_model_{name}.md", f"language_model_{name}.tsv"):
                self.assertEqual((self.folder / file).read_text(), (published / file).read_text())


if __name__ == "__main__":
    unittest.main()
