"""vLLM's recorded answers to the same seeded requests, in each of its forms (record_vllm.py)."""

import json
import pathlib
import types
import unittest

import numpy as np

import sis
from sis.engines.vllm import GenerateAdapter, OpenAiAdapter, VllmAdapter, hand_over_arrays

RECORDED = json.loads((pathlib.Path(__file__).parent / "testdata/vllm.json").read_text())
LISTED = 8


def completion(fields):
    """As vLLM's CompletionOutput, with FlatLogprobs or dictionaries of Logprob."""
    log_probs = fields["logprobs"]
    if isinstance(log_probs, dict):
        size = len(log_probs["start_indices"])
        made = type("FlatLogprobs", (), {**log_probs, "__len__": lambda self: size})()
    else:
        made = [
            {token: types.SimpleNamespace(logprob=value, rank=rank) for token, value, rank in position}
            for position in log_probs
        ]
    return types.SimpleNamespace(**{**fields, "logprobs": made})


def adapter(mode="processed_logprobs", **changed):
    """With vLLM's defaults."""
    params = {
        "temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0, "presence_penalty": 0.0, "frequency_penalty": 0.0,
        "repetition_penalty": 1.0, "logprobs": LISTED, "output_kind": types.SimpleNamespace(name="CUMULATIVE"),
        **changed,
    }  # fmt: skip
    return VllmAdapter(llm(mode), types.SimpleNamespace(**params))


def llm(mode="processed_logprobs", speculative=None):
    """As vLLM's LLM, which holds an engine."""
    model = types.SimpleNamespace(logprobs_mode=mode)
    config = types.SimpleNamespace(model_config=model, speculative_config=speculative)
    return types.SimpleNamespace(
        llm_engine=types.SimpleNamespace(model_config=model, vllm_config=config)
    )


OPENAI = {"temperature": 1.0, "return_token_ids": True, "return_tokens_as_token_ids": True}


def openai(**request):
    chat = {"messages": [], "logprobs": True} if "top_logprobs" in request else {"logprobs": LISTED}
    return OpenAiAdapter({**OPENAI, **chat, **request}, "processed_logprobs")


def generate(mode="processed_logprobs", **sampling_params):
    return GenerateAdapter({"logprobs": 6, **sampling_params}, mode)


class VllmTest(unittest.TestCase):
    def assert_same(self, a, b):
        for got, want in zip(a, b):
            np.testing.assert_array_equal(got, want)

    def records(self, kind):
        for name, outputs in RECORDED[kind].items():
            for index, fields in enumerate(outputs):
                yield (name, index), fields

    def test_speculative_decoding_is_refused(self):
        params = types.SimpleNamespace(temperature=1.0, logprobs=LISTED)
        # The same without it goes: `adapter`.
        for method in ("ngram", "mtp"):
            of_llm = llm(speculative=types.SimpleNamespace(method=method))
            of_async_llm = of_llm.llm_engine
            config = of_async_llm.vllm_config
            model = config.model_config
            for engine in (of_llm, of_async_llm, types.SimpleNamespace(vllm_config=config), config):
                with self.assertRaisesRegex(ValueError, f"speculative_config is set.*{method}"):
                    VllmAdapter(engine, params)
            # It doesn't say whether the engine does.
            for hidden in (model, types.SimpleNamespace(model_config=model)):
                with self.assertRaisesRegex(ValueError, "no vllm_config: give the LLM or AsyncLLM"):
                    VllmAdapter(hidden, params)

    def test_records_are_what_the_engine_listed(self):
        outside, fewer = 0, 0
        for top_k in (1, 5, LISTED, 20):
            for _, fields in self.records("dict"):
                record = adapter().record(completion(fields), top_k)
                self.assertEqual(record.sampled_ids.tolist(), fields["token_ids"])
                for row, (token, position) in enumerate(zip(fields["token_ids"], fields["logprobs"])):
                    values = {entry[0]: entry[1] for entry in position}
                    # By vLLM's own ranks: those of a sampled token outside the list lie above it.
                    best = sorted(
                        ((-value, name) for name, value, rank in position if rank <= LISTED and value > -np.inf)
                    )[:top_k]
                    ids = [name for _, name in best]
                    self.assertEqual(record.top_k_ids[row].tolist(), ids + [-1] * (top_k - len(ids)))
                    self.assertEqual(record.sampled_log_probs[row], np.float32(values[token]))
                    outside += top_k == LISTED and token not in ids
                    fewer += top_k == LISTED and len(ids) < top_k
        self.assertGreater(min(outside, fewer), 5)

    def test_flat_log_probs_give_the_same_records(self):
        flat = dict(self.records("flat"))
        for name, fields in self.records("dict"):
            for top_k in (1, 5, LISTED, 20):
                self.assert_same(
                    adapter().record(completion(flat[name]), top_k), adapter().record(completion(fields), top_k)
                )

    def test_an_engine_that_is_built_otherwise_is_refused(self):
        with self.assertRaisesRegex(ValueError, "has no output_processor"):
            hand_over_arrays(llm())

    def test_completions_of_the_openai_server_give_the_same_records(self):
        flat = dict(self.records("flat"))
        for name, choice in self.records("completions"):
            record = openai().record(choice, LISTED)
            want = adapter().record(completion(flat[name]), LISTED)
            np.testing.assert_array_equal(record.sampled_ids, want.sampled_ids)
            np.testing.assert_array_equal(record.top_k_ids, want.top_k_ids)
            np.testing.assert_allclose(record.sampled_log_probs, want.sampled_log_probs, atol=1e-4)
            np.testing.assert_allclose(record.top_k_log_probs, want.top_k_log_probs, atol=1e-4)
            self.assertEqual(openai().told(choice).ended, "finished")

    def test_the_set_of_a_chat_or_a_generation_does_not_depend_on_the_token_that_was_drawn(self):
        """Sends the same seeded request with 6 log-probs, one of them for the sampled token, and with 16. The 16 show the
        5 most probable tokens: the tokens above the fifth are recorded."""
        of_chat = openai(top_logprobs=6), lambda top: int(top["token"][9:])
        for kind, (made, id_of) in {"chat": of_chat, "generate": (generate(), lambda top: top["token_id"])}.items():
            outside = 0
            for few, many in RECORDED[kind].values():
                self.assertEqual(few["token_ids"], many["token_ids"])
                record = made.record(few, 6)
                for row, position in enumerate(many["logprobs"]["content"]):
                    tops = {id_of(top): top["logprob"] for top in position["top_logprobs"]}
                    fifth = sorted(tops.values())[-5]
                    ids = [token for token in sorted(tops, key=lambda t: (-tops[t], t)) if tops[token] > fifth]
                    self.assertEqual(record.top_k_ids[row].tolist(), ids + [-1] * (6 - len(ids)))
                    outside += few["token_ids"][row] not in ids
                    self.assertAlmostEqual(record.sampled_log_probs[row], position["logprob"], places=4)
                self.assertEqual(made.told(few).ended, "finished")
            self.assertGreater(outside, 5)

    def test_a_generation_that_says_too_little_is_refused(self):
        for message, mode, wrong in (
            ("logprobs_mode is 'raw_logits'", "raw_logits", {}),
            ("asks for 2 log-probs", "processed_logprobs", {"logprobs": 2}),
            ("asks for None log-probs", "processed_logprobs", {"logprobs": None}),
            ("temperature is 0", "processed_logprobs", {"temperature": 0}),
        ):
            with self.assertRaisesRegex(ValueError, message):
                generate(mode, **wrong)
        self.assertEqual(generate(top_p=0.5, top_k=-1).sampling, sis.Sampling("processed", top_p=0.5, top_k=0))

    def test_a_request_that_says_too_little_is_refused(self):
        for message, wrong in (
            ("no 'return_token_ids'", {"return_token_ids": False}),
            ("no 'return_tokens_as_token_ids'", {"return_tokens_as_token_ids": None}),
            ("asks for 2 log-probs", {"top_logprobs": 2}),
            ("temperature is 0", {"temperature": 0}),
        ):
            with self.assertRaisesRegex(ValueError, message):
                openai(**{"top_logprobs": 6, **wrong})
        with self.assertRaisesRegex(ValueError, "no 'top_k'"):
            OpenAiAdapter({**OPENAI, "top_p": 1.0, "logprobs": 8}, "raw_logprobs")

    def test_settings_come_from_the_engine(self):
        self.assertEqual(
            adapter(temperature=0.7, top_p=0.9, top_k=-1, structured_outputs=object(), bad_words=["x"]).sampling,
            sis.Sampling(
                "processed", temperature=0.7, top_p=0.9, top_k=0, min_p=0.0, presence_penalty=0.0,
                frequency_penalty=0.0, repetition_penalty=1.0, logit_bias=True, grammar=True,
            ),
        )  # fmt: skip
        self.assertEqual(adapter("raw_logprobs").sampling.log_probs, "raw")
        for message, mode, changed in (
            ("logprobs_mode is 'raw_logits'", "raw_logits", {}),
            ("temperature is 0.0: greedy", "raw_logprobs", {"temperature": 0.0}),
            ("SamplingParams.logprobs is None", "raw_logprobs", {"logprobs": None}),
        ):
            with self.assertRaisesRegex(ValueError, message):
                adapter(mode, **changed)

    def test_versions_are_those_that_the_engine_names(self):
        _, fields = next(self.records("flat"))
        named = [types.SimpleNamespace(version="v1", start=0, end=3), types.SimpleNamespace(version="v2", start=3, end=9)]
        ranges = [("v1", 0, 3), ("v2", 3, 9)]
        made = adapter()
        self.assertEqual(list(made.told(completion(fields)).versions), [])
        self.assertEqual(made.told(completion({**fields, "weight_versions": named})).versions, ranges)
        # While a request runs, the engine has them, and its outputs don't.
        state = types.SimpleNamespace(_weight_version_spans=lambda: named)
        made._engine.llm_engine.output_processor = types.SimpleNamespace(
            external_req_ids={"7": ["7-a1"], "two": ["two-0", "two-1"]}, request_states={"7-a1": state, "two-0": state}
        )
        outputs = [types.SimpleNamespace(request_id=name, outputs=[completion(fields)]) for name in ("7", "two", "8")]
        self.assertEqual([list(made.told(output).versions) for output in outputs], [ranges, [], []])
        of_json = [{"version": version, "start": start, "end": stop} for version, start, stop in ranges]
        self.assertEqual(openai().told({"weight_versions": of_json, "weight_version": "v2"}).versions, ranges)
        self.assertEqual(openai().told({"weight_version": 12}).versions, [("12", 0, None)])
        self.assertEqual(openai().told({}).versions, [])


if __name__ == "__main__":
    unittest.main()
