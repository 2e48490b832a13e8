"""sisctl as people call it: subcommands, help, exit codes."""

import json
import math
import pathlib
import random
import re
import subprocess
import tempfile
import unittest

from server.testing.live_server import LiveServer

SISCTL = pathlib.Path("client/cli/sisctl")
TESTDATA = pathlib.Path("client/recorded/testdata")


def sisctl(*words, given=""):
    return subprocess.run([SISCTL, *words], input=given, capture_output=True, text=True, timeout=60)


class SisctlTest(unittest.TestCase):
    def live(self):
        """The flag that names a server without runs."""
        server = LiveServer(cache_bytes=16 << 20)
        self.addCleanup(server.close)
        return f"--server={server.address}"

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
        for name in (*runs, "step RUN DRAW", "top RUN", "sequences RUN", "diagnose RUN", "compare A B", "--server"):
            self.assertIn(name, overview)
        self.assertIn("--vocabulary_size", self.done("runs", "create", "--help"))
        self.assertIn("unscored", self.done("compare", "--help"))

    def test_version(self):
        source = pathlib.Path("proto/version.h").read_text()
        [version] = re.findall(r'kVersion\[\] = "(.*)"', source)
        self.assertEqual(self.done("--version"), f"sisctl {version}\n")

    def test_runs_create(self):
        flags = ("--seed=3", "--vocabulary_size", "1000", "--top_k=5", "--max_staleness=2", self.live())
        created = json.loads(self.done("runs", "create", "r1", *flags, "--json"))
        self.assertEqual(created, {"incarnation": "1", "created": True})
        self.assertEqual(self.done("runs", "create", "r1", *flags), "run r1, incarnation 1, was there\n")
        self.assertEqual(self.done("runs", "create", "r2", *flags), "run r2, incarnation 1, created\n")

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

    def test_runs_list(self):
        nothing = {"runs": [], "unanswered": []}
        nothing.update(dict.fromkeys(["all_runs", "containing_runs", "worth_a_look", "broken"], 0))
        live = self.live()
        self.assertEqual(json.loads(self.done(live, "runs", "list", "--json")), nothing)
        self.assertIn("INCARNATION", self.done("runs", "list", live, "--nojson"))

    def test_runs_list_says_whose_they_are(self):
        with tempfile.TemporaryDirectory() as folder:
            token, identities = pathlib.Path(folder, "token"), pathlib.Path(folder, "identities")
            token.write_text("0123456789abcdef")
            identities.write_text("token 0123456789abcdef alice trainer\n")
            server = LiveServer(f"--identities={identities}", cache_bytes=16 << 20)
            self.addCleanup(server.close)
            of_alice = (f"--server={server.address}", f"--token_file={token}", "runs")
            created = ("create", "r1", "--vocabulary_size=1000", "--top_k=5", "--task=math")
            self.done(*of_alice, *created)
            header, row = self.done(*of_alice, "list").splitlines()
            self.assertEqual(header.split()[-2:], ["OWNER", "TASK"])
            self.assertEqual(row.split()[-2:], ["alice", "math"])

    def test_top(self):
        server = LiveServer(cache_bytes=16 << 20)
        self.addCleanup(server.close)
        top = (f"--server={server.address}", "top", "--once")
        self.assertIn("No runs yet", self.done(*top))
        self.done(top[0], "runs", "create", "r1", "--vocabulary_size=1000", "--top_k=5", "--task=sums")
        shown = self.done(*top)
        self.assertRegex(shown, r"sis_server \d+\.\d+\.\d+  serving  for \d+ s  backend ")
        self.assertRegex(shown, r"(?m)^r1 +healthy +0 +- +- .* sums$")
        shown = self.done(*top, "r1")
        self.assertIn("Nothing evaluated yet", shown)
        self.assertIn("top-K 5", shown)
        self.refused(1, "run 'nowhere' is unknown", *top, "nowhere")
        both = f"{top[0]},127.0.0.1:1"
        result = sisctl(both, "top", "--once")
        self.assertEqual(result.returncode, 1)
        self.assertRegex(result.stdout, r"server 1  sis_server .*\n.*\n.*\nserver 2  no answer: ")
        self.assertIn("server 2 of 2 gives no answer", result.stderr)
        self.refused(2, "--interval", "top", "--interval=0")

    def test_several_replicas(self):
        addresses = []
        for _ in range(2):
            server = LiveServer(cache_bytes=16 << 20)
            self.addCleanup(server.close)
            addresses.append(server.address)
        both = f"--server={','.join(addresses)}"
        self.done(both, "runs", "create", "r1", "--vocabulary_size=1000", "--top_k=5", "--evict_unread", "--mass=0.97")
        config = json.loads(self.done(both, "runs", "get", "r1", "--json"))["config"]
        self.assertEqual((config["evict_unread"], config["mass"]), (True, 0.97))
        self.assertRegex(self.done(both, "runs", "get", "r1"), r"(?m)^mass +0\.97$")
        for server in (both, *(f"--server={address}" for address in addresses)):
            self.assertEqual([r["run_id"] for r in json.loads(self.done(server, "runs", "list", "--json"))["runs"]], ["r1"])
        self.refused(1, "each once", f"--server={addresses[0]},{addresses[0]}", "runs", "list")

    def test_a_replica_that_is_down_is_said(self):
        """What the others know is shown; that it may not be all stands beside it, also for programs."""
        server = LiveServer(cache_bytes=16 << 20)
        self.addCleanup(server.close)
        alone = f"--server={server.address}"
        self.done(alone, "runs", "create", "r1", "--vocabulary_size=1000", "--top_k=5")
        for words in (("runs", "list"), ("runs", "get", "r1"), ("show", "r1")):
            result = sisctl(f"{alone},127.0.0.1:1", *words)
            self.assertEqual(result.returncode, 1, words)
            self.assertEqual(result.stdout, self.done(alone, *words))
            self.assertIn("server 2 of 2 gives no answer, and what it holds is not shown", result.stderr)
        result = sisctl(f"{alone},127.0.0.1:1,127.0.0.1:2", "runs", "list", "--json")
        told = json.loads(result.stdout)
        whole = json.loads(self.done(alone, "runs", "list", "--json"))
        self.assertEqual((told.pop("unanswered"), whole.pop("unanswered")), ([1, 2], []))
        self.assertEqual(told, whole)
        for number in (2, 3):
            self.assertIn(f"server {number} of 3 gives no answer", result.stderr)

    def test_what_is_not_found_may_be_where_nobody_answers(self):
        live = self.live()
        self.refused(1, "'nowhere' is unknown (NOT_FOUND)", live, "step", "nowhere", "3")
        for draw in ("3", "latest"):
            message = r"'nowhere' is unknown; server 2 of 2 gives no answer, and what it holds is not shown"
            self.refused(1, message, f"{live},127.0.0.1:1", "step", "nowhere", draw)

    def test_standard_input_in_the_place_of_a_file(self):
        files = [TESTDATA / f"smollm2_{name}.jsonl" for name in ("float32", "4_bit")]
        whole = self.done("compare", *files)
        for words in (("-", files[1]), (files[0], "-")):
            given = files[words.index("-")].read_text()
            result = sisctl("compare", *words, given=given)
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertEqual(result.stdout, whole.replace(str(files[words.index("-")]), "-"))
        self.refused(1, "standard input: can't be read, or is empty", "compare", "-", files[1])
        self.refused(1, "standard input: can't be read, or is empty", self.live(), "show", "r", "--tokenizer=-")
        with tempfile.TemporaryDirectory() as folder:
            identities = pathlib.Path(folder, "identities")
            identities.write_text("token 0123456789abcdef alice trainer\n")
            server = LiveServer(f"--identities={identities}", cache_bytes=16 << 20)
            self.addCleanup(server.close)
            words = (f"--server={server.address}", "--token_file=-", "runs", "list")
            for given in ("0123456789abcdef\n", " 0123456789abcdef of alice\n"):
                self.assertEqual(sisctl(*words, given=given).returncode, 0)
            # None is not the same as not to say who one is.
            open_to_all = (self.live(), *words[1:])
            for given in ("", " \n", "\u00e9\n"):
                refused = sisctl(*open_to_all, given=given)
                self.assertEqual(refused.returncode, 1)
                self.assertIn("standard input holds no token", refused.stderr)
                self.assertIn("INVALID_ARGUMENT", refused.stderr)
            self.assertIn("UNAUTHENTICATED", sisctl(*words, given="fedcba9876543210\n").stderr)

    def test_compare_prints_verdict_evidence_and_positions(self):
        files = [TESTDATA / f"smollm2_{name}.jsonl" for name in ("float32", "4_bit")]
        report = self.done("compare", *files, "--positions=3")
        self.assertIn("6 sequences, 157 positions in the same context", report)
        self.assertIn("No fault was found. D is 0.05", report)
        self.assertRegex(report, r"ok +Is the same temperature applied\? +0 ")
        self.assertRegex(report, r"accept rate +0\.[0-9]{6} +0\.[0-9]{6}")
        table = report[report.index("the 3 positions with the largest"):].splitlines()
        self.assertEqual(len(table), 5)
        self.assertNotIn("positions with the largest", self.done("compare", *files, "--positions=0"))
        self.assertIn("all positions", self.done("compare", *files, "--positions=1000"))

    def test_compare_names_a_fault(self):
        files = [TESTDATA / f"smollm2_{name}.jsonl" for name in ("4_bit", "float32_temperature_0.7")]
        result = sisctl("compare", *files)
        self.assertEqual(result.returncode, 3, result.stderr)
        self.assertEqual(result.stderr, "")
        self.assertIn("B looks like A at temperature 0.70", result.stdout)
        self.assertIn("FAULT  Is the same temperature applied?", result.stdout)
        report = json.loads(sisctl("compare", *files, "--json").stdout)
        self.assertTrue(report["fault"])
        faults = [check["name"] for check in report["checks"] if check["outcome"] == "fault"]
        self.assertEqual(faults, ["temperature"])

    def recordings(self, folder, count, of_a, of_b):
        """Files of vLLM's: of the first `count` positions, each the whole list of 600 tokens, of
        which the sampled ones are far down, or its `of_a`, `of_b` most probable besides them."""
        generator = random.Random(1)
        files = []
        for name, listed, noise in (("a", of_a, 0.0), ("b", of_b, 0.01)):
            positions, sampled = [], []
            for position in range(count):
                values = [-0.01 * token + generator.gauss(0, noise) for token in range(600)]
                total = math.log(sum(map(math.exp, values)))
                own = 300 + 7 * position
                best = sorted(range(600), key=lambda token: -values[token])[:listed]
                tokens = [own, *(token for token in best if token != own)]
                positions.append({token: {"logprob": values[token] - total} for token in tokens})
                sampled.append(own)
            file = pathlib.Path(folder, f"{name}.json")
            file.write_text(json.dumps({"token_ids": sampled, "logprobs": positions}))
            files.append(file)
        return files

    def test_compare_looks_tokens_up_in_whole_lists_and_says_what_k_it_used(self):
        with tempfile.TemporaryDirectory() as folder:
            files = self.recordings(folder, 8, of_a=20, of_b=600)
            report = json.loads(self.done("compare", *files, "--json"))
            self.assertEqual(report["left_out"], [])
            self.assertEqual((report["a_to_b"]["top_k"], report["b_to_a"]["top_k"]), (20, 512))
            self.assertEqual(report["d"]["positions"], 8)
            said = "Of the 600 tokens that B lists a record holds the 512 most probable"
            page = pathlib.Path(folder, "compare.html")
            text = self.done("compare", *files, f"--html={page}")
            self.assertRegex(text, r"K, tokens per record +20 +512\n")
            for told in (text, page.read_text(), str(report["notes"])):
                self.assertIn(said, told)
            text = self.done("compare", *files, "--k=550")
            where = "not the 550 asked for, where {} is the behaviour policy: {}"
            self.assertIn("K is 20, " + where.format("A", "it lists no more"), text)
            self.assertIn("K is 512, " + where.format("B", "no record holds more"), text)
            self.assertNotIn("asked for", self.done("compare", *files, "--k=20"))

    def test_compare_counts_what_it_leaves_out_for_programs_too(self):
        with tempfile.TemporaryDirectory() as folder:
            files = self.recordings(folder, 8, of_a=20, of_b=20)
            shorter = json.loads(files[1].read_text())
            shorter = {name: values[:5] for name, values in shorter.items()}
            files[1].write_text(json.dumps(shorter))
            report = json.loads(self.done("compare", *files, "--json"))
        self.assertEqual(
            report["left_out"], [{"name": "only_a", "positions": 3, "reason": "that only A has"}]
        )

    def test_a_page_of_too_little_is_not_called_clear(self):
        with tempfile.TemporaryDirectory() as folder:
            files = self.recordings(folder, 1, of_a=20, of_b=20)
            other = json.loads(files[1].read_text())
            for entry in other["logprobs"][0].values():
                entry["logprob"] -= 2
            files[1].write_text(json.dumps(other))
            page = pathlib.Path(folder, "compare.html")
            text = self.done("compare", *files, f"--html={page}")
            self.assertIn("Whether there is a fault can't be told", text)
            shown = re.search(r'<section id="verdict" class="(\w+)">', page.read_text())
            self.assertEqual(shown[1], "undecided")
            self.assertTrue(json.loads(self.done("compare", *files, "--json"))["undecided"])

    def test_compare_writes_a_page_that_needs_no_other_file(self):
        files = [TESTDATA / f"smollm2_{name}.jsonl" for name in ("float32", "4_bit")]
        with tempfile.TemporaryDirectory() as folder:
            page = pathlib.Path(folder, "compare.html")
            text = self.done("compare", *files, f"--html={page}")
            self.assertIn("No fault was found", text)
            html = page.read_text()
            self.assertIn("No fault was found", html)
            self.assertNotRegex(html, r"(src|href)=|@import|url\(")
            data = re.search(r'id="data">(.*?)</script>', html, re.DOTALL).group(1)
            sequences = json.loads(data)["sequences"]
            self.assertEqual(len(sequences), 6)
            for there, back in sequences:
                self.assertEqual(len(there["decisions"]), len(back["decisions"]))
                self.assertEqual(there["sampledIds"], back["sampledIds"])
            self.refused(1, "can't be written", "compare", *files, f"--html={folder}")

    def test_compare_reads_every_format(self):
        names = ("llama_cpp", "llama_cpp_probabilities", "openai", "openai_completion", "sglang",
                 "vllm_dictionaries", "vllm_flat", "vllm_outputs", "vllm_token_ids")
        for name in names:
            file = TESTDATA / f"{name}.json"
            summary = json.loads(self.done("compare", file, file, "--json"))["a_to_b"]
            self.assertGreaterEqual(summary["positions"], 2, name)
            self.assertEqual(summary["rejected"], 0, name)
        # The same recording in other formats is the same.
        reports = [
            json.loads(self.done("compare", TESTDATA / f"{a}.json", TESTDATA / f"{b}.json", "--json"))
            for a, b in (("sglang", "vllm_dictionaries"), ("vllm_flat", "vllm_outputs"),
                         ("vllm_dictionaries", "openai_completion"))
        ]
        for report in reports:
            self.assertEqual(report["d"]["mean"], 0)

    def test_failures(self):
        live = self.live()
        self.refused(1, "'nowhere' is unknown", live, "runs", "get", "nowhere")
        self.refused(1, "'nowhere' is unknown", live, "step", "nowhere", "3")
        self.refused(1, "within 3s, without TLS", "--server=127.0.0.1:1", "runs", "list")
        self.refused(1, "top_k", live, "runs", "create", "r", "--vocabulary_size=9", "--top_k=100000")

    def test_bad_recordings(self):
        good = TESTDATA / "llama_cpp.json"
        with tempfile.TemporaryDirectory() as folder:
            bad = pathlib.Path(folder, "bad.json")
            bad.write_text(good.read_text()[:-20])
            self.refused(1, f"{bad}: not JSON", "compare", bad, good)
            self.refused(1, "holds 6 sequences", "compare", TESTDATA / "smollm2_4_bit.jsonl", good)
            missing = pathlib.Path(folder, "missing.json")
            for name in (missing, folder):
                self.refused(1, f"{name}: can't be read", "compare", good, name)

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
        self.refused(2, "SHELL is required", "completion")
        self.refused(2, "only one of them can be standard input", "compare", "-", "-")
        self.refused(2, "B is required", "compare", "x")

    def test_the_last_of_an_option_given_twice_counts(self):
        flags = ("--vocabulary_size=9", self.live())
        self.refused(1, "top_k", "runs", "create", "r", "--top_k=2", "--top_k=100000", *flags)
        self.done("runs", "create", "r", "--top_k=100000", "--top_k=2", *flags)

    def test_names_of_subcommands_are_names_of_runs_too(self):
        live = self.live()
        for name in ("runs", "list", "step"):
            self.refused(1, f"'{name}' is unknown", live, "runs", "get", name)
            self.refused(1, f"'{name}' is unknown", live, "step", name, "3")


if __name__ == "__main__":
    unittest.main(verbosity=2)
