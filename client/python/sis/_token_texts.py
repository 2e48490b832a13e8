"""The texts of tokens, from the tokenizer.json that Hugging Face's libraries write next to a model."""

from __future__ import annotations

import json
import re
from typing import Any, Callable, Dict

# By token id. Bytes of a character that is cut in two are written as \xE3. Added tokens, such as the
# end of a text, stand as they are named.
TokenTexts = Dict[int, str]


def parse(contents: bytes) -> TokenTexts:
    """Reads the texts in the contents of a tokenizer.json: BPE, WordPiece, WordLevel or Unigram. Raises
    ValueError."""
    try:
        file = json.loads(contents)
        vocabulary = file["model"]["vocab"]
        text = _text_of(file)
        if isinstance(vocabulary, list):  # Unigram: [token, score], by id
            texts = {token_id: text(piece[0]) for token_id, piece in enumerate(vocabulary)}
        else:
            texts = {_checked(token_id): text(token) for token, token_id in vocabulary.items()}
        for added in file.get("added_tokens") or ():
            texts[_checked(added["id"])] = str(added["content"])
        return texts
    except (AttributeError, IndexError, KeyError, RecursionError, TypeError, ValueError) as error:
        raise ValueError(f"not a tokenizer.json: {type(error).__name__}: {error}") from None


def _checked(token_id: Any) -> int:
    if type(token_id) is not int or not 0 <= token_id < 2**31:
        raise ValueError(f"token id {token_id!r} is not in [0, 2147483647]")
    return token_id


def _text_of(file: Dict[str, Any]) -> Callable[[str], str]:
    """Returns the function from a token of this file to its text."""
    parts = [file.get("decoder"), file.get("pre_tokenizer")]
    if any(_has_type(part, "ByteLevel") for part in parts):
        return _from_bytes
    if any(_has_type(part, "Metaspace", "ByteFallback") for part in parts):
        return _from_pieces
    return str


def _has_type(part: Any, *types: str) -> bool:
    """Returns true if a decoder or pre-tokenizer, or one of its parts, has one of the types."""
    if not isinstance(part, dict):
        return False
    inner = [*(part.get("decoders") or ()), *(part.get("pretokenizers") or ())]
    return part.get("type") in types or any(_has_type(one, *types) for one in inner)


def _bytes_of_characters() -> Dict[str, int]:
    """Returns the byte of each character of GPT-2's alphabet: printable bytes are their own characters,
    the rest begin at U+0100."""
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = [byte for byte in range(256) if byte not in printable]
    characters = [*printable, *range(256, 256 + len(rest))]
    return {chr(character): byte for character, byte in zip(characters, [*printable, *rest])}


_BYTES = _bytes_of_characters()


def _from_bytes(token: str) -> str:
    if any(character not in _BYTES for character in token):
        return token  # an added token
    return _printable(bytes(_BYTES[character] for character in token))


def _from_pieces(token: str) -> str:
    """Reads a token of SentencePiece: U+2581 is a space, <0x0A> a byte."""
    byte = re.fullmatch("<0x([0-9A-Fa-f]{2})>", token)
    return _printable(bytes.fromhex(byte[1])) if byte else token.replace("\u2581", " ")


def _printable(text: bytes) -> str:
    """Decodes UTF-8; other bytes are written as \\xE3."""
    escaped = text.decode(errors="surrogateescape")
    return re.sub("[\udc80-\udcff]", lambda byte: f"\\x{ord(byte[0]) - 0xdc00:02X}", escaped)
