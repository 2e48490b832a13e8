"""The texts of tokens, from the forms of tokenizer.json that there are."""

import json
import random
import unittest

from sis import _token_texts

BYTE_LEVEL = {"a": 0, "Ġthe": 1, "Ċ": 2, "Ã©": 3, "ãģ": 4, "ł": 5}
PIECES = [["<unk>", 0.0], ["▁the", -1.5], ["<0x0A>", 0], ["<0xE3>", 0], ["<0xG?>", 0]]
# As Llama 3 and Qwen have it: ByteLevel is one of several.
AMONG_OTHERS = {"type": "Sequence", "pretokenizers": [{"type": "Split"}, {"type": "ByteLevel"}]}
FALLBACK = {"type": "Sequence", "decoders": [{"type": "Replace"}, {"type": "ByteFallback"}]}


class TokenTextsTest(unittest.TestCase):
    def test_forms(self):
        for file, texts in (
            # The first two bytes of a character of three stand as bytes.
            (
                {"model": {"vocab": BYTE_LEVEL}, "decoder": {"type": "ByteLevel"}},
                ["a", " the", "\n", "é", "\\xE3\\x81", "\\xA0"],
            ),
            ({"model": {"vocab": {"Ġthe": 0}}, "decoder": None, "pre_tokenizer": AMONG_OTHERS}, [" the"]),
            ({"model": {"type": "Unigram", "vocab": PIECES}, "decoder": FALLBACK},
             ["<unk>", " the", "\n", "\\xE3", "<0xG?>"]),
            ({"model": {"vocab": {"Ġ": 0, "##ing": 1}}}, ["Ġ", "##ing"]),
            # Added tokens have their names as texts, also if they replace others.
            (
                {"model": {"vocab": BYTE_LEVEL}, "decoder": {"type": "ByteLevel"},
                 "added_tokens": [{"id": 6, "content": "<|im_end|>"}, {"id": 0, "content": "Ġ"}]},
                ["Ġ", " the", "\n", "é", "\\xE3\\x81", "\\xA0", "<|im_end|>"],
            ),
        ):  # fmt: skip
            self.assertEqual(_token_texts.parse(json.dumps(file).encode()), dict(enumerate(texts)))

    def test_other_files_are_refused(self):
        vocabularies = ["[1]", "5", '{"a": "b"}']
        vocabularies += [f'{{"a": {token}}}' for token in ("-1", "2147483648", "1e300", "0.5", "null", "true")]
        bad = [b"", b"[]", b"{}", b'{"model": {}}', b"\xff", b"[" * 100000]
        for contents in [*bad, *(f'{{"model": {{"vocab": {text}}}}}'.encode() for text in vocabularies)]:
            with self.assertRaisesRegex(ValueError, "not a tokenizer.json", msg=contents[:40]):
                _token_texts.parse(contents)

    def test_a_damaged_file_is_texts_or_refused(self):
        whole = json.dumps({"model": {"vocab": BYTE_LEVEL}, "decoder": FALLBACK, "added_tokens": []}).encode()
        generator = random.Random(1)
        for _ in range(2000):
            damaged = bytearray(whole)
            for _ in range(generator.randint(1, 4)):
                damaged[generator.randrange(len(damaged))] = generator.choice(b'"{}[]:,0a\\\xff')
            try:
                texts = _token_texts.parse(bytes(damaged))
            except ValueError:
                continue
            self.assertTrue(all(isinstance(text, str) for text in texts.values()))


if __name__ == "__main__":
    unittest.main()
