"""What SGLang returned to the same seeded requests, in each of its forms (record_sglang.py)."""

import copy
import json
import math
import os
import pathlib
import types
import unittest
import unittest.mock

import numpy as np

from sis.engines import Piece
from sis.engines.sampling_masks import MOST_LISTED
from sis.engines.sglang import SglangAdapter
from sis.top_k import canonical

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

    def test_what_is_streamed_joins_to_the_whole(self):
        adapter = SglangAdapter(PARAMS["plain"])
        outputs = RECORDED["stream"]
        self.assertGreater(len(outputs), 2)
        self.assertEqual([adapter.ended(output) for output in outputs][-2:], [None, "finished"])
        pieces, start = [], 0
        for output in outputs:
            pieces.append(Piece(output, start, adapter.length(output)))
            start = adapter.length(output)
        self.assertEqual(start, len(outputs[-1]["output_ids"]))
        self.assert_same(adapter.columns(pieces).record(5), adapter.record(outputs[-1], 5))

    def test_pieces_are_read_at_once_whatever_their_form(self):
        adapter = SglangAdapter(PARAMS["plain"])
        outputs = [RECORDED[form]["plain"][0] for form in ("list", "flat", "base64")]
        pieces = [Piece(outputs[0], 3, 7), Piece(outputs[1], 2, 12), Piece(outputs[2], 5, 6), Piece(outputs[0], 7, 12)]
        parts = [[array[start:stop] for array in adapter.record(output, 5)] for output, start, stop in pieces]
        self.assert_same(adapter.columns(pieces).record(5), map(np.concatenate, zip(*parts)))

    def assert_of_trainer(self, answer, trainer):
        """What the adapter reads is what a trainer of the same weights finds, in float32 on both sides:
        positions, ids and values belong together. Those of one position before do not."""
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
        # Of tokens that were drawn at 0.7; the trainer's are those at 1.
        for answer, trainer in zip(RECORDED["original"], RECORDED["trainer"]["original"], strict=True):
            self.assert_of_trainer(answer, trainer)
        sampling = SglangAdapter(PARAMS["warm"], original_log_probs=True).sampling
        self.assertEqual((sampling.log_probs, sampling.temperature), ("raw", 0.7))
        with unittest.mock.patch.dict(os.environ, SGLANG_RETURN_ORIGINAL_LOGPROB="True"):
            self.assertEqual(SglangAdapter({}).sampling.log_probs, "raw")

    def test_an_aborted_request_is_recorded_as_far_as_it_came(self):
        adapter = SglangAdapter(PARAMS["plain"])
        last = RECORDED["aborted"][-1]
        self.assertEqual(adapter.ended(last), "aborted")
        length = adapter.length(last)
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
            for name in ("output_token_logprobs", "output_top_logprobs"):
                meta[name] = meta[name][told:]
            told += len(meta["output_token_logprobs"])
            outputs.append(output)
        pieces = [Piece(output, 0, adapter.length(output)) for output in outputs]
        whole = SglangAdapter(PARAMS["plain"]).record(RECORDED["stream"][-1], 5)
        self.assert_same(adapter.columns(pieces).record(5), whole)
        last = copy.deepcopy(RECORDED["stream"][-1])
        last["meta_info"].pop("prompt_tokens")
        last["meta_info"]["finish_reason"] = {"type": "abort", "message": "Abort in waiting queue"}
        self.assertEqual((adapter.length(last), adapter.ended(last)), (0, "aborted"))

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

    def test_the_lowest_number_is_no_log_prob(self):
        """SGLang says it instead of -inf, in lists that reach so far."""
        answer = copy.deepcopy(RECORDED["list"]["bias"][0])
        answer["meta_info"]["output_top_logprobs"][3][-1][0] = float(np.finfo(np.float32).min)
        record = SglangAdapter(PARAMS["bias"]).record(answer, LISTED)
        self.assertEqual((record.top_k_ids < 0).sum(axis=1).tolist(), [0] * 3 + [1] + [0] * 8)

    def masked(self, answer, size, later=False):
        """The answer as with "return_sampling_mask": true and a filter that keeps the `size` most probable
        tokens, and the sampled one. SGLang runs that on a GPU only, so this is written: as the tests of
        sgl-project/sglang pull requests 27408 and 33593 have it, or those of later versions, which tell the
        log-probs of the whole mask. Returns the kept mass of each position, too."""
        made = copy.deepcopy(answer)
        meta = made["meta_info"]
        masks, own, masses = [], [], []
        for (value, token, _), tops in zip(meta["output_token_logprobs"], meta["output_top_logprobs"]):
            before = {name: log_prob for log_prob, name, _ in sorted(tops, reverse=True)[:size]}
            before[token] = value
            # Others that the answer doesn't list, of this mass in all.
            unlisted = {500 + index: math.log(1e-3) for index in range(max(0, size - len(tops)))}
            before.update(unlisted)
            mass = sum(map(math.exp, before.values()))
            masks.append(sorted(before))
            masses.append(mass)
            after = {name: log_prob - math.log(mass) for name, log_prob in before.items()}
            own.append([after[name] for name in masks[-1]] if later else after[token])
        meta.update(output_token_sampling_mask=masks, output_token_sampling_logprobs=own)
        return made, np.asarray(masses)

    def test_with_sampling_masks_log_probs_are_those_of_the_draw(self):
        params = {"temperature": 0.7, "top_p": 0.9, "top_k": 50}
        adapter = SglangAdapter(params, sampling_masks=True)
        sampling = adapter.sampling
        self.assertEqual((sampling.log_probs, sampling.top_p, sampling.top_k), ("processed", 0.9, 50))
        complete, longer = 0, 0
        for size in (1, 3, LISTED, 12):
            for answer in RECORDED["list"]["warm"]:
                masked, masses = self.masked(answer, size)
                columns = adapter.columns([Piece(masked, 0, len(masses))])
                record = columns.record(LISTED)
                meta = masked["meta_info"]
                for row, mask in enumerate(meta["output_token_sampling_mask"]):
                    self.assertEqual(columns.kept[row], len(mask))
                    before = {name: value for value, name, _ in meta["output_top_logprobs"][row] if name in mask}
                    ids = record.top_k_ids[row][record.top_k_ids[row] >= 0].tolist()
                    self.assertEqual(sorted(ids), sorted(before))
                    for token, value in zip(ids, record.top_k_log_probs[row]):
                        self.assertAlmostEqual(value, before[token] - math.log(masses[row]), delta=1e-5)
                    value, token, _ = meta["output_token_logprobs"][row]
                    self.assertAlmostEqual(record.sampled_log_probs[row], value - math.log(masses[row]), delta=1e-5)
                    total = np.exp(record.top_k_log_probs[row].astype(float)).sum()
                    if len(ids) == len(mask):
                        self.assertAlmostEqual(total, 1, delta=1e-6)
                        complete += 1
                    else:
                        self.assertLess(total, 1 - 1e-4)
                        longer += 1
                # Of versions that tell the log-probs of all that was kept, which need not be listed elsewhere.
                later, _ = self.masked(answer, size, later=True)
                del later["meta_info"]["output_top_logprobs"]
                whole = adapter.record(later, 20)
                counts = (whole.top_k_ids >= 0).sum(axis=1)
                self.assertEqual(counts.tolist(), columns.kept.tolist())
                np.testing.assert_allclose(np.exp(whole.top_k_log_probs.astype(float)).sum(axis=1), 1, atol=1e-5)
                np.testing.assert_allclose(whole.sampled_log_probs, record.sampled_log_probs, atol=1e-5)
        self.assertGreater(complete, 20)
        self.assertGreater(longer, 20)

    def test_a_mask_longer_than_any_record_takes_no_more_memory_than_one(self):
        answer = RECORDED["list"]["warm"][0]
        masked, masses = self.masked(answer, 3, later=True)
        long, _ = self.masked(answer, 1000, later=True)
        names = ("output_token_sampling_mask", "output_token_sampling_logprobs")
        for name in names:
            masked["meta_info"][name][4] = long["meta_info"][name][4]
        adapter = SglangAdapter({"top_p": 0.9}, sampling_masks=True)
        columns = adapter.columns([Piece(masked, 0, len(masses))])
        self.assertEqual(columns.ids.shape, (len(masses), MOST_LISTED))
        mask, log_probs = (masked["meta_info"][name][4] for name in names)
        self.assertEqual(columns.kept[4], len(mask))
        self.assertGreater(len(mask), 1000 - LISTED)
        # Many of them are equally probable: those of smaller ids stay.
        drawn = masked["meta_info"]["output_token_logprobs"][4][1]
        own = log_probs[mask.index(drawn)]
        whole = canonical([mask], np.asarray([log_probs], np.float32), [drawn], np.asarray([own], np.float32), 200)
        record = columns.record(200)
        for name, array in record._asdict().items():
            np.testing.assert_array_equal(array[4], getattr(whole, name)[0])
        short = adapter.record(self.masked(answer, 3, later=True)[0], 200)
        for name, array in record._asdict().items():
            np.testing.assert_array_equal(np.delete(array, 4, 0), np.delete(getattr(short, name), 4, 0))

    def test_sampling_masks_that_do_not_fit_are_refused(self):
        adapter = SglangAdapter({"top_p": 0.9}, sampling_masks=True)
        answer = RECORDED["list"]["plain"][0]
        with self.assertRaisesRegex(ValueError, "of 0 positions, must be 12: the request needs 'return_sampling_mask'"):
            adapter.record(answer, 5)
        masked, _ = self.masked(answer, 3)
        own = answer["output_ids"][2]
        masked["meta_info"]["output_token_sampling_mask"][2] = [own + 1]
        with self.assertRaisesRegex(ValueError, f"position 2: token {own} was drawn"):
            adapter.record(masked, 5)
        later, _ = self.masked(answer, 3, later=True)
        later["meta_info"]["output_token_sampling_logprobs"][1].append(-1.0)
        with self.assertRaisesRegex(ValueError, "of different lengths"):
            adapter.record(later, 5)
        pieces = [Piece(self.masked(answer, 3, later)[0], 0, 12) for later in (False, True)]
        with self.assertRaisesRegex(ValueError, "two versions of SGLang"):
            adapter.columns(pieces)
        with self.assertRaisesRegex(ValueError, "before temperature"):
            SglangAdapter({}, original_log_probs=True, sampling_masks=True)

    def test_refuses_answers_without_what_it_needs(self):
        adapter = SglangAdapter(PARAMS["plain"])
        answer = RECORDED["list"]["plain"][0]
        for name, message in (
            ("output_token_logprobs", "'return_logprob': true"),
            ("output_top_logprobs", "'top_logprobs_num'"),
        ):
            changed = copy.deepcopy(answer)
            changed["meta_info"].pop(name)
            with self.assertRaisesRegex(ValueError, message):
                adapter.record(changed, 5)
        changed = copy.deepcopy(RECORDED["base64"]["plain"][0])
        changed["meta_info"]["output_top_logprobs_val_flat_b64_dtype"] = "float64"
        with self.assertRaisesRegex(ValueError, "must be float32"):
            adapter.record(changed, 5)


if __name__ == "__main__":
    unittest.main()
