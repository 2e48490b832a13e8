"""sisctl as people call it, at real servers."""

import contextlib
import csv
import json
import os
import pathlib
import pty
import re
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from unittest import mock

import numpy as np
from server.testing.called_sisctl import sisctl
from server.testing.live_server import LiveServer
from server.testing.random_records import drawn, log_softmax

import sis

VOCABULARY, TOP_K, LENGTH = 16, 4, 12
TEXTS = {"a": 0, "Ġthe": 1, "Ċ": 2, "[b]": 3, **{f"Ġw{i}": i for i in range(4, VOCABULARY)}}
HEAVY = ("grpc", "numpy", "pyarrow", "starlette", "uvicorn")


def fill(client):
    """A run of five sequences, two of which were evaluated, in draws 1 and 2."""
    run = client.create_run("r", seed=1, vocabulary_size=VOCABULARY, top_k=TOP_K, task="sums [x]")
    generator = np.random.default_rng(1)
    values = {name: log_softmax(2 * generator.normal(size=(LENGTH, VOCABULARY))) for name in "abcd"}
    with client.append(run, sampling=sis.Sampling("raw")) as stream:
        for name, behaviour in values.items():
            record = drawn(behaviour, generator, TOP_K)._asdict()
            stream.block(name, first_position=0, policy_version=3, **record)
        stream.seal("a", length=LENGTH)
        for first in (0, 5):  # positions 1 to 4 never come
            one = {key: value[:1] for key, value in record.items()}
            stream.block("gap", first_position=first, policy_version=4, attempt=2, **one)
    for draw in (1, 2):
        slices = [sis.Slice("a", 0, LENGTH), sis.Slice("b", 0, LENGTH), sis.Slice("never", 0, 3)]
        records = client.fetch_top_k(run, slices[:2])
        current = np.concatenate([values["a"], values["b"]])
        log_probs, own = sis.gather(records, log_softmax(current + generator.normal(size=current.shape)))
        pad = np.full((3, TOP_K), -1, np.float32)
        mask = np.ones(2 * LENGTH + 3, np.uint8)
        mask[2:4] = 0
        client.evaluate(
            run, slices, draw=draw, log_probs=np.concatenate([log_probs, pad]),
            sampled_log_probs=np.concatenate([own, pad[:, 0]]), prefix_curve=(1, TOP_K),
            options=sis.EvaluateOptions(mask=mask),
        )  # fmt: skip
    return run


class StartTest(unittest.TestCase):
    def test_help_imports_nothing_that_takes_time(self):
        program = (
            "import sys\nfrom sis.cli.main import run\nsys.argv = ['sisctl', 'run', '--help']\n"
            f"try: run()\nfinally: print([name for name in {HEAVY} if name in sys.modules])"
        )
        result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(result.stdout.splitlines()[-1], "[]")

    def test_a_missing_extra_is_named(self):
        program = "import sys\nsys.modules['typer'] = None\nimport sis.cli\nsis.cli.main()"
        result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
        self.assertEqual(result.returncode, 1)
        self.assertEqual(result.stderr, "sisctl needs typer: pip install 'sis-ratio[cli]'\n")


class CliTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = cls.enterClassContext(LiveServer(cache_bytes=16 << 20))
        cls.client = cls.enterClassContext(sis.Client(cls.server.address, timeout=30))
        cls.run_ = fill(cls.client)
        cls.folder = pathlib.Path(cls.enterClassContext(tempfile.TemporaryDirectory()))
        cls.tokenizer = cls.folder / "tokenizer.json"
        cls.tokenizer.write_text(json.dumps({"model": {"vocab": TEXTS}, "decoder": {"type": "ByteLevel"}}))

    def sisctl(self, *words, server=None, given=""):
        return sisctl(*words, given=given.encode(), SIS_ADDRESS=server or self.server.address, COLUMNS="100")

    def done(self, *words, **named):
        code, out, err = self.sisctl(*words, **named)
        self.assertEqual((code, err), (0, ""), words)
        return out

    def json(self, *words, **named):
        return json.loads(self.done(*words, "-o", "json", **named))

    def test_help(self):
        for noun, verbs in {
            "run": ["list", "show", "inspect", "delete"], "step": ["list", "show"], "sequence": ["list", "show"],
            "server": ["show"], "top": [""], "diagnose": [""], "compare": [""], "export": [""], "web": [""],
        }.items():  # fmt: skip
            self.assertIn(noun, self.done("--help"))
            for verb in verbs:
                shown = self.done(*filter(None, [noun, verb]), "--help")
                asks = ("--server", "SIS_TOKEN_FILE") if noun != "compare" else ("--positions", "3 a fault found")
                for part in ("Examples:", f"sisctl {noun} {verb}".rstrip(), *asks):
                    self.assertIn(part, shown)
        self.assertEqual(self.done("--version"), f"sisctl {sis.__version__}\n")

    def test_completion(self):
        for words, completed in (
            ("sisctl se", ["sequence", "server"]), ("sisctl run d", ["delete"]), ("sisctl run show ", ["r"])
        ):  # fmt: skip
            asked = {"_SISCTL_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
            with mock.patch.dict(os.environ, asked):
                self.assertEqual(self.done().split(), completed)

    def test_tables(self):
        for words, pattern in (
            (["run", "list"], r"(?m)^r +healthy +0 +2 +5 .*sums \[x\] *$"),
            (["run", "show", "r"], r"(?s)top-K +4 .*task +sums \[x\].*5, 1 sealed, \d unread.*last draw +2"),
            (["run", "inspect", "r"], r"(?s)SEQUENCE .*LARGEST \|LOG W\|.*MOST REJECTED FIRST"),
            (["server", "show"], r"sis_server \d+\.\d+\.\d+  serving  for .* backend .*\n  cache .*\n  recorded "),
            (["step", "list", "r"], r"DRAW +ENDED +TOKENS.*MISSING *\n +1 .*\n +2 .*\n$"),
            (["step", "show", "r"], r"(?s)draw +2 .*masked +2 .*missing: never arrived +3.*TOP-K.*plain .*AGE +TOKENS"),
            (["step", "show", "r", "1"], r"draw +1 "),
            (["sequence", "list", "r"], r"(?m)^gap +2 +6 +2 +no +(yes|no) +4 +\d+ *$"),
            (["sequence", "show", "r", "a"], r"(?m)^ +0  #\d+ +\S.*[+-]\d\.\d{4} "),
            (["sequence", "show", "r", "a"], r"(?m)^ +2  #\d+ +not in the loss"),
            (["sequence", "show", "r", "never"], r"(?m)^ +0-2 +missing: never arrived"),
            (["top", "--once"], r"(?s)sis_server .*\nr +\S.* 2 .*sums \[x\]"),
            (["top", "r", "--once"], r"(?s)sis_server .*accept rate +\d.*[▁█].*never arrived.*DRAW.*plain.*TOP-K"),
        ):  # fmt: skip
            shown = self.done(*words)
            self.assertRegex(shown, pattern, words)
            self.assertNotRegex(shown, r"\x1b|\bnan\b", words)
        for draw, step in self.client.list_steps(self.run_).items():
            totals = step.totals
            numbers = rf"(?m)^ +{draw} .* {100 * totals.accept_rate:.1f}% .* {totals.mean_d:.3g} +{totals.mean_d_sis:.3g} "
            for words in (["step", "list", "r"], ["top", "r", "--once"]):
                self.assertRegex(self.done(*words), numbers)

    def test_json_is_what_the_client_returns(self):
        status = self.client.list_runs()[0]
        told = self.json("run", "show", "r")
        self.assertEqual(told["run"]["config"]["task"], "sums [x]")
        self.assertEqual((told["verdict"], told["last_draw"]), (status.verdict.name.lower(), 2))
        self.assertEqual(self.json("run", "list"), {"runs": [told], "unanswered": []})
        steps = self.json("step", "list", "r")["steps"]
        self.assertEqual([step["draw"] for step in steps], [1, 2])
        self.assertEqual(self.json("step", "list", "r", "--last", "1")["steps"], steps[1:])
        self.assertEqual({**self.json("step", "show", "r"), "distributions": None}, steps[-1])
        self.assertEqual(steps[0]["totals"], vars(self.client.list_steps(self.run_, draws=[1])[1].totals))
        self.assertEqual(steps[0]["missing"], {"never_arrived": 3})
        listed = self.json("sequence", "list", "r")
        self.assertEqual([found["sequence"]["id"] for found in listed["sequences"]], ["a", "b", "c", "d", "gap"])
        self.assertIs(listed["store_keeps_evicted"], False)
        kept = self.client.inspect_sequence(self.run_, "a")
        self.assertEqual(self.json("sequence", "show", "r", "a")["decisions"], kept.decisions.tolist())
        self.assertEqual(len(self.json("run", "inspect", "r")["sequences"]), 3)
        (server,) = self.json("server", "show")
        self.assertEqual((server["address"], server["state"]["ready"]), (self.server.address, True))

    def test_a_draw_of_which_everything_is_missing_has_no_means(self):
        server = self.enterContext(LiveServer(cache_bytes=16 << 20))
        rows = np.full((3, TOP_K), -1, np.float32)
        with sis.Client(server.address) as client:
            self.assertRegex(self.done("top", "--once", server=server.address), "No runs yet")
            run = client.create_run("r", seed=1, vocabulary_size=9, top_k=TOP_K)
            self.assertIn("no draw has been evaluated", self.sisctl("step", "show", "r", server=server.address)[2])
            client.evaluate(
                run, [sis.Slice("never", 0, 3)], draw=1, log_probs=rows, sampled_log_probs=rows[:, 0],
                prefix_curve=(1, 2),
            )  # fmt: skip
        for words in (["step", "show", "r"], ["step", "list", "r"], ["top", "--once"], ["top", "r", "--once"]):
            shown = self.done(*words, server=server.address)
            self.assertRegex(shown, r" - ", words)
            self.assertNotIn("nan", shown)
        self.assertIsNone(self.json("step", "show", "r", server=server.address)["prefix_curve"][0].get("mean"))

    def test_texts_of_tokens(self):
        kept = self.client.inspect_sequence(self.run_, "a")
        names = {token: text.replace("Ġ", " ").replace("Ċ", "\\n") for text, token in TEXTS.items()}
        for given in ("", self.tokenizer.read_text()):
            words = ["sequence", "show", "r", "a", "--tokenizer", "-" if given else self.tokenizer]
            shown = self.done(*words, given=given)
            for token in kept.sampled_ids.tolist():
                self.assertIn(f'"{names[token]}" #{token}', shown)
            self.assertIn("".join(names[token] for token in kept.sampled_ids.tolist()), shown.replace("\\n\n", "\\n"))
        self.assertRegex(self.done("run", "inspect", "r", "--tokenizer", self.tokenizer), '" w[0-9]+" #[0-9]+')

    def test_export(self):
        expected = [json.loads(line) for line in self.done("export", "r").splitlines()]
        self.assertEqual(len(expected), 4 * LENGTH + 6)
        gap = [row for row in expected if row["sequence"] == "gap"]
        self.assertEqual([row["missing"] for row in gap], [None, *["never_arrived"] * 4, None])
        # Values, which export_test compares in Parquet, come as they are.
        records = self.client.fetch_top_k(self.run_, ["a"])
        for index, row in enumerate(expected[:LENGTH]):
            self.assertEqual((row["position"], row["ids"]), (index, records.ids[index].tolist()))
            self.assertEqual(np.float32(row["log_probs"]).tolist(), records.log_probs[index].tolist())
        file = self.folder / "run.csv"
        self.assertEqual(self.done("export", "r", file), f"wrote {len(expected)} positions of 5 sequences to {file}\n")
        with open(file, newline="", encoding="utf-8") as opened:
            rows = list(csv.DictReader(opened))
        text = lambda value: "" if value is None else value if isinstance(value, str) else json.dumps(value)
        self.assertEqual(rows, [{key: text(value) for key, value in row.items()} for row in expected])
        self.assertEqual(self.done("export", "r", "-f", "csv"), file.read_bytes().decode())

    def test_refusals(self):
        down = "127.0.0.1:1"
        for words, code, pattern in (
            (["nonsense"], 2, "No such command"),
            (["run", "show"], 2, "Missing argument"),
            (["run", "list", "-o", "yaml"], 2, "yaml"),
            (["step", "show", "r", "first"], 2, "'first' is neither a number nor latest"),
            (["top", "--interval", "0"], 2, "interval"),
            (["export", "r", "run.txt"], 2, "ends in none of parquet, csv, json"),
            (["run", "show", "nowhere"], 1, r"^sisctl: run 'nowhere' is unknown \(NOT_FOUND\)\n$"),
            (["step", "show", "r", "99"], 1, r"^sisctl: draw 99 .*\(NOT_FOUND\)\n$"),
            (["sequence", "show", "r", "c"], 1, "no evaluated values are kept"),
            (["sequence", "show", "r", "a", "--tokenizer", "none"], 1, "^sisctl: --tokenizer: none: No such file"),
            (["sequence", "show", "r", "a", "--tokenizer", os.devnull], 1, f"--tokenizer: {os.devnull}: not a tokenizer.json"),
            (["export", "r", "/nowhere/run.csv"], 1, "^sisctl: /nowhere/run.csv: No such file"),
            (["run", "list", "--server", down], 1, r"^sisctl: .*\(UNAVAILABLE\)\nDoes sis_server run there\?.*\n$"),
            (["run", "list", "--server", f"{down},{down}"], 1, "each once"),
            (["run", "list", "--server", ""], 1, "at least one"),
            (["SIS_TOKEN_FILE=nowhere", "run", "list"], 1, "nowhere"),
            ([f"SIS_CA_FILE={os.devnull}", "run", "list"], 1, f"{os.devnull} is empty"),
        ):  # fmt: skip
            environment = dict(word.split("=") for word in words if word.startswith("SIS_"))
            with mock.patch.dict(os.environ, environment):
                result, out, err = self.sisctl(*words[len(environment) :])
            self.assertEqual((result, out), (code, ""), words)
            self.assertRegex(err, pattern, words)
            self.assertNotIn("Traceback", err, words)

    def test_a_server_that_gives_no_answer_is_named(self):
        for words in (["run", "list"], ["run", "show", "r"], ["step", "show", "r"], ["sequence", "list", "r"]):
            code, out, err = self.sisctl(*words, server=f"{self.server.address},127.0.0.1:1")
            self.assertEqual((code, out), (1, self.done(*words)), words)
            self.assertIn("127.0.0.1:1 gives no answer, and what it holds is not shown", err)
        # The run may be on the unreachable server.
        code, _, err = self.sisctl("run", "show", "nowhere", server=f"{self.server.address},127.0.0.1:1")
        self.assertRegex(err, r"'nowhere' is unknown; 127.0.0.1:1 gives no answer")
        told = self.sisctl("run", "list", "-o", "json", server=f"{self.server.address},127.0.0.1:1,127.0.0.1:2")
        self.assertEqual(json.loads(told[1])["unanswered"], [1, 2])
        code, out, err = self.sisctl("top", "--once", server=f"{self.server.address},127.0.0.1:1")
        self.assertRegex(out, r"127.0.0.1:1  no answer: ")
        self.assertEqual(code, 1)

    def test_looking_changes_nothing(self):
        """Showing a sequence does not count as reading it, and does not open its run on a server that lacks the run."""
        other = self.enterContext(LiveServer(cache_bytes=16 << 20))
        unread = self.client.list_runs()[0].unread_sequences
        both = f"{self.server.address},{other.address}"
        for words in (["run", "show", "r"], ["step", "list", "r"], ["sequence", "list", "r"], ["run", "inspect", "r"]):
            self.done(*words, server=both)
        self.assertEqual(self.client.list_runs()[0].unread_sequences, unread)
        with sis.Client(other.address) as client:
            self.assertEqual(client.list_runs(), [])

    def test_delete(self):
        server = self.enterContext(LiveServer(cache_bytes=16 << 20))
        with sis.Client(server.address) as client:
            for name in ("r1", "r2"):
                client.create_run(name, seed=1, vocabulary_size=9, top_k=2)
            for words, given, code, left in (
                (["r1"], "n\n", 1, ["r1", "r2"]),
                (["r1", "--yes", "--incarnation", "2"], "", 0, ["r1", "r2"]),
                (["r1", "--incarnation", "1"], "y\n", 0, ["r2"]),
                (["r2", "--yes"], "", 0, []),
                (["r2", "--yes"], "", 0, []),
            ):
                self.assertEqual(self.sisctl("run", "delete", *words, server=server.address, given=given)[0], code)
                self.assertEqual([status.run.id for status in client.list_runs()], left, words)
        self.assertEqual(self.json("run", "delete", "r2", "--yes", server=server.address), {"deleted": False})

    def test_a_terminal(self):
        """Colours, columns that fit, and a live view that Ctrl-C ends."""
        for words, columns, pattern, missing in (
            (["sequence", "show", "r", "a"], 100, r"\x1b\[(32|31|35)m", "\0"),
            (["run", "list"], 60, r"\x1b\[1mRUN", "OWNER"),
            (["top", "--interval", "0.1"], 100, r"(?s)\x1b\[\?1049h.*sis_server.*sis_server.*sums", "\0"),
        ):
            ours, its = pty.openpty()
            environment = {**os.environ, "TERM": "xterm", "COLUMNS": str(columns), "LINES": "50"}
            environment.pop("NO_COLOR", None)
            command = [sys.executable, "-m", "sis.cli", *words, "--server", self.server.address]
            process = subprocess.Popen(command, stdin=its, stdout=its, stderr=its, env=environment)
            os.close(its)
            shown, deadline = b"", time.monotonic() + 60
            while time.monotonic() < deadline and not re.search(pattern, shown.decode(errors="replace")):
                try:
                    shown += os.read(ours, 1 << 16)
                except OSError:  # it has ended
                    break
            self.assertRegex(shown.decode(errors="replace"), pattern)
            self.assertNotIn(missing, shown.decode(errors="replace"))
            if words[0] == "top":
                process.send_signal(signal.SIGINT)
                with contextlib.suppress(OSError):
                    while part := os.read(ours, 1 << 16):
                        shown += part
                self.assertIn(b"\x1b[?1049l", shown)
            self.assertEqual(process.wait(timeout=60), 0)
            os.close(ours)


if __name__ == "__main__":
    unittest.main()
