"""Miles: its policy loss, with accepted tokens at ratio 1. With

    --custom-generate-function-path sis.integrations.miles.generate --use-rollout-logprobs
    --loss-type custom_loss --custom-loss-function-path sis.integrations.miles.loss
    --custom-megatron-before-train-step-hook-path sis.integrations.miles.before_train_step
    --custom-config-path FILE

and in FILE `sis: {address: "localhost:50051", run: my-training}`, with any other field of sis.integrations.SisConfig.
"""

from __future__ import annotations

import functools
from typing import Any, Dict

import torch
from miles.backends.training_utils.loss import get_log_probs_and_entropy, policy_loss_function
from miles.rollout.base_types import GenerateFnInput, GenerateFnOutput
from miles.rollout.generate_hub import single_turn

from sis.integrations._refusals import Needed
from sis.integrations._slime_family import Engine, Framework, Loss, OneTurn, Process


class _Engine(Engine):
    def check(self, args: Any, top_k: int) -> None:
        if any("RadixTreeMiddleware" in path for path in args.miles_router_middleware_paths):
            raise ValueError(
                "miles_router_middleware_paths has RadixTreeMiddleware, which changes tokens: leave it out"
            )
        super().check(args, top_k)


_NEEDED: Needed = {
    "true_on_policy_mode": (False, "it rounds the log-probs by which records are found"),
    "lora_rank": (0, "requests name no adapter"),
    "lora_adapter_path": (None, "requests name no adapter"),
}
_process = Process(Framework("miles", "miles-rl", policy_loss_function, _NEEDED, _Engine()))
before_train_step = _process.before_train_step
_turns = OneTurn(_process, single_turn)


async def generate(input: GenerateFnInput) -> GenerateFnOutput:
    """Generates one turn by Miles's own function, and records it unless it is an evaluation.

    Args:
        input: Miles's input.

    Returns:
        Miles's output.
    """
    turn = functools.partial(single_turn.generate, input)
    return await (turn() if input.evaluation else _turns.recorded(input.args, input.sample, turn))


def loss(args: Any, batch: Dict[str, Any], logits: torch.Tensor, sum_of_sample_mean: Any) -> Loss:
    """Returns Miles's policy_loss_function of the old log-probs and advantages that SIS makes.

    Args:
        args: Miles's arguments.
        batch: A micro-batch.
        logits: [1, N, V], or [B, T, V] if rows are padded.
        sum_of_sample_mean: Miles's reduction.

    Returns:
        The loss, and metrics by name.
    """
    padded = batch.get("max_seq_lens")
    current = lambda: get_log_probs_and_entropy(
        logits, args=args, unconcat_tokens=batch["unconcat_tokens"], total_lengths=batch["total_lengths"],
        response_lengths=batch["response_lengths"], max_seq_lens=padded,
    )["log_probs"]  # fmt: skip
    return _process.loss(args, batch, logits, sum_of_sample_mean, current, padded)
