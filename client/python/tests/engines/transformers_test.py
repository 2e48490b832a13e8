"""Results of the form that transformers' generate returns; engines_test has generate itself."""

import importlib.util
import types
import unittest

import numpy as np

import sis
from sis.engines.transformers import TransformersAdapter

TOP_K, PROMPT, VOCABULARY = 8, 4, 40
RANDOM = np.random.default_rng(5)
# Six rows; a filter has excluded most of the tokens.
SCORES = RANDOM.normal(0, 2, (6, 24, VOCABULARY)).astype(np.float32)
SCORES[RANDOM.random(SCORES.shape) < 0.8] = -np.inf
DRAWN = (SCORES + RANDOM.gumbel(size=SCORES.shape)).argmax(axis=2)


def config(**changed):
    """A GenerationConfig."""
    return types.SimpleNamespace(
        **{
            "do_sample": True, "num_beams": 1, "temperature": 0.9, "top_k": 0, "top_p": 0.9, "min_p": None,
            "repetition_penalty": None, "eos_token_id": [2, 29], **changed,
        }
    )  # fmt: skip


class TransformersTest(unittest.TestCase):
    def output(self):
        import torch

        sequences = torch.nn.functional.pad(torch.from_numpy(DRAWN), (PROMPT, 0))
        return types.SimpleNamespace(sequences=sequences, scores=torch.from_numpy(SCORES).unbind(1))

    @unittest.skipUnless(importlib.util.find_spec("torch"), "PyTorch is not installed")
    def test_rows_are_the_distributions_that_drew_the_tokens(self):
        adapter = TransformersAdapter(config())
        rows = adapter.rows(self.output(), TOP_K)
        lengths = []
        for row, scores, tokens in zip(rows, SCORES.astype(np.float64), DRAWN):
            length = next((i + 1 for i, token in enumerate(tokens) if token in (2, 29)), len(tokens))
            lengths.append(length)
            record = adapter.record(row, TOP_K)
            self.assertEqual(record.sampled_ids.tolist(), tokens[:length].tolist())
            values = (scores - np.logaddexp.reduce(scores, axis=1, keepdims=True))[:length]
            own = values[np.arange(length), tokens[:length]]
            np.testing.assert_allclose(record.sampled_log_probs, own, atol=1e-5)
            for ids, log_probs, want in zip(record.top_k_ids, record.top_k_log_probs, values):
                kept = min(TOP_K, int(np.isfinite(want).sum()))
                self.assertEqual(sorted(ids[:kept]), sorted(np.argsort(-want, kind="stable")[:kept]))
                self.assertTrue((ids[kept:] == -1).all())
                np.testing.assert_allclose(log_probs[:kept], want[ids[:kept]], atol=1e-5)
        self.assertGreater(len(set(lengths)), 1, "no row ended early, so this tests nothing")

    def test_settings_come_from_the_generation_config(self):
        self.assertEqual(
            TransformersAdapter(config(min_p=0.1, bad_words_ids=[[3]])).sampling,
            sis.Sampling("processed", temperature=0.9, top_p=0.9, top_k=0, min_p=0.1, logit_bias=True),
        )
        for message, changed in (("greedy", {"do_sample": False}), ("beam search", {"num_beams": 4})):
            with self.assertRaisesRegex(ValueError, message):
                TransformersAdapter(config(**changed))
        with self.assertRaisesRegex(ValueError, "needs output_scores=True"):
            TransformersAdapter(config()).rows(types.SimpleNamespace(scores=None), TOP_K)


if __name__ == "__main__":
    unittest.main()
