"""slime: its policy loss, with accepted tokens at ratio 1. With

    --custom-generate-function-path sis.integrations.slime.generate --use-rollout-logprobs
    --loss-type custom_loss --custom-loss-function-path sis.integrations.slime.loss
    --custom-megatron-before-train-step-hook-path sis.integrations.slime.before_train_step
    --custom-config-path FILE

and in FILE `sis: {address: "localhost:50051", run: my-training}`, with any other field of sis.integrations.SisConfig.
"""

from __future__ import annotations

from slime.backends.megatron_utils.loss import get_log_probs_and_entropy, policy_loss_function
from slime.rollout import sglang_rollout

from sis.integrations._slime_family import Framework, OneTurn, Process, packed_loss

_process = Process(Framework("slime", "slime", policy_loss_function))
before_train_step = _process.before_train_step
generate = OneTurn(_process, sglang_rollout).generate
loss = packed_loss(_process, get_log_probs_and_entropy)
