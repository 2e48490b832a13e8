"""The forms in which engines tell log-probs, written for tests of what is malformed in them."""

import base64
import copy
import json
import math
import pathlib
import types
from typing import Any, Callable, Dict, List, NamedTuple, Optional

import numpy as np
from vllm_objects import FlatLogprobs

from sis.engines._adapter import Adapter, Columns
from sis.engines.llama_cpp import LlamaCppAdapter
from sis.engines.sglang import SglangAdapter
from sis.engines.transformers import TransformersAdapter
from sis.engines.vllm import GenerateAdapter, OpenAiAdapter, VllmAdapter
from sis.engines._vllm_arrays import ArrayLogprobs

K = 4
_LLAMA_CPP = json.loads((pathlib.Path(__file__).parent / "testdata/llama_cpp.json").read_text())


class Position(NamedTuple):
    token: int
    # Nats; None where the engine says nothing.
    own: Optional[float]
    # K tokens without the sampled one, most probable first.
    tops: Optional[Dict[int, Optional[float]]]


def position(t: int) -> Position:
    """No two positions are alike."""
    return Position(100 + t, -1 - t / 1000, {200 + t: -1.25, 301: -2.0, 302: -3.0, 303: -4 - t / 1000})


Fault = Callable[[Any], Any]


class Form(NamedTuple):
    name: str
    adapter: Callable[[], Adapter]
    # Makes an answer from its positions and the reason for its end: "finished" or None. Returns None if
    # the form can't express the reason.
    answer: Callable[[List[Position], Optional[str]], Any]
    # Faults of a whole answer. Its length is known, but not which values belong to which token.
    faults: Dict[str, Fault]
    # Its length is unknown.
    unknown: Dict[str, Fault]
    # Whether an answer may be one of several.
    streams: bool = True


def _changed(change: Callable[[Any], Any]) -> Fault:
    def fault(answer: Any) -> Any:
        made = copy.deepcopy(answer)
        change(made)
        return made

    return fault


def _set(value: Any, *path: Any) -> Fault:
    def change(answer: Any) -> None:
        for name in path[:-1]:
            answer = answer[name]
        answer[path[-1]] = value

    return _changed(change)


def _twice(*path: Any) -> Fault:
    """The last element of a list stands there twice."""

    def change(answer: Any) -> None:
        for name in path:
            answer = answer[name]
        answer.append(answer[-1])

    return _changed(change)


def _short(*path: Any) -> Fault:
    def change(answer: Any) -> None:
        for name in path:
            answer = answer[name]
        answer.pop()

    return _changed(change)


# vLLM's JSON.


def _named(token: int) -> str:
    return f"token_id:{token}"


def _completion(positions: List[Position], ended: Optional[str]) -> Any:
    of_list = lambda of: {_named(of.token): of.own, **{_named(t): v for t, v in of.tops.items()}}
    return {
        "token_ids": [of.token for of in positions],
        "finish_reason": ended and "stop",
        "logprobs": {
            "tokens": [_named(of.token) for of in positions],
            "token_logprobs": [of.own for of in positions],
            # A list that is empty is so.
            "top_logprobs": [of.tops and of_list(of) for of in positions],
        },
    }


def _chat(token: Callable[[int], Dict[str, Any]]) -> Callable[[List[Position], Optional[str]], Any]:
    def answer(positions: List[Position], ended: Optional[str]) -> Any:
        content = []
        for of in positions:
            listed = of.tops and {of.token: of.own, **of.tops}
            tops = None if listed is None else [{**token(t), "logprob": value} for t, value in listed.items()]
            content.append({**token(of.token), "logprob": of.own, "top_logprobs": tops})
        return {
            "token_ids": [of.token for of in positions],
            "finish_reason": ended and "stop",
            "logprobs": {"content": content},
        }

    return answer


_OPENAI = {"temperature": 1.0, "return_token_ids": True, "return_tokens_as_token_ids": True}
_NO_ANSWER: Dict[str, Fault] = {"no answer": lambda answer: None}
_UNKNOWN = {"no token_ids": _set(None, "token_ids"), **_NO_ANSWER}
_OF_COMPLETIONS = {
    "logprobs: null": _set(None, "logprobs"),
    "other ids": _set(_named(7), "logprobs", "tokens", 0),
    **{f"{name}: null": _set(None, "logprobs", name) for name in ("tokens", "token_logprobs", "top_logprobs")},
    **{f"one more of {name}": _twice("logprobs", name) for name in ("tokens", "token_logprobs", "top_logprobs")},
    **{f"one less of {name}": _short("logprobs", name) for name in ("tokens", "token_logprobs", "top_logprobs")},
}
_OF_CHATS = {
    "logprobs: null": _set(None, "logprobs"),
    "content: null": _set(None, "logprobs", "content"),
    "one more log-prob": _twice("logprobs", "content"),
    "one less log-prob": _short("logprobs", "content"),
    "other ids": _set(7, "token_ids", 0),
}


# vLLM in this process.


def _in_process(kind: str) -> Callable[[List[Position], Optional[str]], Any]:
    def answer(positions: List[Position], ended: Optional[str]) -> Any:
        lists = [of.tops and {of.token: of.own, **of.tops} for of in positions]
        if kind == "dictionaries":
            told = [
                None if listed is None else {t: types.SimpleNamespace(logprob=v) for t, v in listed.items()}
                for listed in lists
            ]
        elif None in lists:
            return None
        elif kind == "flat":
            told = FlatLogprobs.of(lists)
        elif any(len(listed) != K + 1 or None in listed.values() for listed in lists):
            return None
        else:
            told = ArrayLogprobs(K + 1)
            told.add_step(*(np.array([list(part) for part in parts], dtype) for parts, dtype in (
                (lists, np.int64), ([listed.values() for listed in lists], np.float32)
            )))  # fmt: skip
        return types.SimpleNamespace(
            token_ids=[of.token for of in positions], logprobs=told, finish_reason=ended and "stop"
        )

    return answer


def _vllm(kind: str) -> Adapter:
    model = types.SimpleNamespace(logprobs_mode="processed_logprobs")
    config = types.SimpleNamespace(model_config=model, speculative_config=None)
    kinds = types.SimpleNamespace(name=kind)
    return VllmAdapter(config, types.SimpleNamespace(temperature=1.0, logprobs=K, output_kind=kinds))


def _with(**changed: Any) -> Fault:
    return lambda answer: types.SimpleNamespace(**{**vars(answer), **changed})


def _tokens(change: Callable[[List[int]], List[int]]) -> Fault:
    return lambda answer: types.SimpleNamespace(**{**vars(answer), "token_ids": change(answer.token_ids)})


def _log_probs(answer: Any, change: Callable[[Any], Any]) -> Any:
    told = answer.logprobs
    if isinstance(told, FlatLogprobs):
        made = copy.copy(told)
        for name in ("start_indices", "end_indices"):
            setattr(made, name, change(getattr(told, name)))
        return _with(logprobs=made)(answer)
    return _with(logprobs=change(told))(answer)


def _with_another(told: Any) -> Any:
    if isinstance(told, list):
        return [*told, told[-1]]
    made = told[:]
    made.extend(told[-1:])
    return made


_OF_IN_PROCESS = {
    "logprobs: None": _with(logprobs=None),
    "one log-prob less": lambda answer: _log_probs(answer, lambda told: told[:-1]),
    # Only for answers that end: the lists of a running request grow.
    "one log-prob more": lambda answer: _log_probs(answer, _with_another),
    "other ids": _tokens(lambda tokens: [7, *tokens[1:]]),
}
def _flat_column(name: str, change: Callable[[List[Any]], List[Any]]) -> Fault:
    def fault(answer: Any) -> Any:
        told = copy.copy(answer.logprobs)
        setattr(told, name, change(getattr(told, name)))
        return _with(logprobs=told)(answer)

    return fault


_OF_FLAT = {
    **_OF_IN_PROCESS,
    "one listed token more": _flat_column("token_ids", lambda values: [*values, 7]),
    "one listed log-prob more, before the others": _flat_column("logprobs", lambda values: [-1.0, *values]),
    "one listed log-prob less": _flat_column("logprobs", lambda values: values[:-1]),
}
_UNKNOWN_IN_PROCESS = {"no tokens": _with(token_ids=None), **_NO_ANSWER}


# SGLang.


def _sglang(kind: str) -> Callable[[List[Position], Optional[str]], Any]:
    def answer(positions: List[Position], ended: Optional[str]) -> Any:
        meta: Dict[str, Any] = {
            "prompt_tokens": 3,
            "finish_reason": ended and {"type": "stop"},
            "output_token_logprobs": [[of.own, of.token, None] for of in positions],
        }
        lists = [of.tops for of in positions]
        if kind == "list":
            meta["output_top_logprobs"] = [
                None if tops is None else [[value, token, None] for token, value in tops.items()] for tops in lists
            ]
        elif any(tops is None or len(tops) != K for tops in lists):
            return None
        else:
            values = [value for tops in lists for value in tops.values()]
            ids = [token for tops in lists for token in tops]
            meta |= {"output_top_logprobs_shape": [len(lists), K], "output_top_logprobs_null_prefix": 0}
            if kind == "flat":
                meta |= {"output_top_logprobs_val_flat": values, "output_top_logprobs_idx_flat": ids}
            elif None in values or max(ids) >= 1 << 31:
                return None
            else:
                for name, array in (("val", np.array(values, "<f4")), ("idx", np.array(ids, "<i4"))):
                    meta[f"output_top_logprobs_{name}_flat_b64"] = base64.b64encode(array.tobytes())
                    meta[f"output_top_logprobs_{name}_flat_b64_dtype"] = array.dtype.name
        return {"output_ids": [of.token for of in positions], "meta_info": meta}

    return answer


_OF_SGLANG = {
    "output_token_logprobs: null": _set(None, "meta_info", "output_token_logprobs"),
    "one log-prob less": _short("meta_info", "output_token_logprobs"),
    "other ids": _set(7, "output_ids", 0),
}
# Only for answers that end: the lists of a request that runs in this process grow.
_GROWS = {"one log-prob more": _twice("meta_info", "output_token_logprobs")}
_OF_SGLANG_LISTS = {
    **_OF_SGLANG,
    "output_top_logprobs: null": _set(None, "meta_info", "output_top_logprobs"),
    "one list less": _short("meta_info", "output_top_logprobs"),
}


def _sglang_form(kind: str, incremental: bool) -> Form:
    args = {"incremental_streaming_output": True} if incremental else None
    name = f"SGLang, {kind}, {'increments' if incremental else 'streamed or whole'}"
    faults = {**(_OF_SGLANG_LISTS if kind == "list" else _OF_SGLANG), **_GROWS}
    if kind == "base64":
        faults["values of float64"] = _set("float64", "meta_info", "output_top_logprobs_val_flat_b64_dtype")
    unknown = {"no meta_info": _set(None, "meta_info"), **_NO_ANSWER}
    return Form(name, lambda: SglangAdapter({}, args), _sglang(kind), faults, unknown)


# llama.cpp.


def _llama_cpp(after: bool) -> Form:
    own, tops = ("prob", "top_probs") if after else ("logprob", "top_logprobs")

    def value(log_prob: Optional[float]) -> Optional[float]:
        return log_prob if log_prob is None or not after else math.exp(log_prob)

    recorded = _LLAMA_CPP["post_sampling" if after else "raw"]

    def answer(positions: List[Position], ended: Optional[str]) -> Any:
        entries = []
        for of in positions:
            entry: Dict[str, Any] = {"id": of.token, own: value(of.own)}
            if of.tops is not None:
                entry[tops] = [{"id": token, own: value(listed)} for token, listed in of.tops.items()]
            entries.append(entry)
        return {
            **recorded,
            "tokens": [of.token for of in positions],
            "tokens_predicted": len(positions),
            "completion_probabilities": entries,
            "stop_type": "eos" if ended else "none",
        }

    faults = {
        "completion_probabilities: null": _set(None, "completion_probabilities"),
        "an entry that is null": _set(None, "completion_probabilities", 0),
        "one entry more": _twice("completion_probabilities"),
        "other ids": _set(7, "completion_probabilities", 0, "id"),
        "other settings": _set(
            _LLAMA_CPP["raw" if after else "post_sampling"]["generation_settings"], "generation_settings"
        ),
        "tokens of another number": _set(1000, "tokens_predicted"),
    }
    unknown = {"tokens: null": _set(None, "tokens"), **_NO_ANSWER}
    name = f"llama.cpp, {'after' if after else 'before'} sampling"
    return Form(name, lambda: LlamaCppAdapter(recorded), answer, faults, unknown, streams=False)


# transformers.


def _rows(positions: List[Position], ended: Optional[str]) -> Any:
    lists = [of.tops for of in positions]
    if any(of.own is None or of.tops is None or None in of.tops.values() for of in positions):
        return None
    padded = lambda values, fill: [*values, *[fill] * (K - len(values))]
    return Columns(
        np.array([padded(list(tops), -1) for tops in lists], np.int64),
        np.array([padded(list(tops.values()), -math.inf) for tops in lists], np.float32),
        np.array([of.token for of in positions], np.int64),
        np.array([of.own for of in positions], np.float32),
        None,
    )


_OF_ROWS = {
    "one log-prob more": lambda row: row._replace(sampled_log_probs=np.append(row.sampled_log_probs, -1)),
    "one log-prob less": lambda row: row._replace(sampled_log_probs=row.sampled_log_probs[:-1]),
    "one list more": lambda row: row._replace(ids=np.concatenate([row.ids, row.ids[-1:]])),
}


def _transformers() -> Adapter:
    config = types.SimpleNamespace(do_sample=True, num_beams=1, temperature=1.0)
    return TransformersAdapter(config)


FORMS = [
    Form(
        "completions",
        lambda: OpenAiAdapter({**_OPENAI, "logprobs": K}, "processed_logprobs"),
        _completion,
        _OF_COMPLETIONS,
        _UNKNOWN,
    ),
    Form(
        "chat",
        lambda: OpenAiAdapter(
            {**_OPENAI, "messages": [], "logprobs": True, "top_logprobs": K + 3}, "processed_logprobs"
        ),
        _chat(lambda token: {"token": _named(token)}),
        _OF_CHATS,
        _UNKNOWN,
    ),
    Form(
        "generate",
        lambda: GenerateAdapter({"logprobs": K + 3}, "processed_logprobs"),
        _chat(lambda token: {"token_id": token}),
        _OF_CHATS,
        _UNKNOWN,
    ),
    *(
        Form(
            f"in this process, {kind}, {output_kind}",
            lambda output_kind=output_kind: _vllm(output_kind),
            _in_process(kind),
            _OF_FLAT if kind == "flat" else _OF_IN_PROCESS,
            _UNKNOWN_IN_PROCESS,
        )
        for kind in ("dictionaries", "flat", "arrays")
        for output_kind in ("DELTA", "CUMULATIVE")
    ),
    *(
        _sglang_form(kind, incremental)
        for kind in ("list", "flat", "base64")
        for incremental in (False, True)
    ),
    _llama_cpp(after=False),
    _llama_cpp(after=True),
    Form("transformers", _transformers, _rows, _OF_ROWS, _NO_ANSWER, streams=False),
]  # fmt: skip
