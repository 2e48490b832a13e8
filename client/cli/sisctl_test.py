"""sisctl as people call it: subcommands, help, exit codes."""

import json
import pathlib
import subprocess
import tempfile
import unittest

from server.testing.live_server import LiveServer

SISCTL = pathlib.Path("client/cli/sisctl")
TESTDATA = pathlib.Path("client/cli/testdata")


def sisctl(*words):
    return subprocess.run([SISCTL, *words], capture_output=True, text=True, timeout=60)


class SisctlTest(unittest.TestCase):
    def done(self, *words):
        result = sisctl(*words)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(result.stderr, "")
        return result.stdout

    def refused(self, returncode, message, *words):
        result = sisctl(*words)
        self.assertEqual(result.returncode, returncode, result.stdout + result.stderr)
        self.assertEqual(result.stdout, "")
        self.assertIn(message, result.stderr)

    def test_help(self):
        overview = self.done("--help")
        runs = ("runs list", "runs get RUN", "runs create RUN", "runs delete RUN")
        for name in (*runs, "step RUN DRAW", "top RUN", "replay", "--server", "--embedded"):
            self.assertIn(name, overview)
        self.assertIn("--vocabulary_size", self.done("runs", "create", "--help"))
        self.assertIn("unscored", self.done("replay", "--help"))

    def test_runs_create(self):
        flags = ("--seed=3", "--vocabulary_size", "1000", "--top_k=5", "--max_staleness=2", "--embedded")
        created = json.loads(self.done("runs", "create", "r1", *flags, "--json"))
        self.assertEqual(created, {"incarnation": "1", "created": True})
        self.assertEqual(self.done("runs", "create", "r1", *flags), "run r1, incarnation 1, created\n")

    def test_runs_delete(self):
        server = LiveServer(cache_bytes=16 << 20)
        self.addCleanup(server.close)
        live = f"--server={server.address}"

        def run_ids():
            listed = json.loads(self.done(live, "runs", "list", "--json"))
            return [run["run_id"] for run in listed["runs"]]

        for run in ("r1", "r2"):
            self.done(live, "runs", "create", run, "--vocabulary_size=1000", "--top_k=5")
        delete = (live, "runs", "delete")
        self.assertEqual(self.done(*delete, "r1", "--incarnation=2"), "run r1, was not there\n")
        self.assertEqual(run_ids(), ["r1", "r2"])
        self.assertEqual(self.done(*delete, "r1", "--incarnation=1"), "run r1, deleted\n")
        self.assertEqual(json.loads(self.done(*delete, "r2", "--json")), {"deleted": True})
        self.assertEqual(json.loads(self.done(*delete, "r2", "--json")), {"deleted": False})
        self.assertEqual(run_ids(), [])
        # What a replay needs of the server it leaves as it was.
        file = TESTDATA / "llama_cpp.json"
        self.done(live, "replay", f"--behavior={file}", f"--current={file}")
        self.assertEqual(run_ids(), [])

    def test_runs_list(self):
        self.assertEqual(json.loads(self.done("--embedded", "runs", "list", "--json")), {"runs": []})
        self.assertIn("INCARNATION", self.done("runs", "list", "--embedded", "--nojson"))

    def test_top(self):
        server = LiveServer(cache_bytes=16 << 20)
        self.addCleanup(server.close)
        top = (f"--server={server.address}", "top", "--once")
        self.assertIn("No runs yet", self.done(*top))
        self.done(top[0], "runs", "create", "r1", "--vocabulary_size=1000", "--top_k=5", "--task=sums")
        shown = self.done(*top)
        self.assertRegex(shown, r"sis_server \d+\.\d+\.\d+  serving  for \d+ s  backend ")
        self.assertRegex(shown, r"(?m)^r1 +0 +- +- .* sums$")
        shown = self.done(*top, "r1")
        self.assertIn("Nothing evaluated yet", shown)
        self.assertIn("top-K 5", shown)
        self.refused(1, "run 'nowhere' is unknown", *top, "nowhere")
        both = f"{top[0]},127.0.0.1:1"
        self.assertRegex(self.done(both, "top", "--once"), r"server 1  sis_server .*\n.*\n.*\nserver 2  no answer: ")
        self.refused(2, "--interval", "top", "--interval=0")

    def test_several_replicas(self):
        addresses = []
        for _ in range(2):
            server = LiveServer(cache_bytes=16 << 20)
            self.addCleanup(server.close)
            addresses.append(server.address)
        both = f"--server={','.join(addresses)}"
        self.done(both, "runs", "create", "r1", "--vocabulary_size=1000", "--top_k=5", "--evict_unread")
        self.assertTrue(json.loads(self.done(both, "runs", "get", "r1", "--json"))["config"]["evict_unread"])
        for server in (both, *(f"--server={address}" for address in addresses)):
            self.assertEqual([r["run_id"] for r in json.loads(self.done(server, "runs", "list", "--json"))["runs"]], ["r1"])
        file = TESTDATA / "llama_cpp.json"
        replay = ("replay", f"--behavior={file}", f"--current={file}", "--json")
        self.assertEqual(self.done(both, *replay), self.done("--embedded", *replay))
        self.refused(1, "each once", f"--server={addresses[0]},{addresses[0]}", "runs", "list")

    def test_replay_prints_a_table(self):
        file = TESTDATA / "llama_cpp.json"
        table = self.done("--embedded", "replay", f"--behavior={file}", f"--current={file}")
        rows = dict(line.rsplit(maxsplit=1) for line in table.splitlines())
        self.assertEqual(rows["positions"], "2")
        self.assertEqual(rows["accepted"], "1")
        self.assertEqual(rows["outside top-K"], "1")
        self.assertEqual(rows["accept rate"], "0.500000")

    def test_replay_reads_every_format(self):
        for name in ("llama_cpp", "openai", "vllm_token_ids"):
            file = TESTDATA / f"{name}.json"
            summary = json.loads(self.done("--embedded", "replay", f"--behavior={file}", f"--current={file}", "--json"))
            self.assertEqual(summary["positions"], 2, name)
            self.assertEqual(summary["rejected"], 0, name)

    def test_failures(self):
        self.refused(1, "'nowhere' is unknown", "--embedded", "runs", "get", "nowhere")
        self.refused(1, "'nowhere' is unknown", "--embedded", "step", "nowhere", "3")
        self.refused(1, "no server answered", "--server=127.0.0.1:1", "runs", "list")
        self.refused(1, "top_k", "--embedded", "runs", "create", "r", "--vocabulary_size=9", "--top_k=100000")

    def test_bad_recordings(self):
        good = TESTDATA / "llama_cpp.json"
        with tempfile.TemporaryDirectory() as folder:
            bad = pathlib.Path(folder, "bad.json")
            bad.write_text(good.read_text()[:-20])
            self.refused(1, f"{bad}: not JSON", "--embedded", "replay", f"--behavior={bad}", f"--current={good}")
            bad.write_text('{"logprobs": {"content": []}}')
            words = ("--embedded", "replay", f"--behavior={bad}", f"--current={good}")
            self.refused(1, "lists no top_logprobs", *words)
            missing = pathlib.Path(folder, "missing.json")
            for name in (missing, folder):
                words = ("--embedded", "replay", f"--behavior={good}", f"--current={name}")
                self.refused(1, f"{name}: can't be read", *words)

    def test_wrong_usage(self):
        self.refused(2, "subcommand is required")
        self.refused(2, "subcommand is required", "runs")
        self.refused(2, "not expected: ", "run", "list")
        self.refused(2, "not expected: extra", "runs", "list", "extra")
        self.refused(2, "not expected: --frobnicate", "runs", "list", "--frobnicate")
        self.refused(2, "not expected: --nofrobnicate", "runs", "list", "--nofrobnicate")
        self.refused(2, "not expected: --behavior", "runs", "list", "--behavior=x")
        self.refused(2, "--top_k: 1 required", "runs", "create", "r", "--top_k")
        self.refused(2, '--top_k: "x" is not a valid value', "runs", "create", "r", "--top_k=x")
        for seed in ("-1", str(2**64)):
            self.refused(2, f'--seed: "{seed}" is not a valid value', "runs", "create", "r", f"--seed={seed}")
        self.refused(2, "--vocabulary_size is required", "runs", "create", "r", "--top_k=2")
        self.refused(2, "--top_k", "runs", "create", "r", "--top_k=0", "--vocabulary_size=9")
        self.refused(2, "float32,float16,fixed12", "runs", "create", "r", "--log_prob_encoding=fixed13")
        self.refused(2, "RUN is required", "runs", "get")
        self.refused(2, "RUN is required", "runs", "delete")
        self.refused(2, "DRAW is required", "step", "r")
        self.refused(2, "DRAW", "step", "r", "last")
        self.refused(2, "--current is required", "replay", "--behavior=x")

    def test_the_last_of_an_option_given_twice_counts(self):
        flags = ("--vocabulary_size=9", "--embedded")
        self.refused(1, "top_k", "runs", "create", "r", "--top_k=2", "--top_k=100000", *flags)
        self.done("runs", "create", "r", "--top_k=100000", "--top_k=2", *flags)

    def test_names_of_subcommands_are_names_of_runs_too(self):
        for name in ("runs", "list", "step"):
            self.refused(1, f"'{name}' is unknown", "--embedded", "runs", "get", name)
            self.refused(1, f"'{name}' is unknown", "--embedded", "step", name, "3")


if __name__ == "__main__":
    unittest.main(verbosity=2)
