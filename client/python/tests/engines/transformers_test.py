"""Recorded results of transformers' generate (record_transformers.py)."""

import importlib.util
import pathlib
import types
import unittest

import numpy as np

import sis
from sis.engines import Piece
from sis.engines.transformers import TransformersAdapter

RECORDED = np.load(pathlib.Path(__file__).parent / "testdata/transformers.npz")
TOP_K = 8


def config(**changed):
    """A GenerationConfig as the recording had it."""
    return types.SimpleNamespace(
        **{
            "do_sample": True, "num_beams": 1, "temperature": 0.9, "top_k": 0, "top_p": 0.9, "min_p": None,
            "repetition_penalty": None, "eos_token_id": [2, 129], **changed,
        }
    )  # fmt: skip


class TransformersTest(unittest.TestCase):
    def output(self):
        import torch

        scores = torch.from_numpy(RECORDED["scores"])
        return types.SimpleNamespace(sequences=torch.from_numpy(RECORDED["sequences"]).long(), scores=scores.unbind(1))

    @unittest.skipUnless(importlib.util.find_spec("torch"), "PyTorch is not installed")
    def test_rows_are_the_distributions_that_drew_the_tokens(self):
        adapter = TransformersAdapter(config())
        rows = adapter.rows(self.output(), TOP_K)
        drawn = RECORDED["sequences"][:, 4:]
        lengths = []
        for row, scores, tokens in zip(rows, RECORDED["scores"].astype(np.float64), drawn):
            length = next((i + 1 for i, token in enumerate(tokens) if token in (2, 129)), len(tokens))
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

    @unittest.skipUnless(importlib.util.find_spec("torch"), "PyTorch is not installed")
    def test_pieces_of_several_rows_are_read_at_once(self):
        adapter = TransformersAdapter(config())
        rows = adapter.rows(self.output(), TOP_K)
        together = adapter.columns([Piece(rows[0], 1, 4), Piece(rows[2], 0, 3)]).record(TOP_K)
        parts = adapter.record(rows[0], TOP_K), adapter.record(rows[2], TOP_K)
        for got, first, second in zip(together, *parts):
            np.testing.assert_array_equal(got, np.concatenate([first[1:4], second[:3]]))

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
