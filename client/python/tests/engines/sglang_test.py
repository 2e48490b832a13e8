"""SGLang's recorded answers to the same seeded requests, in each of its forms (record_sglang.py)."""

import copy
import json
import os
import pathlib
import types
import unittest
import unittest.mock

import numpy as np

from sis.engines import Piece
from sis.engines.sglang import SglangAdapter

RECORDED = json.loads((pathlib.Path(__file__).parent / "testdata/sglang.json").read_text())
LISTED = 8
PARAMS = {
    "plain": {"temperature": 1.0},
    "warm": {"temperature": 0.7},
    "penalty": {"temperature": 1.0, "frequency_penalty": 0.5},
    "bias": {"temperature": 1.0, "logit_bias": {"264": -1e9}},
}


class SglangTest(unittest.TestCase):
    def answers(self, form):
        for name, answers in RECORDED[form].items():
            for index, answer in enumerate(answers):
                yield (name, index), answer

    def assert_same(self, a, b):
        for got, want in zip(a, b):
            np.testing.assert_array_equal(got, want)

    def test_records_are_what_the_engine_listed(self):
        outside = 0
        for top_k in (1, 5, LISTED, 20):
            for (name, _), answer in self.answers("list"):
                record = SglangAdapter(PARAMS[name]).record(answer, top_k)
                meta = answer["meta_info"]
                self.assertEqual(record.sampled_ids.tolist(), answer["output_ids"])
                for row, (own, tops) in enumerate(zip(meta["output_token_logprobs"], meta["output_top_logprobs"])):
                    best = sorted(((-value, token) for value, token, _ in tops))[:top_k]
                    ids = [token for _, token in best]
                    self.assertEqual(record.top_k_ids[row].tolist(), ids + [-1] * (top_k - len(ids)))
                    self.assertEqual(record.top_k_log_probs[row, 0], np.float32(-best[0][0]))
                    if own[1] not in ids:
                        self.assertEqual(record.sampled_log_probs[row], np.float32(own[0]))
                        outside += top_k >= LISTED
        self.assertGreater(outside, 0)

    def assert_of_trainer(self, answer, trainer):
        """Checks that the adapter reads the values of a trainer with the same weights, in float32 on both
        sides, and that they differ from the trainer's values one position earlier."""
        columns = SglangAdapter({}).columns([Piece(answer, 0, len(answer["output_ids"]))])
        np.testing.assert_array_equal(columns.sampled_ids, answer["output_ids"])
        np.testing.assert_array_equal(columns.ids, trainer["top_ids"])
        np.testing.assert_allclose(columns.log_probs, trainer["top_log_probs"], atol=1e-4)
        own = columns.sampled_log_probs
        np.testing.assert_allclose(own, trainer["sampled"], atol=1e-4)
        self.assertGreater(np.abs(own - trainer["sampled_one_before"]).mean(), 1)

    def test_a_trainer_finds_the_same_in_every_form(self):
        for form in ("list", "flat", "base64"):
            for name in ("plain", "warm"):
                for answer, trainer in zip(RECORDED[form][name], RECORDED["trainer"][form][name], strict=True):
                    self.assertEqual("output_top_logprobs" in answer["meta_info"], form == "list")
                    self.assert_of_trainer(answer, trainer)

    def test_log_probs_are_those_after_temperature_unless_the_engine_is_told_otherwise(self):
        # The tokens were drawn at temperature 0.7; the trainer's log-probs are at 1.
        for answer, trainer in zip(RECORDED["original"], RECORDED["trainer"]["original"], strict=True):
            self.assert_of_trainer(answer, trainer)
        sampling = SglangAdapter(PARAMS["warm"], original_log_probs=True).sampling
        self.assertEqual((sampling.log_probs, sampling.temperature), ("raw", 0.7))
        with unittest.mock.patch.dict(os.environ, SGLANG_RETURN_ORIGINAL_LOGPROB="True"):
            self.assertEqual(SglangAdapter({}).sampling.log_probs, "raw")

    def test_an_aborted_request_is_recorded_as_far_as_it_came(self):
        adapter = SglangAdapter(PARAMS["plain"])
        last = RECORDED["aborted"][-1]
        length, ended, _ = adapter.told(last)
        self.assertEqual(ended, "aborted")
        self.assertTrue(0 < length < 100)
        self.assertEqual(len(adapter.record(last, 5).sampled_ids), length)

    def test_increments_join_to_the_whole(self):
        """As SGLang cuts them of its answers, and ends a request that is aborted while it waits: with all it said."""
        adapter = SglangAdapter(PARAMS["plain"], {"incremental_streaming_output": True})
        self.assertFalse(adapter.cumulative)
        outputs, told = [], 0
        for answer in RECORDED["stream"]:
            output = copy.deepcopy(answer)
            meta = output["meta_info"]
            output["output_ids"] = output["output_ids"][told:]
            for name in ("output_token_logprobs", "output_top_logprobs"):
                meta[name] = meta[name][told:]
            told += len(meta["output_token_logprobs"])
            outputs.append(output)
        pieces = [Piece(output, 0, adapter.told(output).length) for output in outputs]
        whole = SglangAdapter(PARAMS["plain"]).record(RECORDED["stream"][-1], 5)
        self.assert_same(adapter.columns(pieces).record(5), whole)
        last = copy.deepcopy(RECORDED["stream"][-1])
        last["meta_info"].pop("prompt_tokens")
        last["meta_info"]["finish_reason"] = {"type": "abort", "message": "Abort in waiting queue"}
        self.assertEqual(adapter.told(last)[:2], (0, "aborted"))

    def test_versions_are_those_that_the_engine_names(self):
        made = SglangAdapter({})
        spans = [{"version": "v1", "start": 0, "end": 3}, {"version": "v2", "start": 3, "end": 9}]
        for meta, ranges in (
            ({}, []),
            ({"weight_version": None}, []),
            ({"weight_version": "default"}, [("default", 0, None)]),
            ({"weight_version": "v2", "weight_versions": spans}, [("v1", 0, 3), ("v2", 3, 9)]),
        ):
            self.assertEqual(made.told({"output_ids": [], "meta_info": {"finish_reason": None, **meta}}).versions, ranges)

    def test_reads_how_the_log_probs_were_made(self):
        self.assertEqual(SglangAdapter(PARAMS["warm"]).sampling.temperature, 0.7)
        self.assertEqual(SglangAdapter(PARAMS["penalty"]).sampling.frequency_penalty, 0.5)
        self.assertTrue(SglangAdapter(PARAMS["bias"]).sampling.logit_bias)
        self.assertEqual(SglangAdapter({"top_k": -1, "top_p": 1.0, "min_p": None}).sampling.log_probs, "processed")
        args = types.SimpleNamespace(preferred_sampling_params={"temperature": 0.6}, incremental_streaming_output=True)
        adapter = SglangAdapter({}, args)
        self.assertEqual((adapter.sampling.temperature, adapter.cumulative), (0.6, False))
        for params, message in (
            ({"temperature": 0}, "temperature is 0: greedy"),
            ({"top_k": 1}, "top_k is 1: greedy"),
            ({"top_p": 0.9}, "top_p is 0.9: SGLang's log-probs are those before it"),
            ({"top_k": 50}, "top_k is 50"),
            ({"min_p": 0.1}, "min_p is 0.1"),
            ({"beam_width": 2}, "beam search"),
            ({"watermark": {}}, "watermark"),
        ):
            with self.assertRaisesRegex(ValueError, message):
                SglangAdapter(params)
        for server_args in (types.SimpleNamespace, dict):
            self.assertTrue(SglangAdapter({}, server_args(speculative_algorithm=None)).cumulative)
            with self.assertRaisesRegex(ValueError, "speculative_algorithm is 'EAGLE'"):
                SglangAdapter({}, server_args(speculative_algorithm="EAGLE"))
        with self.assertRaisesRegex(ValueError, "top_p is 0.5"):
            SglangAdapter({}, {"preferred_sampling_params": {"top_p": 0.5}})


if __name__ == "__main__":
    unittest.main()
