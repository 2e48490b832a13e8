"""Answers as SGLang and vLLM send them, recorded at a service in this process."""

import unittest
import warnings

import fake_service
import numpy as np

import sis
from sis.engines.sglang import SglangAdapter
from sis.engines.vllm import GenerateAdapter
from sis.integrations._recorded_answers import AnswerRecorder, vllm_answer

TOP_K = 2
TOKENS = [5, 6, 7, 5, 6, 7, 5, 6, 7]


def listed(token):
    return [(token, -0.25), (1, -2.5), (2, -3.5), (3, -4.5)]


def of_sglang(tokens, weight_version):
    """An answer of tokens of probability exp(-0.25)."""
    meta = {
        "finish_reason": {"type": "stop"}, "prompt_tokens": 3, "weight_version": weight_version,
        "output_token_logprobs": [[-0.25, token, None] for token in tokens],
        "output_top_logprobs": [[[value, top, None] for top, value in listed(token)[:TOP_K]] for token in tokens],
    }  # fmt: skip
    return {"output_ids": tokens, "meta_info": meta}


def of_vllm(tokens, spans):
    content = [
        {
            "token_id": token,
            "logprob": -0.25,
            "top_logprobs": [{"token_id": top, "logprob": value} for top, value in listed(token)],
        }
        for token in tokens
    ]
    choice = {"token_ids": tokens, "finish_reason": "stop", "logprobs": {"content": content}}
    if isinstance(spans, list):
        keys = ("version", "start", "end")
        choice["weight_versions"] = [dict(zip(keys, span)) for span in spans]
        return vllm_answer({"choices": [choice]})
    return vllm_answer({"choices": [choice], "weight_version": spans})


class RecordedAnswersTest(fake_service.ServiceTest):
    def setUp(self):
        super().setUp()
        self.run_ = self.client.create_run("run", seed=1, vocabulary_size=20, top_k=TOP_K)
        self.recorder = AnswerRecorder(self.client, self.run_)

    def record(self, answer, name="s", tokens=TOKENS):
        """The messages of the warnings."""
        adapter = SglangAdapter({}) if "meta_info" in answer else GenerateAdapter({"logprobs": 4}, "processed_logprobs")
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            self.recorder.record(name, tokens, adapter, answer)
        return [str(warning.message) for warning in seen]

    def policy_version(self):
        return self.client.get_run("run").policy_version

    def test_an_answer_is_recorded_with_its_version(self):
        for number, (told, version) in enumerate((("3", 3), (3, 3), ("0", 0), ("0012", 12))):
            for of_engine in (of_sglang, of_vllm):
                name = f"{of_engine.__name__}-{number}"
                self.assertEqual(self.record(of_engine(TOKENS, told), name), [])
                self.assertEqual(self.blocks(name), [(0, 9, version)])
        self.assertEqual(self.policy_version(), 12)
        (records,) = [self.client.fetch_top_k(self.run_, [sis.Slice("of_sglang-0", length=9)])]
        np.testing.assert_array_equal(records.sampled_ids, TOKENS)

    def test_positions_of_a_version_that_is_no_number_are_gaps_and_named(self):
        unknown = sis.MissingReason.UNKNOWN_VERSION
        for text in ("step-42", "default", "v7", "²", "٣", "-1", "1.5", "", None):
            for of_engine in (of_sglang, of_vllm):
                self.service.batches.clear()
                self.service.sequences.clear()
                messages = [self.record(of_engine(TOKENS, text)) for _ in range(2)]
                self.assertEqual(self.service.sequences["run", "s", 0].gaps, dict.fromkeys(range(9), unknown), text)
                self.assertEqual(self.blocks("s"), [], text)
                named = "without a weight version" if text is None else f"of weight version {text!r}"
                for (message,) in messages:
                    self.assertIn(f"SIS: positions {named} are not recorded", message)
        self.assertEqual(self.policy_version(), 0)

    def test_each_span_is_a_block_of_its_version(self):
        self.assertEqual(self.record(of_vllm(TOKENS, [(3, 0, 5), (4, 5, 9)])), [])
        self.assertEqual(self.blocks("s"), [(0, 5, 3), (5, 4, 4)])
        self.assertEqual(self.policy_version(), 4)
        # Only the positions of a version that is no number are left out.
        (message,) = self.record(of_vllm(TOKENS, [("v1", 0, 2), ("5", 2, 9)]), "mixed")
        self.assertIn("'v1'", message)
        self.assertEqual(self.blocks("mixed"), [(2, 7, 5)])
        self.assertEqual(self.service.sequences["run", "mixed", 0].sealed, 9)

    def test_positions_in_no_span_are_gaps(self):
        for number, (spans, wanted) in enumerate((
            ([(3, 0, 5), (4, 5, 8)], [(0, 5, 3), (5, 3, 4)]), ([(3, 0, 5), (4, 6, 9)], [(0, 5, 3), (6, 3, 4)]),
            ([(3, 1, 9)], [(1, 8, 3)]), ([(3, 0, 10)], [(0, 9, 3)]), ([(3, 0, 9), (4, 9, 5)], [(0, 9, 3)]),
        )):  # fmt: skip
            with self.subTest(spans):
                self.record(of_vllm(TOKENS, spans), f"s{number}")
                self.assertEqual(self.blocks(f"s{number}"), wanted)
                self.assertEqual(len(self.service.sequences["run", f"s{number}", 0].gaps), 9 - sum(n for _, n, _ in wanted))

    def test_an_answer_without_numbers_of_positions_is_refused(self):
        for spans in ([(3,)], [(3, None, None)]):
            with self.subTest(spans):
                self.assertRegex(*self.record(of_vllm(TOKENS, spans)), "answer s is not recorded: ")
        self.assertEqual(self.service.batches, [])

    def test_an_answer_of_other_tokens_is_refused_by_name(self):
        for of_engine in (of_sglang, of_vllm):
            for told, wanted in (
                (TOKENS[:4], "answer s is not recorded: ValueError: response_length: got 9; must be 4, the length"),
                ([*TOKENS, 5], "response_length: got 9; must be 10"),
                ([*TOKENS[:7], 8, 7], "tokens: position 7: got 6; must be 8"),
            ):
                with self.subTest(told, engine=of_engine.__name__):
                    (message,) = self.record(of_engine(told, "1"))
                    self.assertIn(wanted, message)
        self.assertEqual(self.service.batches, [])
        self.assertEqual(self.policy_version(), 0)
        (message,) = self.record({"meta_info": {"output_token_logprobs": 7}})
        self.assertIn("answer s is not recorded: ", message)
        # Others are recorded.
        self.assertEqual(self.record(of_sglang(TOKENS, "1")), [])
        self.assertEqual(self.blocks("s"), [(0, 9, 1)])


if __name__ == "__main__":
    unittest.main()
