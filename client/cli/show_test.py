"""`sisctl show`, from real evaluations on two replicas to what a browser draws."""

import json
import pathlib
import re
import shutil
import subprocess
import tempfile
import unittest

import numpy as np

import sis
from server.testing.live_server import LiveServer, two_replicas

SISCTL = pathlib.Path("client/cli/sisctl")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
VOCABULARY = 32
TOP_K = 6
LENGTH = 100
SEQUENCES = [f"s{number}" for number in range(6)]
# Byte-level, as GPT-2's: token 5 is a line end, and what begins a word has a space before it.
TOKENIZER = {
    "model": {"vocab": {**{f"Ġw{token}": token for token in range(VOCABULARY)}, "Ċ": 5}},
    "decoder": {"type": "ByteLevel"},
    "added_tokens": [{"id": 7, "content": "</script><i>"}],
}


def log_softmax(seed):
    logits = np.random.default_rng(seed).normal(size=(LENGTH, VOCABULARY))
    return (logits - np.logaddexp.reduce(logits, axis=1, keepdims=True)).astype(np.float32)


def record(values, seed):
    sampled = (values + np.random.default_rng(seed).gumbel(size=values.shape)).argmax(axis=1)
    ids = np.broadcast_to(np.arange(VOCABULARY), values.shape)
    sampled_values = np.take_along_axis(values, sampled[:, None], axis=1)[:, 0]
    return sis.canonical(ids, values, sampled, sampled_values, TOP_K)


class ShowTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        servers = two_replicas(cls.addClassCleanup)
        cls.addresses = [server.address for server in servers]
        cls.client = sis.Client(cls.addresses, timeout=30)
        cls.addClassCleanup(cls.client.close)
        cls.run_ = cls.client.create_run(
            "r", seed=1, vocabulary_size=VOCABULARY, top_k=TOP_K, log_prob_encoding="float32"
        )
        behaviour = {name: log_softmax(seed) for seed, name in enumerate(SEQUENCES)}
        with cls.client.append(cls.run_, sampling=sis.Sampling("raw")) as stream:
            for seed, name in enumerate(SEQUENCES):
                stream.block(name, first_position=0, policy_version=0, **record(behaviour[name], seed)._asdict())
        cls.records = cls.client.fetch_top_k(cls.run_, SEQUENCES)
        current = np.concatenate([behaviour[name] + 0.3 * log_softmax(90 + seed) for seed, name in enumerate(SEQUENCES)])
        cls.current = (current - np.logaddexp.reduce(current, axis=1, keepdims=True)).astype(np.float32)
        log_probs, sampled_log_probs = sis.gather(cls.records, cls.current)
        cls.log_probs = log_probs
        mask = np.ones(len(cls.records), np.uint8)
        mask[40:60] = 0  # of s0
        cls.client.advance_version(cls.run_, 2)
        cls.evaluation = cls.client.evaluate(
            cls.run_, cls.records, draw=3, log_probs=log_probs, sampled_log_probs=sampled_log_probs,
            outputs=["decisions", "log_ratios", "acceptance_probabilities"],
            options=sis.EvaluateOptions(mask=mask),
        )  # fmt: skip
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.folder = pathlib.Path(folder.name)
        cls.tokenizer = cls.folder / "tokenizer.json"
        cls.tokenizer.write_text(json.dumps(TOKENIZER))

    def sisctl(self, *words, fails=False, subcommand="show", given=""):
        command = [SISCTL, f"--server={','.join(self.addresses)}", subcommand, *words]
        result = subprocess.run(command, input=given, capture_output=True, text=True, timeout=60)
        self.assertEqual(result.returncode, int(fails), result.stderr)
        return result.stderr if fails else result.stdout

    def test_the_client_sees_what_evaluate_returned(self):
        for number, name in enumerate(SEQUENCES):
            rows = slice(number * LENGTH, (number + 1) * LENGTH)
            kept = self.client.inspect_sequence(self.run_, name)
            kept_rows = slice(-kept.first_position, LENGTH - kept.first_position)
            decisions = self.evaluation.decisions[rows]
            np.testing.assert_array_equal(kept.decisions[kept_rows], decisions)
            self.assertEqual(kept.draw, 3)
            scored = decisions < sis.Decision.MISSING
            kept_ratios = kept.log_ratios[kept_rows]
            not_accepted = scored & (decisions != sis.Decision.ACCEPTED)
            np.testing.assert_array_equal(
                kept_ratios[not_accepted], self.evaluation.log_ratios[rows][not_accepted]
            )
            a = self.evaluation.acceptance_probabilities[rows]
            np.testing.assert_array_equal(kept.acceptance_probabilities[kept_rows][scored], a[scored])
            np.testing.assert_array_equal(kept.uniforms[kept_rows][scored] < a[scored], decisions[scored] == 1)
            np.testing.assert_array_equal(kept.top_k_ids[kept_rows], self.records.ids[rows])
            np.testing.assert_array_equal(kept.top_k_log_probs[kept_rows], self.records.log_probs[rows])
            np.testing.assert_array_equal(kept.current_log_probs[kept_rows][scored], self.log_probs[rows][scored])
            np.testing.assert_array_equal(kept.staleness[kept_rows][scored], 2)
        with self.assertRaises(sis.NotFound):
            self.client.inspect_sequence(self.run_, "unknown")

    def test_replicas_are_merged(self):
        found = self.client.inspect_run(self.run_)
        self.assertEqual([kept.sequence.id for kept in found.sequences], SEQUENCES)
        alone = []
        for address in self.addresses:
            with sis.Client(address) as client:
                alone += client.inspect_run(self.run_).sequences
        self.assertEqual(len(alone), len(SEQUENCES))
        self.assertEqual(
            sum(kept.totals.accepted for kept in found.sequences), self.evaluation.totals.accepted
        )
        sizes = [abs(deviation.log_ratio) for deviation in found.deviations]
        self.assertEqual(sizes, sorted(sizes, reverse=True))
        self.assertEqual(sum(token.accepted for token in found.tokens), self.evaluation.totals.accepted)
        # The C++ client merges as the Python client does.
        shown = json.loads(self.sisctl("r", "--json"))
        self.assertEqual([kept["sequence"]["id"] for kept in shown["sequences"]], SEQUENCES)
        self.assertEqual(
            [token["token_id"] for token in shown["tokens"]], [token.token_id for token in found.tokens]
        )
        self.assertEqual(
            [(found["sequence"]["id"], found["position"]) for found in shown["deviations"]],
            [(deviation.sequence.id, deviation.position) for deviation in found.deviations],
        )

    def test_text(self):
        overview = self.sisctl("r")
        for name in SEQUENCES:
            self.assertIn(name, overview)
        lines = self.sisctl("r", "s0", "--tokenizer", self.tokenizer).splitlines()
        self.assertEqual(lines[0], "draw 3")
        left_out = [line.split() for line in lines if line.endswith(" not in the loss")]
        self.assertEqual([int(row[0]) for row in left_out], [*range(40, 60)])
        self.assertEqual([row[-5] for row in left_out], [f"#{token}" for token in self.records.sampled_ids[40:60]])
        rows = [line.split() for line in lines[2:] if "loss" not in line and "evaluated" not in line]
        self.assertEqual([int(row[0]) for row in rows], [*range(40), *range(60, LENGTH)])
        names = {"accepted": 1, "rejected": 2, "outside": 3}
        decisions = [names[next(word for word in row if word in names)] for row in rows]
        self.assertEqual(decisions, [self.evaluation.decisions[int(row[0])] for row in rows])
        self.assertRegex("\n".join(lines), r'" w\d+" #\d+')
        given = self.tokenizer.read_text()
        self.assertEqual(self.sisctl("r", "s0", "--tokenizer=-", given=given).splitlines(), lines)
        position = self.sisctl("r", "s0", "--position=3")
        self.assertIn(f"position 3: #{self.records.sampled_ids[3]}", position)
        self.assertIn("2 policy versions behind", position)
        self.assertIn("\nnot in the loss\n", self.sisctl("r", "s0", "--position=50"))

    def test_what_a_decision_makes_of_the_ratio_is_left_to_the_weight(self):
        kept = self.client.inspect_sequence(self.run_, "s0")
        for decision, words in ((1, "is below a = "), (2, "is not below a = ")):
            first = int(np.flatnonzero(kept.decisions == decision)[0])
            said = self.sisctl("r", "s0", f"--position={kept.first_position + first}")
            self.assertIn(words, said)
            self.assertIn(f"; its ratio is w = {np.exp(kept.log_ratios[first]):.4g}\n", said)
            self.assertNotIn("modified", said)

    def test_the_latest_step(self):
        latest = self.sisctl("r", "latest", subcommand="step")
        self.assertRegex(latest, r"^draw +3\n")
        self.assertRegex(latest, rf"\naccepted +{self.evaluation.totals.accepted}\n")
        self.assertEqual(latest, self.sisctl("r", "3", subcommand="step"))
        self.client.create_run("fresh", seed=1, vocabulary_size=VOCABULARY, top_k=TOP_K)
        self.assertIn("no draw has been evaluated", self.sisctl("fresh", "latest", subcommand="step", fails=True))

    def test_refusals(self):
        self.assertIn("no evaluated values are kept", self.sisctl("r", "unknown", fails=True))
        self.assertIn("position 5000 is not kept", self.sisctl("r", "s0", "--position=5000", fails=True))
        self.assertIn("can't be read", self.sisctl("r", "s0", "--tokenizer=nowhere", fails=True))
        self.tokenizer.with_name("bad.json").write_text("{}")
        self.assertIn("not a tokenizer.json", self.sisctl("r", f"--tokenizer={self.folder}/bad.json", fails=True))

    def test_what_is_cut_is_said_and_where(self):
        """Positions beyond what --inspected_bytes has room for: the API, the text and a browser say which."""
        server = LiveServer(f"--inspected_bytes={1 << 21}")
        self.addCleanup(server.close)
        long = LENGTH * 10
        with sis.Client(server.address, timeout=30) as client:
            run = client.create_run("r", seed=1, vocabulary_size=VOCABULARY, top_k=TOP_K)
            with client.append(run, sampling=sis.Sampling("raw")) as stream:
                for part in range(10):
                    values = record(log_softmax(part), part)._asdict()
                    stream.block("long", first_position=part * LENGTH, policy_version=0, **values)
            records = client.fetch_top_k(run, ["long"])
            client.evaluate(run, records, draw=3, log_probs=records.log_probs,
                            sampled_log_probs=records.sampled_log_probs)  # fmt: skip
            kept = client.inspect_sequence(run, "long")
            self.assertEqual((kept.first_position, kept.cut_end), (0, long))
            self.assertEqual(len(kept.decisions), kept.cut_begin)
            self.assertLess(kept.cut_begin, long)
            (listed,) = client.inspect_run(run).sequences
            self.assertEqual((listed.positions, listed.cut_begin, listed.cut_end),
                             (kept.cut_begin, kept.cut_begin, long))  # fmt: skip
        addresses, type(self).addresses = self.addresses, [server.address]
        self.addCleanup(setattr, type(self), "addresses", addresses)
        cut = f"{kept.cut_begin}-{long - 1}"
        self.assertRegex(self.sisctl("r"), rf"\nlong .* {cut}\n")
        self.assertIn(f"{cut}  evaluated, but not kept: no room in --inspected_bytes", self.sisctl("r", "long"))
        refusal = self.sisctl("r", "long", f"--position={long - 1}", fails=True)
        self.assertIn(f"for {cut} there was no room in --inspected_bytes", refusal)
        self.assertEqual(json.loads(self.sisctl("r", "long", "--json"))["cut_end"], long)
        for words in (("r",), ("r", "long")):
            self.assertIn(f"{kept.cut_begin} to {long - 1}<", self.drawn(*words))

    def test_nothing_kept(self):
        self.client.create_run("empty", seed=1, vocabulary_size=VOCABULARY, top_k=TOP_K)
        self.assertIn("nothing has been evaluated", self.sisctl("empty"))

    def drawn(self, *words):
        """The elements that a browser makes of the HTML file."""
        if CHROMIUM is None:
            self.skipTest("there is no chromium")
        page = self.folder / "page.html"
        self.sisctl(*words, "--html", page)
        with tempfile.TemporaryDirectory() as profile:
            command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={profile}",
                       "--virtual-time-budget=5000", "--dump-dom", page.as_uri()]  # fmt: skip
            return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout

    def test_a_browser_draws_a_sequence(self):
        drawn = self.drawn("r", "s0", f"--tokenizer={self.tokenizer}")
        tokens = re.findall(r'<span class="token (accepted|rejected|outside|masked)" data-index="(\d+)"', drawn)
        kept = self.client.inspect_sequence(self.run_, "s0")
        self.assertEqual([int(index) for _, index in tokens], [*range(LENGTH)])
        names = {1: "accepted", 2: "rejected", 3: "outside", 5: "masked"}
        self.assertEqual([kind for kind, _ in tokens], [names[decision] for decision in kept.decisions])
        self.assertIn("&lt;/script&gt;&lt;i&gt;", drawn)
        self.assertNotIn("<i>", re.sub(r"<script.*?</script>", "", drawn, flags=re.S))

    def test_a_browser_draws_a_run(self):
        drawn = self.drawn("r")
        sequences = self.client.inspect_run(self.run_).sequences
        self.assertEqual({kept.sequence.id for kept in sequences}, set(SEQUENCES))
        for kept in sequences:
            d, d_sis = (format(value, ".3g") for value in (kept.totals.mean_d, kept.totals.mean_d_sis))
            cells = f"<td>{kept.draw}</td><td>{LENGTH}</td><td>{kept.totals.accept_rate:.1%}</td><td>{d}</td><td>{d_sis}</td>"
            self.assertIn(f'<td class="left">{kept.sequence.id}</td>{cells}', drawn)


if __name__ == "__main__":
    unittest.main()
