"""Log-probs in files that engines and trainers wrote, read by the parsers of sis.engines.

A log-prob that is null, or at most -9999 (as engines write minus infinity), is ignored: such a token counts as not
listed.
"""

from __future__ import annotations

import json
import types
from dataclasses import dataclass
from typing import Any, Dict, Iterable, List, Mapping, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from sis.engines import llama_cpp, sglang, vllm
from sis.engines._adapter import Piece, text_of
from sis.engines.openai import TOKEN_ID, Position, chat_positions, completion_positions

# Nats. Engines clamp minus infinity to this, as JSON can't hold it.
_CLAMPED = -9999.0
_HIGHEST_LOG_PROB = 2.0**-6
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
    if text is None:
        with open(name, encoding="utf-8") as file:
            try:
                text = file.read()
            except UnicodeDecodeError as error:
                raise ValueError(f"{name}: not JSON: {error}") from None
    found = _parse(text, name)
    several = isinstance(found, list) and not _is_vllm_list(found)
    if several and not found:
        raise ValueError(f"{name}: is an empty array: there is no response in it")
    reader = _Reader()
    for number, response in enumerate(found if several else [found]):
        try:
            reader.response(response)
        except Exception as error:  # Any: files hold anything.
            raise ValueError(f"{name}: response {number}: {text_of(error)}") from None
    return reader.recorded(name)


def _no_number(text: str) -> None:
    raise ValueError(f"{text} is no JSON")


def _loads(text: str) -> Any:
    try:
        return json.loads(text, parse_constant=_no_number)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _parse(text: str, name: str) -> Any:
    """Parses JSON, or JSON lines if the first line is complete JSON."""
    try:
        return _loads(text)
    except ValueError as error:
        whole = error
    lines = []
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            lines.append(_loads(line))
        except ValueError as error:
            if not lines:
                break
            raise ValueError(f"{name}: line {number}: not JSON: {error}") from None
    if not lines:
        raise ValueError(f"{name}: not JSON: {whole}")
    return lines


def _is_vllm_list(found: Any) -> bool:
    """Returns True if an array is vLLM's list of dictionaries from ids."""
    if not (isinstance(found, list) and found and isinstance(found[0], dict) and found[0]):
        return False
    return _id_in(next(iter(found[0]))) is not None


def _id_in(text: str) -> Optional[int]:
    """Returns the id in a string of digits."""
    return int(text) if len(text) < 20 and text.isascii() and text.isdigit() else None


class _Reader:
    """The sequences of one file, as they are read."""

    def __init__(self) -> None:
        self._numbers: Dict[Token, int] = {}
        # Objects of tokens by id and text, which tell all that bytes say.
        self._seen: Dict[Tuple[Any, Any], int] = {}
        self._texts: Dict[int, str] = {}
        self._parts: Dict[str, List[np.ndarray]] = {
            name: [] for name in ("sampled", "sampled_log_probs", "counts", "listed", "log_probs")
        }
        self._lengths: List[int] = []

    def recorded(self, name: str) -> RecordedFile:
        dtypes = (np.int64, np.float32, np.int64, np.int64, np.float32)
        arrays = {
            field: np.concatenate([np.zeros(0, dtype), *parts])
            for (field, parts), dtype in zip(self._parts.items(), dtypes)
        }
        return RecordedFile(
            name, np.asarray(self._lengths, np.int64), tokens=tuple(self._numbers), texts=self._texts, **arrays
        )

    def response(self, response: Any) -> None:
        """Reads one response: one sequence or more."""
        if isinstance(response, dict):
            for name in ("choices", "outputs"):  # OpenAI's name and vLLM's
                completions = response.get(name)
                if completions is None:
                    continue
                if not isinstance(completions, list) or not completions:
                    raise ValueError(f"{name}: is not an array with a first element")
                for completion in completions:
                    self._completion(completion)
                return
        self._sequence(response)

    def _sequence(self, response: Any) -> None:
        """Reads a response with one sequence."""
        if _is_vllm_list(response):
            self._vllm(response, None)
            return
        if not isinstance(response, dict):
            raise ValueError("logprobs: is missing")
        if response.get("meta_info") or "output_token_logprobs" in response:
            self._sglang(response.get("meta_info") or response)
        elif "completion_probabilities" in response:
            self._llama_cpp(response)
        elif "start_indices" in response:
            self._vllm_flat(response)
        else:
            self._completion(response)

    def _completion(self, completion: Any) -> None:
        """Reads the `logprobs` of a completion, in any of their forms."""
        log_probs = completion.get("logprobs") if isinstance(completion, dict) else None
        if log_probs is None:
            raise ValueError("logprobs: is missing")
        if isinstance(log_probs, list):
            self._vllm(log_probs, completion.get("token_ids"))
        elif "start_indices" in log_probs:
            self._vllm_flat(log_probs)
        elif "token_logprobs" in log_probs:
            size = len(log_probs["tokens"])
            columns = {name: log_probs.get(name) for name in ("tokens", "token_logprobs", "top_logprobs")}
            columns["top_logprobs"] = [tops or {} for tops in columns["top_logprobs"] or [{}] * size]
            for name, column in columns.items():
                if len(column) != size:
                    raise ValueError(f"logprobs.{name}: has {len(column)} elements for {size} tokens")
            self._positions(completion_positions(columns, self._of_text))
        else:
            self._positions(chat_positions(log_probs["content"], self._of_object))

    def _sglang(self, meta: Mapping[str, Any]) -> None:
        entries = sglang.sampled({"meta_info": meta})
        values, ids = sglang.listed(meta, 0, len(entries), len(entries), needed=False)
        for token, text in sglang.texts(meta):
            self._add_text(token, text)
        self._columns([entry[1] for entry in entries], [entry[0] for entry in entries], ids, values)

    def _vllm(self, positions: Sequence[Any], token_ids: Optional[Sequence[int]]) -> None:
        told = []
        for number, position in enumerate(positions):
            if not isinstance(position, dict) or not position:
                raise ValueError(f"logprobs: position {number}: is not an object with a token")
            told.append({_key(key, number): _as_object(entry) for key, entry in position.items()})
            for token, entry in told[-1].items():
                self._add_text(token, entry.decoded_token)
        self._vllm_columns(told, token_ids, len(positions))

    def _vllm_flat(self, log_probs: Mapping[str, Any]) -> None:
        flat = types.SimpleNamespace(**{"decoded_tokens": None, **log_probs})
        starts, ends = flat.start_indices, flat.end_indices
        if len(starts) != len(ends) or not all(start < end for start, end in zip(starts, ends)):
            raise ValueError("end_indices: must be above start_indices, one for each")
        for token, text in zip(flat.token_ids, flat.decoded_tokens or ()):
            self._add_text(token, text)
        self._vllm_columns(flat, None, len(starts))

    def _vllm_columns(self, told: Any, token_ids: Optional[Sequence[int]], size: int) -> None:
        """Reads lists as vLLM has them: without `token_ids` the first of each position was sampled."""
        if token_ids is not None and len(token_ids) != size:
            raise ValueError(f"token_ids: has {len(token_ids)} elements for {size} positions")
        if size == 0:
            self._columns([], [], np.zeros((0, 1), np.int64), np.zeros((0, 1), np.float32))
            return
        ids, values = vllm.listed_tokens([told], [Piece(None, 0, size)], asked=-1)
        sampled = ids[:, 0] if token_ids is None else np.asarray(token_ids)
        here = ids == sampled[:, None]
        own = np.where(here.any(axis=1), values[np.arange(size), here.argmax(axis=1)], -np.inf)
        self._columns(sampled, own, ids, values)

    def _llama_cpp(self, response: Mapping[str, Any]) -> None:
        entries = response["completion_probabilities"]
        after_sampling = any("prob" in entry for entry in entries)
        positions = chat_positions(entries, self._of_object, *llama_cpp.field_names(after_sampling))
        # The server leaves out tokens that end within a character. Without "return_tokens" `tokens` is empty.
        tokens = response.get("tokens") or ()
        if tokens:
            read = list(positions)
            of_token = llama_cpp.aligned(tokens, [entry["id"] for entry in entries])
            positions = iter(
                read[entry] if entry >= 0 else Position(self._number(Token(_checked_id(token), None)), None, (), ())
                for token, entry in zip(tokens, of_token.tolist())
            )
        self._positions(positions, probabilities=after_sampling)

    def _positions(self, positions: Iterable[Position], probabilities: bool = False) -> None:
        """Adds a sequence whose ids are numbers of tokens already."""
        read: List[Position] = []
        try:
            for position in positions:
                read.append(position)
        except Exception as error:  # Any: files hold anything.
            raise ValueError(f"position {len(read)}: {text_of(error)}") from None
        own = _floats([position.log_prob for position in read])
        values = _floats([value for position in read for value in position.log_probs])
        counts = np.fromiter((len(position.ids) for position in read), np.int64, len(read))
        if probabilities:
            for row, probs in ((np.arange(len(read)), own), (np.repeat(np.arange(len(read)), counts), values)):
                wrong = ~((probs >= 0) & (probs <= 1)) & ~np.isnan(probs)
                if wrong.any():
                    at = int(wrong.argmax())
                    raise ValueError(f"position {row[at]}: probability {probs[at]:g}, must be in [0, 1]")
            with np.errstate(divide="ignore"):
                own, values = np.log(own), np.log(values)
        sampled = np.fromiter((position.token for position in read), np.int64, len(read))
        listed = np.fromiter((token for position in read for token in position.ids), np.int64, len(values))
        self._add(sampled, own, counts, listed, values)

    def _columns(self, sampled: Any, own: Any, ids: np.ndarray, values: np.ndarray) -> None:
        """Adds a sequence in the columns of an adapter: ids, -1 where there is none."""
        drawn = np.asarray(sampled, np.int64)
        used = ids != -1
        counts = used.sum(axis=1)
        listed = ids[used]
        every, number_of = np.unique(np.concatenate([drawn, listed]), return_inverse=True)
        numbers = np.asarray([self._number(Token(_checked_id(token), None)) for token in every.tolist()], np.int64)
        number_of = numbers[number_of] if len(every) else number_of.astype(np.int64)
        self._add(
            number_of[: len(drawn)], _floats(own), counts, number_of[len(drawn) :], values[used].astype(np.float64)
        )

    def _add(
        self, sampled: np.ndarray, own: np.ndarray, counts: np.ndarray, listed: np.ndarray, values: np.ndarray
    ) -> None:
        rows = np.repeat(np.arange(len(sampled)), counts)
        for name, row, log_probs in (("sampled", np.arange(len(sampled)), own), ("listed", rows, values)):
            wrong = log_probs > _HIGHEST_LOG_PROB
            if wrong.any():
                at = int(wrong.argmax())
                raise ValueError(f"position {row[at]}: {name} log-prob {log_probs[at]:g}, must be at most 1/64")
        self._lengths.append(len(sampled))
        for part, array in zip(self._parts.values(), (sampled, _finite(own), counts, listed, _finite(values))):
            part.append(array)

    def _number(self, token: Token) -> int:
        return self._numbers.setdefault(token, len(self._numbers))

    def _of_object(self, entry: Mapping[str, Any]) -> int:
        """Returns the number of {"id": ..., "token": ..., "bytes": [...]}."""
        token, text = entry.get("id"), entry.get("token")
        if token is not None:
            known = self._seen.get((token, text))
            if known is not None:
                return known
        number = self._number(self._token(token, text, entry.get("bytes")))
        if token is not None:
            self._seen[token, text] = number
        return number

    def _token(self, token: Any, text: Any, encoded: Any) -> Token:
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
        if token is None and text is None:
            raise ValueError("a token has none of id, token and bytes")
        if token is not None:
            self._add_text(_checked_id(token), text)
        return Token(token, text)

    def _add_text(self, token: int, text: Any) -> None:
        if text is None:
            return
        if not isinstance(text, str):
            raise ValueError(f"text of token {token}: {text!r} is not a string")
        self._texts.setdefault(token, text)

    def _of_text(self, text: str) -> int:
        """Returns the number of a token that is called by its text."""
        if not isinstance(text, str):
            raise ValueError(f"tokens: {text!r} is not a string")
        return self._number(self._token(None, text, None))


def _checked_id(token: Any) -> int:
    if not isinstance(token, int) or isinstance(token, bool) or not 0 <= token < _ID_LIMIT:
        raise ValueError(f"id: {token!r} is no integer in [0, 2^24)")
    return token


def _key(key: str, position: int) -> int:
    found = _id_in(key)
    if found is None:
        raise ValueError(f"logprobs: position {position}: {key!r} is not an id")
    return found


def _as_object(entry: Any) -> Any:
    """Returns vLLM's Logprob of its JSON, which may be the number alone."""
    if isinstance(entry, dict):
        return types.SimpleNamespace(logprob=entry["logprob"], decoded_token=entry.get("decoded_token"))
    return types.SimpleNamespace(logprob=entry, decoded_token=None)


def _floats(values: Any) -> np.ndarray:
    """Returns float64; NaN for null."""
    # numpy would take text and bools for numbers.
    if not isinstance(values, np.ndarray) and not {str, bool}.isdisjoint(map(type, values)):
        wrong = next(value for value in values if isinstance(value, (str, bool)))
        raise ValueError(f"log-prob {wrong!r} is not a number")
    return np.asarray(values, np.float64)


def _finite(log_probs: np.ndarray) -> np.ndarray:
    """Returns float32, with -inf for ignored values."""
    return np.where(log_probs > _CLAMPED, log_probs, -np.inf).astype(np.float32)
