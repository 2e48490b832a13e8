"""slime: its policy loss, with accepted tokens at ratio 1. With

    --custom-generate-function-path sis.slime.generate --use-rollout-logprobs
    --loss-type custom_loss --custom-loss-function-path sis.slime.loss
    --custom-megatron-before-train-step-hook-path sis.slime.before_train_step
    --custom-config-path FILE

and in FILE `sis: {address: "localhost:50051", run: my-training}`, or more of what
sis.slime_family.Connection takes.
"""

from __future__ import annotations

from typing import Any, Dict

import torch
from slime.backends.megatron_utils.loss import get_log_probs_and_entropy, policy_loss_function
from slime.rollout import sglang_rollout

from sis.slime_family import Framework, Loss, OneTurn, Process

_process = Process(Framework("slime", "slime", {}, policy_loss_function))
before_train_step = _process.before_train_step
generate = OneTurn(_process, sglang_rollout).generate


def loss(args: Any, batch: Dict[str, Any], logits: torch.Tensor, sum_of_sample_mean: Any) -> Loss:
    """slime's policy_loss_function, of old log-probs and advantages as SIS makes them."""
    current = lambda: get_log_probs_and_entropy(
        logits, args=args, unconcat_tokens=batch["unconcat_tokens"], total_lengths=batch["total_lengths"],
        response_lengths=batch["response_lengths"],
    )[1]["log_probs"]  # fmt: skip
    return _process.loss(args, batch, logits, sum_of_sample_mean, current)
