"""slime: its policy loss, with accepted tokens at ratio 1. With

    --custom-generate-function-path sis.slime.generate --use-rollout-logprobs
    --loss-type custom_loss --custom-loss-function-path sis.slime.loss
    --custom-megatron-before-train-step-hook-path sis.slime.before_train_step
    --custom-config-path FILE

and in FILE `sis: {address: "localhost:50051", run: my-training}`, or more of what
sis.slime_family.Connection takes.
"""

from __future__ import annotations

import asyncio
import contextvars
import dataclasses
from typing import Any, Dict, Optional

import torch
from slime.backends.megatron_utils.loss import get_log_probs_and_entropy, policy_loss_function
from slime.rollout import sglang_rollout
from slime.utils.types import Sample

from sis.slime_family import Framework, Loss, Process

_framework = Framework("slime", "slime", {}, policy_loss_function)
_process = Process(_framework)
before_train_step = _process.before_train_step


@dataclasses.dataclass
class _Request:
    top_k: int
    sampling_params: Optional[Dict[str, Any]] = None
    answer: Any = None


# That this task makes.
_request: contextvars.ContextVar[_Request] = contextvars.ContextVar("sis.slime")
_post = sglang_rollout.post


async def _post_and_keep(url: str, payload: Dict[str, Any], **others: Any) -> Any:
    """What slime's own function calls: it has no hook between the request and its answer."""
    request = _request.get(None)
    if request is None:
        return await _post(url, payload, **others)
    request.sampling_params = dict(payload["sampling_params"])
    request.answer = await _post(url, {**payload, "top_logprobs_num": request.top_k}, **others)
    return request.answer


sglang_rollout.post = _post_and_keep


async def generate(args: Any, sample: Sample, sampling_params: Dict[str, Any], evaluation: bool = False) -> Sample:
    """Of one turn, by slime's own function, and recorded, but for evaluations."""
    if evaluation:
        return await sglang_rollout.generate(args, sample, sampling_params)
    connection = await asyncio.to_thread(_process.connected, args)
    if sample.response_length:
        _begin_anew(sample)
    request = _Request(connection.top_k)
    # Each sample has a task of its own, or waits for the one before it.
    of_before = _request.set(request)
    try:
        sample = await sglang_rollout.generate(args, sample, sampling_params)
    finally:
        _request.reset(of_before)
    if request.answer is not None:
        await asyncio.to_thread(connection.record, sample, request.sampling_params, request.answer)
    return sample


def _begin_anew(sample: Sample) -> None:
    """What was aborted, as fully asynchronous rollouts hand in again: a record is of one request."""
    sample.tokens = sample.tokens[: -sample.response_length]
    sample.response, sample.response_length = "", 0
    sample.loss_mask = sample.rollout_log_probs = sample.rollout_routed_experts = None


def loss(args: Any, batch: Dict[str, Any], logits: torch.Tensor, sum_of_sample_mean: Any) -> Loss:
    """slime's policy_loss_function, of old log-probs and advantages as SIS makes them."""
    current = lambda: get_log_probs_and_entropy(
        logits, args=args, unconcat_tokens=batch["unconcat_tokens"], total_lengths=batch["total_lengths"],
        response_lengths=batch["response_lengths"],
    )[1]["log_probs"]  # fmt: skip
    return _process.loss(args, batch, logits, sum_of_sample_mean, current)
