"""vLLM's log-probs as the arrays that its workers make, instead of Python objects made of these."""

from __future__ import annotations

import collections.abc
import functools
import types
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Union

import numpy as np

from sis.engines._adapter import VersionRange


class ArrayLogprobs(collections.abc.Sequence[Dict[int, Any]]):
    """In the place of vLLM's FlatLogprobs. An index gives a position's dictionary of Logprob, made at
    that moment, without the tokens' texts."""

    __slots__ = ("_width", "ids", "log_probs")

    def __init__(self, width: int) -> None:
        """`width`: columns of a position, the sampled token's first."""
        self._width = width
        # [1, width] for each position; log-probs are float32, in nats.
        self.ids: List[np.ndarray] = []
        self.log_probs: List[np.ndarray] = []

    def add_step(self, ids: np.ndarray, log_probs: np.ndarray) -> None:
        """[T, C], C at least the width: a step's arrays are as wide as any of its requests wants. They
        are copied: often they are rows of what the step holds of all requests."""
        for position in range(len(ids)):
            self.ids.append(ids[position : position + 1, : self._width].copy())
            self.log_probs.append(log_probs[position : position + 1, : self._width].copy())

    def extend(self, later: ArrayLogprobs) -> None:
        """By another's positions: so vLLM joins what a caller of RequestOutputKind.DELTA lags behind."""
        self.ids += later.ids
        self.log_probs += later.log_probs

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, index: Union[int, slice]) -> Any:
        if isinstance(index, slice):
            part = ArrayLogprobs(self._width)
            part.ids, part.log_probs = self.ids[index], self.log_probs[index]
            return part
        from vllm.logprobs import Logprob

        return {
            token: Logprob(value)
            for token, value in zip(self.ids[index][0].tolist(), self.log_probs[index][0].tolist())
        }


def hand_over_arrays(engine: Any) -> None:
    """Lets the outputs of later requests to an engine have ArrayLogprobs. Idempotent.

    vLLM (0.32) spends more time on making Python objects and texts of all listed tokens than recording costs. A
    VllmAdapter reads both forms to the same record.

    Args:
        engine: vLLM's LLM or AsyncLLM.

    Raises:
        ValueError: The engine is built in another way.
    """
    processor = processor_of(engine)
    stock = processor.add_request
    if isinstance(stock, functools.partial) and stock.func is _add_request:
        return
    from vllm.v1.engine.logprobs import LogprobsProcessor

    if not hasattr(LogprobsProcessor, "_update_sample_logprobs"):
        raise ValueError("this version of vLLM makes log-probs in another way: leave out hand_over_arrays")
    processor.add_request = functools.partial(_add_request, stock, processor.request_states)


def _add_request(
    stock: Callable[..., None], states: Mapping[str, Any], request: Any, *arguments: Any, **named: Any
) -> None:
    known = request.request_id in states
    stock(request, *arguments, **named)
    own = None if known else states[request.request_id].logprobs_processor
    # None: of a request that asks for none, or generates nothing. -1: of all tokens.
    if own is not None and own.logprobs is not None and own.num_logprobs >= 0:
        own.logprobs = ArrayLogprobs(own.num_logprobs + 1)
        own._update_sample_logprobs = functools.partial(_update, own)


def processor_of(engine: Any) -> Any:
    """Returns the engine's OutputProcessor."""
    found = getattr(getattr(engine, "llm_engine", engine), "output_processor", None)
    if not hasattr(found, "request_states"):
        name = type(engine).__name__
        raise ValueError(f"{name} has no output_processor with request_states: give the LLM or AsyncLLM")
    return found


def _update(own: Any, step: Any) -> None:
    """LogprobsProcessor._update_sample_logprobs."""
    ids, log_probs = step[:2]
    for value in log_probs[:, 0].tolist():
        own.cumulative_logprob += value
    own.logprobs.add_step(ids, log_probs)


def whole(state: Any, log_probs: ArrayLogprobs, finish_reason: str) -> Any:
    """Returns what the request of a RequestState has generated, as vLLM's CompletionOutput."""
    tokens = state.detokenizer.output_token_ids[: len(log_probs)]
    return types.SimpleNamespace(
        token_ids=tokens, logprobs=log_probs, weight_versions=_spans_so_far(state), finish_reason=finish_reason
    )


def ranges_of(spans: Sequence[Any]) -> List[VersionRange]:
    """Returns the ranges of vLLM's WeightVersionSpan."""
    return [VersionRange(span.version, span.start, span.end) for span in spans]


def running_versions(engine: Any, request_id: Optional[str]) -> Sequence[VersionRange]:
    """Returns the versions of a request that runs: vLLM's outputs name them only when it has ended.

    Empty if the request has ended, has several outputs, or runs on another machine.
    """
    processor: Any = getattr(getattr(engine, "llm_engine", engine), "output_processor", None)
    ids: Mapping[Optional[str], Sequence[str]] = getattr(processor, "external_req_ids", {})
    # Its `get` adds no id.
    own = ids.get(request_id) or ()
    state = processor.request_states.get(own[0]) if len(own) == 1 else None
    return () if state is None else ranges_of(_spans_so_far(state))


def _spans_so_far(state: Any) -> Sequence[Any]:
    """Returns the WeightVersionSpans of a RequestState; none from a vLLM before 0.32."""
    spans = getattr(state, "_weight_version_spans", None)
    return (spans and spans()) or ()
