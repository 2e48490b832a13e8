"""SGLang: what Engine.generate and the server's /generate return. SGLang itself is not imported."""

from __future__ import annotations

import base64
import json
import operator
import os
from typing import Any, List, Mapping, Optional, Sequence, Tuple

import numpy as np

from sis.engines._adapter import Adapter, Columns, MalformedOutput, NothingListed, Piece, Told, version_ranges
from sis.engines._lists import nullable, padded, widened
from sis._run import Sampling

# SGLang takes the most probable token below this temperature.
_GREEDY_BELOW = 1e-6
# A top_k of -1, or from this number on, means all tokens.
_ALL = 1 << 30
# Values that change nothing.
_FILTERS = {"top_p": 1.0, "top_k": _ALL, "min_p": 0.0}
# Log-prob and id of an entry.
_LOG_PROB, _ID = map(operator.itemgetter, (0, 1))
# Environment variable with which SGLang returns the log-probs before the temperature.
_ORIGINAL = "SGLANG_RETURN_ORIGINAL_LOGPROB"
_GRAMMARS = ("json_schema", "regex", "ebnf", "structural_tag")


class SglangAdapter(Adapter):
    """Reads answers to requests with "return_logprob": true and "top_logprobs_num": K, whole or streamed.

    Whole answers cost the least here with "return_flat_raw_output_top_logprobs": true and
    "return_flat_raw_top_logprobs_b64": true.

    SGLang's log-probs are those after penalties and temperature, before top-p, top-k and min-p. Such filters are
    refused, because the log-probs are then not those of the draw.
    """

    def __init__(
        self, sampling_params: Mapping[str, Any], server_args: Any = None, *, original_log_probs: Optional[bool] = None
    ) -> None:
        """Makes the adapter.

        Args:
            sampling_params: The dictionary that is sent.
            server_args: Arguments of the engine (`engine.server_args`), or a mapping of the changed arguments.
            original_log_probs: Whether the engine runs with SGLANG_RETURN_ORIGINAL_LOGPROB. None: as in this process;
                an sglang.Engine inherits its environment.

        Raises:
            ValueError: Requests decode greedily or speculatively, or the log-probs are not those of the draw.
        """
        speculative = _setting(server_args, "speculative_algorithm")
        if speculative is not None:
            raise ValueError(
                f"speculative_algorithm is {speculative!r}: nobody knows whether SGLang's log-probs are then those "
                "of the draw. Leave it out"
            )
        preferred = _setting(server_args, "preferred_sampling_params") or {}
        if isinstance(preferred, str):
            preferred = json.loads(preferred)
        if original_log_probs is None:
            original_log_probs = os.environ.get(_ORIGINAL, "").lower() in ("true", "1")
        self.sampling = sampling({**preferred, **sampling_params}, original_log_probs)
        # A streamed answer otherwise repeats the request's earlier ones.
        self.cumulative = not _setting(server_args, "incremental_streaming_output")

    def told(self, output: Mapping[str, Any]) -> Told:
        meta, ids = output["meta_info"], output.get("output_ids")
        if "prompt_tokens" not in meta and not self.cumulative:
            # A request that is aborted while it waits ends with an answer that has no count of the
            # prompt's tokens. It repeats all that was said, in increments too.
            length = 0
        else:
            length = len(sampled(output) if ids is None else ids)
        reason = meta["finish_reason"]
        ended = reason and ("aborted" if reason["type"] == "abort" else "finished")
        return Told(length, ended, version_ranges(meta))

    def columns(self, pieces: Sequence[Piece]) -> Columns:
        drawn: List[int] = []
        own: List[Optional[float]] = []
        parts: List[Tuple[np.ndarray, np.ndarray]] = []
        for output, start, stop in pieces:
            every = sampled(output)
            ids = output.get("output_ids")
            meta = output["meta_info"]
            # The lists of an engine in this process grow while the request runs.
            total = None if self.cumulative and meta["finish_reason"] is None else len(every if ids is None else ids)
            _check_length("output_token_logprobs", len(every), stop, total)
            here = every[start:stop]
            of_ids = [entry[1] for entry in here]
            if ids is not None and of_ids != list(ids[start:stop]):
                raise MalformedOutput(
                    f"output_token_logprobs are of tokens {of_ids[:5]}, output_ids are {ids[start:stop][:5]}"
                )
            drawn += of_ids
            own += [entry[0] for entry in here]
            parts.append(listed(meta, start, stop, total))
        counts = np.concatenate([np.full(len(ids), ids.shape[1]) for _, ids in parts])
        tokens, log_probs = widened(
            np.concatenate([ids.ravel() for _, ids in parts]),
            np.concatenate([values.ravel() for values, _ in parts]),
            counts,
            int(counts.max(initial=1)),
        )
        # The list is the same whichever token was drawn.
        return Columns(tokens, log_probs, np.fromiter(drawn, np.int64, len(drawn)), nullable(own), None)


def sampling(params: Mapping[str, Any], original_log_probs: bool = False) -> Sampling:
    """Returns how SGLang makes the log-probs of a request.

    Args:
        params: The request's sampling parameters; those that it leaves out have SGLang's defaults.
        original_log_probs: Whether log-probs are those before the temperature.

    Returns:
        The sampling.

    Raises:
        ValueError: The request decodes greedily or by beams, or has a filter or a watermark, which the log-probs leave
            out.
    """

    def value(name: str, default: Any) -> Any:
        given = params.get(name)
        return default if given is None else given

    temperature = value("temperature", 1.0)
    if temperature < _GREEDY_BELOW:
        raise ValueError(f"temperature is {temperature}: greedy decoding draws no tokens")
    if value("top_k", _ALL) == 1:
        raise ValueError("top_k is 1: greedy decoding draws no tokens")
    if value("beam_width", 1) > 1:
        raise ValueError(f"beam_width is {params['beam_width']}: beam search does not draw from the policy")
    for name, neutral in _FILTERS.items():
        found = value(name, neutral)
        if found != neutral and not (name == "top_k" and (found == -1 or found >= _ALL)):
            raise ValueError(f"{name} is {found}: SGLang's log-probs are those before it, not those of the draw")
    if params.get("watermark") is not None:
        raise ValueError("watermark is set: SGLang's log-probs are those without it")
    return Sampling(
        "raw" if original_log_probs else "processed",
        temperature=temperature,
        presence_penalty=value("presence_penalty", 0.0),
        frequency_penalty=value("frequency_penalty", 0.0),
        repetition_penalty=value("repetition_penalty", 1.0),
        logit_bias=bool(params.get("logit_bias")) or value("min_new_tokens", 0) > 0,
        grammar=any(params.get(name) is not None for name in _GRAMMARS),
    )


def _setting(server_args: Any, name: str) -> Any:
    if isinstance(server_args, Mapping):
        return server_args.get(name)
    return getattr(server_args, name, None)


def sampled(output: Mapping[str, Any]) -> Sequence[Tuple[float, int, Any]]:
    """Returns the sampled tokens of an answer.

    Args:
        output: The answer.

    Returns:
        Log-prob in nats, id and text of each generated token.

    Raises:
        MalformedOutput: The answer has no log-probs.
    """
    found = output["meta_info"].get("output_token_logprobs")
    if found is None:
        raise MalformedOutput("the answer has no log-probs: the request needs 'return_logprob': true")
    return found


def _check_length(name: str, there: int, stop: int, total: Optional[int]) -> None:
    """MalformedOutput unless a list has as many positions as it must: `total`, or, if None, `stop` or more."""
    if there < stop or total is not None and there != total:
        needed = f"at least {stop}" if total is None else str(total)
        needs = ": the request needs 'top_logprobs_num'" if name == "output_top_logprobs" else ""
        raise MalformedOutput(f"{name}: the answer has {there} positions, must be {needed}{needs}")


def listed(meta: Mapping[str, Any], start: int, stop: int, total: Optional[int]) -> Tuple[np.ndarray, np.ndarray]:
    """Returns the most probable tokens of the positions [start, stop) of an answer.

    Args:
        meta: Its `meta_info`.
        start, stop: The first position, and one past the last.
        total: Number of positions that lists must have; None: `stop` or more.

    Returns:
        float32 [stop - start, K], log-probs in nats; and int [stop - start, K], ids.

    Raises:
        MalformedOutput: A list has the wrong length or type.
        NothingListed: A list is empty, and another is not.
    """
    if "output_top_logprobs_shape" in meta:
        rows, width = meta["output_top_logprobs_shape"]
        if meta["output_top_logprobs_null_prefix"]:
            raise MalformedOutput("output_top_logprobs_null_prefix is set: the lists don't begin with the answer")
        _check_length("output_top_logprobs", rows, stop, total)
        values, ids = (
            _flat(meta, name, dtype, rows * width, slice(start * width, stop * width))
            for name, dtype in (("val", "<f4"), ("idx", "<i4"))
        )
        return values.reshape(-1, width), ids.reshape(-1, width)
    every = meta.get("output_top_logprobs") or ()
    _check_length("output_top_logprobs", len(every), stop, total)
    here = every[start:stop]
    if not all(here):
        error = NothingListed if any(every) else MalformedOutput
        raise error("output_top_logprobs lists no tokens of a position: the request needs 'top_logprobs_num'")
    counts = list(map(len, here))
    ids, values = padded((map(_ID, tops) for tops in here), (map(_LOG_PROB, tops) for tops in here), counts)
    return values, ids


def _flat(meta: Mapping[str, Any], name: str, dtype: str, size: int, part: slice) -> np.ndarray:
    key = f"output_top_logprobs_{name}_flat"
    found = meta.get(key)
    if found is None:
        said = np.dtype(meta[f"{key}_b64_dtype"]).newbyteorder("<")
        if said != np.dtype(dtype):
            raise MalformedOutput(f"{key}_b64_dtype is {said.name}, must be {np.dtype(dtype).name}")
        found = np.frombuffer(base64.b64decode(meta[f"{key}_b64"]), dtype)
    if len(found) != size:
        raise MalformedOutput(f"{key}: {len(found)} values, must be {size}")
    # Without a type, in which older numpy would cut ids.
    return np.asarray(found[part])
