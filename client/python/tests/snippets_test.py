"""The code of docs/own_loop.md runs as it stands, block after block, with the values that a reader has."""

import pathlib
import re
import types
import unittest

import numpy as np
import torch

import sis
from server.testing.live_server import LiveServer

PAGE = pathlib.Path(__file__).parents[3] / "docs/own_loop.md"
LENGTHS = {"response-0": 5, "response-1": 8}
VOCABULARY = 32


def blocks():
    """Returns the indented blocks, without the indentation."""
    text = PAGE.read_text(encoding="utf-8")
    found = re.findall(r"(?:^|\n\n)((?:    .*\n|\n(?=    ))+)", text)
    return [re.sub("^    ", "", block, flags=re.MULTILINE) for block in found]


class SnippetsTest(unittest.TestCase):
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
            "client": client, "run": run, "version": 0, "policy_version": 0, "step": 1,
            "sampling": sis.Sampling("processed"), "records": records, "names": list(LENGTHS), "hidden": hidden,
            "completion_mask": mask, "completion_ids": torch.from_numpy(sampled), "logits": logits,
            "model": types.SimpleNamespace(lm_head=types.SimpleNamespace(weight=weight)),
        }  # fmt: skip

    def test_own_loop(self):
        server = LiveServer()
        self.addCleanup(server.close)
        ran = blocks()
        self.assertGreaterEqual(len(ran), 4)
        with sis.Client(server.address, timeout=30) as client:
            here = self.reader(client)
            for block in ran:
                # Before its batch a reader has padded tensors; then one row per position.
                if "import torch\n" in block:
                    flat = here["batch"].flat(here["logits"])
                    log_softmax = torch.log_softmax(flat, dim=1)
                    tokens = here["batch"].flat(here["completion_ids"])
                    own = log_softmax.gather(1, tokens[:, None])[:, 0]
                    here.update(
                        log_softmax=log_softmax, tokens=tokens, mask=torch.ones(len(tokens)), logp=own, logits=flat,
                        advantages=torch.ones(len(tokens)), own_log_probs=own,
                    )  # fmt: skip
                exec(compile(block, str(PAGE), "exec"), here)
            self.assertEqual(here["accepted"].shape, (2, 8))
            totals = here["evaluation"].totals
            self.assertEqual((totals.scored, totals.rejected, totals.missing), (sum(LENGTHS.values()), 0, 0))
            self.assertTrue(here["loss"].isfinite())
            torch.testing.assert_close(here["ratio"], torch.ones(len(here["ratio"])), atol=1e-3, rtol=0)


if __name__ == "__main__":
    unittest.main()
