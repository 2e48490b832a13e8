"""Recorded answers of llama.cpp's server (record_llama_cpp.py)."""

import copy
import json
import pathlib
import unittest

import numpy as np

import sis
from sis.engines import Piece
from sis.engines._adapter import reasons_of
from sis.engines.llama_cpp import LlamaCppAdapter

RECORDED = json.loads((pathlib.Path(__file__).parent / "testdata/llama_cpp.json").read_text())
LISTED = 8


class LlamaCppTest(unittest.TestCase):
    def columns(self, answer):
        return LlamaCppAdapter(answer).columns([Piece(answer, 0, len(answer["tokens"]))])

    def test_every_entry_stands_at_the_position_of_its_token(self):
        for name, answer in RECORDED.items():
            entries = answer["completion_probabilities"]
            self.assertLess(len(entries), len(answer["tokens"]), "the server left nothing out, so this tests nothing")
            columns = self.columns(answer)
            self.assertEqual(columns.sampled_ids.tolist(), answer["tokens"])
            record = columns.record(LISTED)
            told = reasons_of(record.sampled_log_probs) == 0
            self.assertEqual(told.sum(), len(entries))
            record = sis.TopK(*(array[told] for array in record))
            own, tops = ("logprob", "top_logprobs") if name == "raw" else ("prob", "top_probs")
            for row, entry in enumerate(entries):
                self.assertEqual(record.sampled_ids[row], entry["id"])
                value = entry[own] if name == "raw" else np.log(entry[own])
                self.assertAlmostEqual(record.sampled_log_probs[row], value, places=5)
                ids = [top["id"] for top in sorted(entry[tops], key=lambda top: (-top[own], top["id"]))]
                self.assertEqual(record.top_k_ids[row].tolist(), ids + [-1] * (LISTED - len(ids)))

    def test_where_an_entry_may_be_of_two_tokens_neither_is_recorded(self):
        answer = copy.deepcopy(RECORDED["raw"])
        entries = answer["completion_probabilities"]
        tokens = [5, 7, 7, 9]
        for entry, token in zip(entries, (5, 7, 9)):
            entry["id"] = token
        del entries[3:]
        answer.update(tokens=tokens, tokens_predicted=4)
        none = sis.MissingReason.NO_LOG_PROB
        record = self.columns(answer).record(LISTED)
        self.assertEqual(reasons_of(record.sampled_log_probs).tolist(), [0, none, none, 0])
        entries[1]["id"] = 8
        with self.assertRaisesRegex(ValueError, "log-probs of token 8, entry 1"):
            self.columns(answer)

    def test_settings_come_from_the_answer(self):
        neutral = {
            "top_p": 1.0, "top_k": 0, "min_p": 0.0, "presence_penalty": 0.0, "frequency_penalty": 0.0,
            "repetition_penalty": 1.0,
        }  # fmt: skip
        # top_k is 40 there, but none of the samplers.
        self.assertEqual(LlamaCppAdapter(RECORDED["raw"]).sampling, sis.Sampling("raw", temperature=1.0, **neutral))
        sampling = LlamaCppAdapter(RECORDED["post_sampling"]).sampling
        self.assertEqual((sampling.log_probs, sampling.top_k), ("processed", 6))
        self.assertAlmostEqual(sampling.top_p, 0.9, places=6)
        answer = copy.deepcopy(RECORDED["raw"])
        answer["generation_settings"].update(samplers=["xtc", "temperature"], xtc_probability=0.5)
        with self.assertRaisesRegex(ValueError, "xtc_probability is 0.5"):
            LlamaCppAdapter(answer)
        answer["generation_settings"].update(samplers=["temperature"], temperature=0.0)
        with self.assertRaisesRegex(ValueError, "greedy"):
            LlamaCppAdapter(answer)


if __name__ == "__main__":
    unittest.main()
