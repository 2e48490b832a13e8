"""Files in the forms that engines write, and what is wrong with others."""

import json
import math
import pathlib
import unittest

from changed_recordings import TESTDATA, as_positions

from sis.diagnose import read_file

ONE_VLLM = (
    '[{"5": {"logprob": -2.5, "rank": 2, "decoded_token": "a"}, '
    '"7": {"logprob": -0.5, "rank": 1, "decoded_token": null}}]'
)
SGLANG = '"output_token_logprobs": [[-2.5, 5, "a"]], "output_top_logprobs": [[[-0.5, 7, null], [-2.5, 5]]]'
SAMPLED = '"id": 3, "token": "a", "logprob": -0.5'


def chat(sampled, top="[]"):
    """A file with one position: the members of its sampled token, and the array of the others."""
    return f'{{"logprobs": {{"content": [{{{sampled}, "top_logprobs": {top}}}]}}}}'


def read(text):
    return as_positions(read_file("file", text))


def described(position):
    """Returns the tokens of a position, as "id text log-prob"."""
    return [
        f"{'-' if token.id is None else token.id} {'-' if token.text is None else token.text} {token.log_prob:g}"
        for token in (position.sampled, *position.top)
    ]


class FormsTest(unittest.TestCase):
    def test_one_position(self):
        vllm = ["5 a -2.5", "5 a -2.5", "7 - -0.5"]
        sglang = ["5 a -2.5", "7 - -0.5", "5 a -2.5"]
        for name, text, expected in (
            ("llama.cpp",
             chat('"id": 3, "token": "a", "bytes": [97, 255], "logprob": -0.5',
                  '[{"id": 16777215, "token": "b", "bytes": [], "logprob": -1e-3}]'),
             ["3 a\udcff -0.5", "16777215  -0.001"]),
            ("a whole response", f'{{"id": "x", "choices": [{{"index": 0, {chat(SAMPLED)[1:]}]}}', ["3 a -0.5"]),
            ("token_id:N of vLLM", chat('"token": "token_id:42", "bytes": [116], "logprob": 0'), ["42 - 0"]),
            ("a text like token_id:N", chat('"token": "token_id:x", "logprob": -1'), ["- token_id:x -1"]),
            ("bytes alone", chat('"bytes": [98], "logprob": 0'), ["- b 0"]),
            ("text alone", chat('"token": "c", "bytes": null, "id": null, "logprob": 0'), ["- c 0"]),
            ("vLLM's dictionaries", ONE_VLLM, vllm),
            ("in an array", f"[{ONE_VLLM}]", vllm),
            ("as logprobs", f'{{"logprobs": {ONE_VLLM}}}', vllm),
            ("as outputs", f'{{"outputs": [{{"token_ids": [5], "logprobs": {ONE_VLLM}}}]}}', vllm),
            # Where ids are given, the order does not count; one that is not listed has no log-prob.
            ("sampled second", f'{{"token_ids": [7], "logprobs": {ONE_VLLM}}}', ["7 - -0.5", *vllm[1:]]),
            ("sampled not listed", f'{{"token_ids": [8], "logprobs": {ONE_VLLM}}}', ["8 - -inf", *vllm[1:]]),
            ("log-probs alone", '[{"9": -1.5}]', ["9 - -1.5", "9 - -1.5"]),
            ("FlatLogprobs",
             '{"start_indices": [0], "end_indices": [2], "token_ids": [5, 7], "logprobs": [-2.5, -0.5], '
             '"decoded_tokens": ["a", null]}', vllm),
            ("SGLang's meta_info", f'{{"text": "a", "meta_info": {{{SGLANG}}}}}', sglang),
            ("SGLang's answers", f'[{{"meta_info": {{{SGLANG}}}}}]', sglang),
            ("SGLang's lists alone", f"{{{SGLANG}}}", sglang),
            ("SGLang without lists", '{"output_token_logprobs": [[-2.5, 5, "a"]]}', ["5 a -2.5"]),
            ("SGLang's nulls",
             '{"output_token_logprobs": [[null, 5, "a"]], "output_top_logprobs": [null]}', ["5 a -inf"]),
            ("SGLang's listed null",
             '{"output_token_logprobs": [[-1, 5, "a"]], "output_top_logprobs": [[[null, 6], [-1, 5]]]}',
             ["5 a -1", "6 - -inf", "5 a -1"]),
            ("a completion",
             '{"choices": [{"text": "a", "logprobs": {"tokens": ["a"], "token_logprobs": [-2.5], '
             '"top_logprobs": [{"b": -0.5}], "text_offset": [0]}}]}', ["- a -2.5", "- b -0.5"]),
            ("a completion without lists",
             '{"logprobs": {"tokens": ["token_id:7"], "token_logprobs": [null], "top_logprobs": null}}', ["7 - -inf"]),
            ("llama.cpp's probabilities",
             '{"completion_probabilities": [{"id": 5, "token": "a", "prob": 1, '
             '"top_probs": [{"id": 5, "token": "a", "prob": 1}, {"id": 6, "token": "b", "prob": 0}]}]}',
             ["5 a 0", "5 a 0", "6 b -inf"]),
        ):  # fmt: skip
            with self.subTest(name):
                ((position,),) = read(text)
                self.assertEqual(described(position), expected)

    def test_clamped_log_probs_are_minus_infinity(self):
        for clamped in ("null", "-9999", "-9999.0", "-3.4e38", "-1e300"):
            ((position,),) = read(chat(f'"id": 3, "logprob": {clamped}'))
            self.assertEqual(position.sampled.log_prob, -math.inf, clamped)
        ((position,),) = read(chat('"id": 3, "logprob": -9998'))
        self.assertEqual(position.sampled.log_prob, -9998)

    def test_several_sequences(self):
        one = chat(SAMPLED)
        choices = ", ".join([one] * 3)
        for text, count in (
            (f"[{one}, {one}]", 2),
            (f"{one}\n\n{one}", 2),
            (f'{{"choices": [{choices}]}}\n{one}', 4),
        ):
            self.assertEqual(len(read(text)), count, text)

    def test_tokens_that_llama_cpp_omits_have_a_position(self):
        """Where the answer does not tell which of two equal tokens was left out, neither has a list."""
        for tokens, entries, expected in (
            ([1, 2, 3, 4], [1, 4], [1, -2, -3, 4]),
            ([1, 2, 3], [1, 2, 3], [1, 2, 3]),
            ([1, 2, 2, 3], [1, 2, 3], [1, -2, -2, 3]),
            ([1, 2], [], [-1, -2]),
            ([], [1, 2], [1, 2]),  # without return_tokens
        ):
            listed = [{"id": i, "logprob": -1, "top_logprobs": [{"id": i, "logprob": -1}]} for i in entries]
            (positions,) = read(json.dumps({"tokens": tokens, "completion_probabilities": listed}))
            placed = [p.sampled.id if p.top else -p.sampled.id for p in positions]
            self.assertEqual(placed, expected, tokens)

    def test_a_real_response_of_llama_cpp(self):
        (positions,) = as_positions(read_file(str(TESTDATA / "llama_cpp_left_out.json")))
        self.assertEqual(len(positions), 32)  # of which the list has 28
        self.assertEqual([i for i, position in enumerate(positions) if not position.top], [0, 2, 29, 30])
        self.assertEqual(positions[1].sampled.text, "風")

    def test_every_example_can_be_read(self):
        for path in sorted(TESTDATA.glob("*.json*")):
            self.assertGreater(sum(map(len, as_positions(read_file(str(path))))), 0, path)

    def test_lists_of_whole_vocabularies(self):
        """Quadratic time in the listed tokens would exceed the test's time limit."""
        tokens = 400_000
        listed = ",".join(f'"{i}":-14' for i in range(tokens))
        ((vllm,),) = read(f"[{{{listed}}}]")
        self.assertEqual((len(vllm.top), vllm.top[-1].id), (tokens, tokens - 1))
        completion = f'{{"logprobs": {{"tokens": ["7"], "token_logprobs": [-14], "top_logprobs": [{{{listed}}}]}}}}'
        ((position,),) = read(completion)
        self.assertEqual((len(position.top), position.top[0].text), (tokens, "0"))


class WrongTest(unittest.TestCase):
    def test_errors_name_the_fault(self):
        deep = "[" * 100_000
        for text, message in (
            ("", "file: not JSON: "),
            (chat(SAMPLED)[:40], "file: not JSON: "),
            (deep, "file: not JSON: "),
            (chat('"id": 3, "logprob": NaN'), "file: not JSON: "),
            ("[]", "file: is an empty array"),
            ("[3]", "file: response 0: logprobs: is missing"),
            ("{}\n{", "file: line 2: not JSON: "),
            (chat(SAMPLED) + "\n{}", "file: response 1: logprobs: is missing"),
            ('{"choices": []}', "choices: is not an array with a first element"),
            ('{"choices": [3]}', "logprobs: is missing"),
            ('{"outputs": []}', "outputs: is not an array with a first element"),
            ('{"logprobs": null}', "logprobs: is missing"),
            ('{"logprobs": {}}', "KeyError: 'content'"),
            ('{"logprobs": {"content": [3]}}', "position 0: TypeError"),
            ('{"logprobs": {"content": [{"id": 3, "logprob": -1}]}}', "position 0: KeyError: 'top_logprobs'"),
            (chat(SAMPLED, "3"), "position 0: TypeError"),
            (chat('"id": 3'), "position 0: KeyError: 'logprob'"),
            (chat('"id": 3, "logprob": "-1"'), "log-prob '-1' is not a number"),
            (chat('"id": 3, "logprob": 0.02'), "position 0: sampled log-prob 0.02, must be at most 1/64"),
            (chat('"logprob": -1'), "position 0: a token has none of id, token and bytes"),
            (chat('"id": -1, "logprob": -1'), "id: -1 is no integer in [0, 2^24)"),
            (chat('"id": 16777216, "logprob": -1'), "id: 16777216 is no integer in"),
            (chat('"id": "3", "logprob": -1'), "id: '3' is no integer"),
            (chat('"token": 3, "logprob": -1'), "token: 3 is not a string"),
            (chat('"bytes": "a", "logprob": -1'), "bytes: is not an array of bytes"),
            (chat('"bytes": [1, 256], "logprob": -1'), "bytes must be in range(0, 256)"),
            (chat(SAMPLED, '[{"id": 3, "logprob": -1}, {"id": 4, "logprob": 1}]'),
             "position 0: listed log-prob 1, must be at most 1/64"),
            ('[{"5": {}}]', "KeyError: 'logprob'"),
            ('[{"5": -1}, {}]', "position 1: is not an object with a token"),
            ('[{"5": -1, "a": -1}]', "position 0: 'a' is not an id"),
            ('{"token_ids": [1, 2], "logprobs": [{"5": -1}]}', "token_ids: has 2 elements for 1 positions"),
            ('{"start_indices": [0], "end_indices": [1], "token_ids": [5], "logprobs": []}', "must be 1"),
            ('{"start_indices": [0], "end_indices": [2], "token_ids": [5], "logprobs": [-1]}', "must be 2"),
            ('{"start_indices": [1], "end_indices": [1], "token_ids": [5], "logprobs": [-1]}', "must be above"),
            ('{"start_indices": [1], "end_indices": [], "token_ids": [5], "logprobs": [-1]}', "one for each"),
            ('{"output_token_logprobs": [5]}', "TypeError"),
            ('{"output_token_logprobs": [[-1, 5, 6]]}', "text of token 5: 6 is not a string"),
            ('[{"5": {"logprob": -1, "decoded_token": 6}}]', "text of token 5: 6 is not a string"),
            ('{"output_token_logprobs": [[-1, 5]], "output_top_logprobs": []}',
             "output_top_logprobs: the answer has 0 positions, must be 1"),
            ('{"output_token_logprobs": [[-1, 5]], "output_top_logprobs": [3]}', "TypeError"),
            ('{"logprobs": {"tokens": ["a"], "token_logprobs": []}}', "token_logprobs: has 0 elements for 1 tokens"),
            ('{"logprobs": {"tokens": [3], "token_logprobs": [-1]}}', "tokens: 3 is not a string"),
            ('{"logprobs": {"tokens": ["a"], "token_logprobs": [-1], "top_logprobs": [{"a": 2}]}}',
             "listed log-prob 2, must be"),
            ('{"completion_probabilities": [{"id": 5, "prob": 2, "top_probs": []}]}',
             "position 0: probability 2, must be in [0, 1]"),
            ('{"completion_probabilities": [{"id": 1, "logprob": -1, "top_logprobs": []}], "tokens": [2]}',
             "log-probs of token 1, entry 0, which the answer doesn't have there"),
        ):  # fmt: skip
            with self.subTest(text[:200]):
                with self.assertRaises(ValueError) as raised:
                    read_file("file", text)
                self.assertTrue(str(raised.exception).startswith("file: "), raised.exception)
                self.assertIn(message, str(raised.exception))

    def test_any_bytes_are_refused_or_read(self):
        """Each example with one character changed raises nothing but ValueError."""
        for path in sorted(pathlib.Path(TESTDATA).glob("*.json")):
            text = path.read_text()[:2000] if path.stat().st_size > 2000 else path.read_text()
            for at in range(0, len(text), 7):
                for other in ('"', "9", "[", "-"):
                    try:
                        read_file("file", text[:at] + other + text[at + 1 :])
                    except ValueError:
                        pass


if __name__ == "__main__":
    unittest.main()
