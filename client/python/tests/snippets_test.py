"""Python snippets of README.md and docs that need no engine and no trainer run as they stand. Shell snippets name
programs that exist, with flags that these have."""

import contextlib
import io
import itertools
import os
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile
import types
import unittest
import unittest.mock

import numpy as np
import torch
import typer.main

import sis
from client.python.tests import snippets
from server.testing.live_server import BINARY, LiveServer
from sis.cli.main import app

LENGTHS = {"response-0": 5, "response-1": 8}
VOCABULARY = 32
# Not ours: their flags are not checked here.
PROGRAMS = {".", "bazel", "cd", "curl", "helm", "pip", "python3", "ssh", "vllm"}


def commands(page):
    """Returns the commands of a page's shell snippets, as lists of words."""
    text = "\n".join(snippets.of_page(page, "sh")).replace("\\\n", " ")
    lines = [shlex.split(line, comments=True) for line in re.split("\n|&&", text)]
    # Without variables before the program.
    return [list(itertools.dropwhile(lambda word: re.match(r"\w+=", word), words)) for words in lines if words]


class SnippetsTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = cls.enterClassContext(LiveServer())

    def printed(self, page, number, **names):
        with contextlib.redirect_stdout(io.StringIO()) as shown:
            snippets.run(page, number, names)
        return shown.getvalue()

    def test_readme(self):
        with unittest.mock.patch.dict(os.environ, PATH=f"{BINARY.parent}:{os.environ['PATH']}"):
            self.assertRegex(self.printed("README", 2), r"^accepted \d\d%, D 0\.\d+, D_SIS 0\.\d+\n$")

    def test_quick_start(self):
        with unittest.mock.patch.object(sys, "argv", ["worker.py", self.server.address]):
            self.printed("quick_start", 1)
            (line,) = re.findall("lines such as `(step 0: .*?)`", snippets.PAGES["quick_start"].read_text())
            self.assertIn(line, self.printed("quick_start", 2))
        with sis.Client(self.server.address) as client:
            self.assertEqual(client.get_run("example").sequences, 0)

    def reader(self, client):
        """Returns what a reader's worker and trainer have: B = 2 sequences of at most T = 8 tokens."""
        rng = np.random.default_rng(1)
        hidden = torch.from_numpy(rng.normal(size=(2, 8, 4)).astype(np.float32))
        weight = torch.from_numpy(rng.normal(size=(VOCABULARY, 4)).astype(np.float32))
        logits = hidden @ weight.T
        log_softmax = torch.log_softmax(logits, dim=2).numpy()
        sampled = (log_softmax + rng.gumbel(size=log_softmax.shape)).argmax(axis=2)
        records = {}
        for row, (name, length) in enumerate(LENGTHS.items()):
            values, own = log_softmax[row, :length], sampled[row, :length]
            ids = np.broadcast_to(np.arange(VOCABULARY), values.shape)
            records[name] = sis.canonical(ids, values, own, values[np.arange(length), own], 10)
        mask = torch.arange(8) < torch.tensor(list(LENGTHS.values()))[:, None]
        run = client.create_run("run", seed=1, vocabulary_size=VOCABULARY, top_k=10)
        return {
            "client": client, "run": run, "version": 0, "step": 1, "sampling": sis.Sampling("processed"),
            "records": records, "names": list(LENGTHS), "hidden": hidden, "completion_mask": mask,
            "completion_ids": torch.from_numpy(sampled), "logits": logits,
            "model": types.SimpleNamespace(lm_head=types.SimpleNamespace(weight=weight)),
        }  # fmt: skip

    def test_own_loop_and_algorithms(self):
        with sis.Client(self.server.address, timeout=30) as client:
            here = self.reader(client)
            snippets.run("own_loop", 1, here)
            snippets.run("own_loop", 2, here)
            self.assertEqual(here["accepted"].shape, (2, 8))
            # From here on a reader has one row per position.
            logits, tokens = (here["batch"].flat(here[name]) for name in ("logits", "completion_ids"))
            log_softmax = torch.log_softmax(logits, dim=1)
            logp = log_softmax.gather(1, tokens[:, None])[:, 0]
            here.update(
                log_softmax=log_softmax, tokens=tokens, mask=torch.ones(len(tokens)), logp=logp, logits=logits,
                advantages=torch.ones(len(tokens)), own_log_probs=logp,
            )  # fmt: skip
            snippets.run("own_loop", 3, here)
            loss = here["loss"]
            totals = here["evaluation"].totals
            self.assertEqual((totals.scored, totals.rejected, totals.missing), (sum(LENGTHS.values()), 0, 0))
            snippets.run("own_loop", 4, here)
            torch.testing.assert_close(here["ratio"], torch.ones(len(here["ratio"])), atol=1e-3, rtol=0)
            snippets.run("algorithms", 1, here)
            self.assertIsInstance(here["options"].algorithm, sis.DampedTruncation)
            here.update(coefficients=torch.from_numpy(here["evaluation"].coefficients), normaliser=len(tokens))
            snippets.run("algorithms", 2, here)
            torch.testing.assert_close(here["loss"], loss)

    def test_security(self):
        with tempfile.TemporaryDirectory() as folder:
            self.addCleanup(os.chdir, pathlib.Path.cwd())
            os.chdir(folder)
            pathlib.Path("token").write_text("0123456789abcdef")
            subprocess.run(
                "openssl req -x509 -newkey rsa:2048 -nodes -subj /CN=sis -keyout key.pem -out ca.pem".split(),
                check=True, capture_output=True,
            )  # fmt: skip
            here = {"address": "sis:50051"}
            snippets.run("security", 1, here)
            here["client"].close()

    def test_shell(self):
        flags = subprocess.run([BINARY, "--helpfull"], capture_output=True, text=True).stdout
        for page in snippets.PAGES:
            for program, *arguments in commands(page):
                with self.subTest(page, command=[program, *arguments]):
                    if program == "sis_server":
                        for name in re.findall(r"--(\w+)", " ".join(arguments)):
                            self.assertRegex(flags, rf"--{name}\b")
                    elif program == "sisctl":
                        command = typer.main.get_command(app)
                        while hasattr(command, "commands"):
                            command = command.commands[arguments.pop(0)]
                        command.make_context(program, arguments)
                    elif program.startswith("tools/"):
                        text = (snippets.ROOT / program).read_text()
                        for flag in arguments:
                            self.assertIn(flag, text)
                    else:
                        self.assertIn(program, PROGRAMS)


if __name__ == "__main__":
    unittest.main()
