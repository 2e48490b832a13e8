"""Log-probs in files that engines and trainers wrote.

A log-prob that is null, or at most -9999 (as engines write minus infinity), is ignored: such a token counts as not
listed.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from typing import Any, Dict, Iterable, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from sis.engines import llama_cpp, sglang
from sis.engines._adapter import text_of
from sis.engines.openai import TOKEN_ID, Position, chat_positions, completion_positions

# Nats. Engines clamp minus infinity to this, as JSON can't hold it.
_CLAMPED = -9999.0
HIGHEST_LOG_PROB = 2.0**-6
# The largest vocabulary of a run.
_ID_LIMIT = 1 << 24


class Token(NamedTuple):
    """A token in a file: an id, a text or both. Bytes that are not UTF-8 are surrogates in the text."""

    id: Optional[int]
    text: Optional[str]


@dataclass(frozen=True)
class RecordedFile:
    """S sequences of N positions in all, which list M tokens in all."""

    name: str
    # int64 [S]. Positions of each sequence.
    lengths: np.ndarray
    # int64 [N], indices of `tokens`, and float32 [N], nats; -inf if the file gives none.
    sampled: np.ndarray
    sampled_log_probs: np.ndarray
    # int64 [N]. How many tokens each position lists.
    counts: np.ndarray
    # int64 [M], indices of `tokens`, and float32 [M], in the order of the file.
    listed: np.ndarray
    log_probs: np.ndarray
    tokens: Tuple[Token, ...]
    # Texts of ids, as they first stand in the file.
    texts: Mapping[int, str]

    @property
    def has_ids(self) -> bool:
        """Returns True if every token has an id."""
        return all(token.id is not None for token in self.tokens)


def read_file(name: str, text: Optional[str] = None) -> RecordedFile:
    """Reads the sequences of a file of JSON or JSON lines: one response, several, or an array of them.

    Args:
        text: What the file holds; None: read it.

    Raises:
        ValueError: Names file, response, position and value of what is wrong.
        OSError: The file can't be read.
    """
    try:
        if text is None:
            with open(name, encoding="utf-8") as file:
                text = file.read()
        found = list(_values(text))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{name}: not JSON: {error}") from None
    # One response, an array of them, or one after the other.
    responses = found[0] if len(found) == 1 and isinstance(found[0], list) and not _is_vllm_list(found[0]) else found
    if not responses:
        raise ValueError(f"{name}: there is no response in it")
    reader = _Reader()
    for number, response in enumerate(responses):
        try:
            for completion in _completions(response):
                reader.add(completion)
        except Exception as error:  # Any: files hold anything.
            raise ValueError(f"{name}: response {number}: {text_of(error)}") from None
    return reader.recorded(name)


def _no_number(text: str) -> None:
    raise ValueError(f"{text} is no JSON")


def _values(text: str) -> Iterator[Any]:
    """Yields the values of JSON or JSON lines."""
    decoder, first, at = json.JSONDecoder(parse_constant=_no_number), re.compile(r"\S"), 0
    while found := first.search(text, at):
        value, at = decoder.raw_decode(text, found.start())
        yield value


def _completions(response: Any) -> List[Any]:
    """Returns the sequences of a response."""
    for name in ("choices", "outputs"):  # OpenAI's name and vLLM's
        completions = response.get(name) if isinstance(response, dict) else None
        if completions is None:
            continue
        if not isinstance(completions, list) or not completions:
            raise ValueError(f"{name}: is not an array with a first element")
        return completions
    return [response]


def _is_vllm_list(found: Any) -> bool:
    """Returns True if an array is vLLM's list of dictionaries from ids."""
    first = found[0] if isinstance(found, list) and found else None
    return isinstance(first, dict) and bool(first) and _id_in(next(iter(first))) is not None


def _id_in(text: str) -> Optional[int]:
    """Returns the id in a string of digits."""
    return int(text) if len(text) < 20 and text.isascii() and text.isdigit() else None


class _Reader:
    """The sequences of one file, as they are read."""

    def __init__(self) -> None:
        self._numbers: Dict[Token, int] = {}
        self._texts: Dict[int, str] = {}
        self._lengths: List[int] = []
        self._read: List[Position] = []

    def recorded(self, name: str) -> RecordedFile:
        def array(values: Iterable[Any], dtype: Any) -> np.ndarray:
            return np.asarray(list(values), dtype)

        return RecordedFile(
            name,
            array(self._lengths, np.int64),
            array((position.token for position in self._read), np.int64),
            array((position.log_prob for position in self._read), np.float32),
            array((len(position.ids) for position in self._read), np.int64),
            array((token for position in self._read for token in position.ids), np.int64),
            array((value for position in self._read for value in position.log_probs), np.float32),
            tuple(self._numbers),
            self._texts,
        )

    def add(self, completion: Any) -> None:
        """Reads a sequence."""
        positions, first = self._positions(completion), len(self._read)
        try:
            for position in positions:
                own = _log_prob("sampled", position.log_prob)
                listed = [_log_prob("listed", value) for value in position.log_probs]
                self._read.append(Position(position.token, own, position.ids, listed))
        except Exception as error:  # Any: files hold anything.
            raise ValueError(f"position {len(self._read) - first}: {text_of(error)}") from None
        self._lengths.append(len(self._read) - first)

    def _positions(self, completion: Any) -> Iterable[Position]:
        """Returns the positions of a sequence, in any form. Their ids are numbers of tokens."""
        if _is_vllm_list(completion):
            return self._vllm(completion, None)
        if not isinstance(completion, dict):
            raise ValueError("logprobs: is missing")
        if completion.get("meta_info") or "output_token_logprobs" in completion:
            return self._sglang(completion.get("meta_info") or completion)
        if "completion_probabilities" in completion:
            return self._llama_cpp(completion)
        log_probs = completion if "start_indices" in completion else completion.get("logprobs")
        if log_probs is None:
            raise ValueError("logprobs: is missing")
        if isinstance(log_probs, list):
            return self._vllm(log_probs, completion.get("token_ids"))
        if "start_indices" in log_probs:
            return self._vllm(_dictionaries(log_probs), None)
        if "token_logprobs" in log_probs:
            columns: Dict[str, Any] = {
                name: log_probs.get(name) for name in ("tokens", "token_logprobs", "top_logprobs")
            }
            size = len(columns["tokens"])
            columns["top_logprobs"] = [tops or {} for tops in columns["top_logprobs"] or [{}] * size]
            for name, column in columns.items():
                if len(column) != size:
                    raise ValueError(f"logprobs.{name}: has {len(column)} elements for {size} tokens")
            return completion_positions(columns, lambda text: self._of_object({"token": text}))
        return chat_positions(log_probs["content"], self._of_object)

    def _sglang(self, meta: Mapping[str, Any]) -> Iterator[Position]:
        entries = sglang.sampled({"meta_info": meta})
        lists = meta.get("output_top_logprobs")
        if "output_top_logprobs_shape" in meta:
            values, ids = sglang.listed(meta, 0, len(entries), len(entries))
            lists = [list(zip(*columns)) for columns in zip(values.tolist(), ids.tolist())]
        elif lists is None:
            lists = [()] * len(entries)
        if len(lists) != len(entries):
            raise ValueError(f"output_top_logprobs: the answer has {len(lists)} positions, must be {len(entries)}")

        def number(entry: Sequence[Any]) -> int:
            return self._of_id(*entry[1:3])  # log-prob, id and, perhaps, text

        for own, tops in zip(entries, lists):
            tops = tops or ()
            yield Position(number(own), own[0], list(map(number, tops)), [top[0] for top in tops])

    def _vllm(self, positions: Sequence[Any], token_ids: Optional[Sequence[int]]) -> Iterator[Position]:
        """Without `token_ids` the first token of each position was sampled."""
        if token_ids is not None and len(token_ids) != len(positions):
            raise ValueError(f"token_ids: has {len(token_ids)} elements for {len(positions)} positions")
        for at, position in enumerate(positions):
            if not isinstance(position, dict) or not position:
                raise ValueError("is not an object with a token")
            log_probs = {}
            for key, entry in position.items():
                token = _id_in(key)
                if token is None:
                    raise ValueError(f"{key!r} is not an id")
                # An entry may be the log-prob alone.
                fields = entry if isinstance(entry, dict) else {"logprob": entry}
                log_probs[self._of_id(token, fields.get("decoded_token"))] = fields["logprob"]
            sampled = next(iter(log_probs)) if token_ids is None else self._of_id(token_ids[at])
            yield Position(sampled, log_probs.get(sampled), list(log_probs), list(log_probs.values()))

    def _llama_cpp(self, response: Mapping[str, Any]) -> Iterable[Position]:
        entries = response["completion_probabilities"]
        after_sampling = any("prob" in entry for entry in entries)
        positions = chat_positions(entries, self._of_object, *llama_cpp.field_names(after_sampling))
        if after_sampling:
            positions = map(_of_probabilities, positions)
        # The server leaves out tokens that end within a character. Without "return_tokens" `tokens` is empty.
        tokens = response.get("tokens")
        if not tokens:
            return positions
        read = list(positions)
        of_token = llama_cpp.aligned(tokens, [entry["id"] for entry in entries]).tolist()
        return (
            read[entry] if entry >= 0 else Position(self._of_id(token), None, (), ())
            for token, entry in zip(tokens, of_token)
        )

    def _number(self, token: Token) -> int:
        return self._numbers.setdefault(token, len(self._numbers))

    def _of_id(self, token: Any, text: Any = None) -> int:
        self._add_text(token, text)
        return self._number(Token(token, None))

    def _of_object(self, entry: Mapping[str, Any]) -> int:
        """Returns the number of {"id": ..., "token": ..., "bytes": [...]}."""
        token, text, encoded = entry.get("id"), entry.get("token"), entry.get("bytes")
        if text is not None and not isinstance(text, str):
            raise ValueError(f"token: {text!r} is not a string")
        found = _id_in(text[len(TOKEN_ID) :]) if text is not None and text.startswith(TOKEN_ID) else None
        if found is not None:
            text = None
        elif encoded is not None:
            if not isinstance(encoded, list):
                raise ValueError("bytes: is not an array of bytes")
            text = bytes(encoded).decode("utf-8", "surrogateescape")
        if token is None:
            token = found
        if token is not None:
            self._add_text(token, text)
        elif text is None:
            raise ValueError("a token has none of id, token and bytes")
        return self._number(Token(token, text))

    def _add_text(self, token: Any, text: Any) -> None:
        if not isinstance(token, int) or isinstance(token, bool) or not 0 <= token < _ID_LIMIT:
            raise ValueError(f"id: {token!r} is no integer in [0, 2^24)")
        if text is not None and not isinstance(text, str):
            raise ValueError(f"text of token {token}: {text!r} is not a string")
        if text is not None:
            self._texts.setdefault(token, text)


def _dictionaries(flat: Mapping[str, Any]) -> List[Dict[str, Any]]:
    """Returns vLLM's FlatLogprobs as dictionaries from ids."""
    starts, ends, tokens, log_probs = (flat[name] for name in ("start_indices", "end_indices", "token_ids", "logprobs"))
    if len(starts) != len(ends) or not all(start < end for start, end in zip(starts, ends)):
        raise ValueError("end_indices: must be above start_indices, one for each")
    size = ends[-1] if ends else 0
    if not len(tokens) == len(log_probs) == size:
        raise ValueError(f"it lists {len(tokens)} tokens and {len(log_probs)} log-probs, must be {size}")
    texts = flat.get("decoded_tokens") or [None] * size
    entries = [
        (str(token), {"logprob": log_prob, "decoded_token": text})
        for token, log_prob, text in zip(tokens, log_probs, texts)
    ]
    return [dict(entries[start:end]) for start, end in zip(starts, ends)]


def _of_probabilities(position: Position) -> Position:
    def log(probability: Optional[float]) -> Optional[float]:
        if not probability:
            return None
        if not 0 <= probability <= 1:
            raise ValueError(f"probability {probability:g}, must be in [0, 1]")
        return math.log(probability)

    return position._replace(log_prob=log(position.log_prob), log_probs=[log(value) for value in position.log_probs])


def _log_prob(name: str, value: Any) -> float:
    """Returns -inf for ignored values."""
    if value is None:
        return -math.inf
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError(f"log-prob {value!r} is not a number")
    if value > HIGHEST_LOG_PROB:
        raise ValueError(f"{name} log-prob {value:g}, must be at most 1/64")
    return value if value > _CLAMPED else -math.inf
