"""Files in the forms that engines write, and what is wrong with others."""

import json
import math
import pathlib
import unittest

from changed_recordings import TESTDATA, as_positions

from sis.diagnose import read_file

SAMPLED = '"id": 3, "token": "a", "logprob": -0.5'


def chat(sampled, top="[]"):
    """A file with one position: the members of its sampled token, and the array of the others."""
    return f'{{"logprobs": {{"content": [{{{sampled}, "top_logprobs": {top}}}]}}}}'


def blocks(name):
    """Returns the entries of a file of this folder, which empty lines separate, after its head."""
    text = pathlib.Path(__file__).with_name(name).read_text(encoding="utf-8")
    return text.strip("\n").split("\n\n")[1:]


def read(text):
    return as_positions(read_file("file", text))


def described(position):
    """Returns the tokens of a position, each as "id text log-prob", with \\ before what is no character."""
    of = lambda value: "-" if value is None else value
    tokens = (
        f"{of(token['id'])} {of(token['token'])} {-math.inf if token['logprob'] is None else token['logprob']:g}"
        for token in (position, *position["top_logprobs"])
    )
    return " | ".join(tokens).encode(errors="backslashreplace").decode()


class FormsTest(unittest.TestCase):
    def test_one_position(self):
        for name, text, expected in (entry.split("\n") for entry in blocks("one_position.txt")):
            with self.subTest(name):
                ((position,),) = read(text)
                self.assertEqual(described(position), expected)

    def test_clamped_log_probs_are_minus_infinity(self):
        for clamped in ("null", "-9999", "-9999.0", "-3.4e38", "-1e300"):
            file = read_file("file", chat(f'"id": 3, "logprob": {clamped}'))
            self.assertEqual(file.sampled_log_probs.tolist(), [-math.inf], clamped)
        self.assertEqual(read_file("file", chat('"id": 3, "logprob": -9998')).sampled_log_probs.tolist(), [-9998])

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
            placed = [p["id"] if p["top_logprobs"] else -p["id"] for p in positions]
            self.assertEqual(placed, expected, tokens)

    def test_a_real_response_of_llama_cpp(self):
        (positions,) = as_positions(read_file(str(TESTDATA / "llama_cpp_left_out.json")))
        self.assertEqual(len(positions), 32)  # of which the list has 28
        self.assertEqual([i for i, position in enumerate(positions) if not position["top_logprobs"]], [0, 2, 29, 30])
        self.assertEqual(positions[1]["token"], "風")

    def test_every_example_can_be_read(self):
        for path in sorted(TESTDATA.glob("*.json*")):
            self.assertGreater(sum(map(len, as_positions(read_file(str(path))))), 0, path)

    def test_lists_of_whole_vocabularies(self):
        """Quadratic time in the listed tokens would exceed the test's time limit."""
        tokens = 400_000
        listed = ",".join(f'"{i}":-14' for i in range(tokens))
        completion = f'{{"logprobs": {{"tokens": ["7"], "token_logprobs": [-14], "top_logprobs": [{{{listed}}}]}}}}'
        for text, last in ((f"[{{{listed}}}]", (tokens - 1, None)), (completion, (None, str(tokens - 1)))):
            file = read_file("file", text)
            self.assertEqual((len(file.listed), file.tokens[file.listed[-1]]), (tokens, last))


class WrongTest(unittest.TestCase):
    def test_errors_name_the_fault(self):
        deep = "[" * 100_000
        texts = [tuple(entry.split("\n")) for entry in blocks("malformed.txt")]
        several = [
            ("", "there is no response in it"),
            (deep, "file: not JSON: "),
            ("{}\n{", "double quotes: line 2 column 2"),
        ]
        for text, message in (*texts, *several, (chat(SAMPLED) + "\n{}", "file: response 1: logprobs: is missing")):
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
