"""What would train on something else than it seems to, said before it does."""

from __future__ import annotations

from typing import Any

import torch

from sis.run import Sampling
from sis.trl.config import SisConfig

# Mean difference, in nats, between the log-probs of TRL's fused head and those of hidden states times
# weights. bfloat16 makes some hundredths.
_HEAD_TOLERANCE = 0.1


def check_arguments(arguments: Any, config: SisConfig) -> None:
    """ValueError if SIS can't go with these GRPOConfig."""
    if arguments.use_vllm and arguments.vllm_importance_sampling_correction:
        raise ValueError(
            "vllm_importance_sampling_correction is on, TRL's own correction (TIS or MIS): tokens would be corrected "
            "twice. Set it to False"
        )
    if arguments.use_vllm and arguments.vllm_mode != "colocate":
        raise ValueError(f"vllm_mode is {arguments.vllm_mode!r}: only rollouts of 'colocate' are recorded")
    if arguments.use_transformers_continuous_batching:
        raise ValueError("use_transformers_continuous_batching is on: generate_batch does not tell the top-K log-probs")
    for name in ("n", "num_return_sequences"):
        count = (arguments.generation_kwargs or {}).get(name, 1)
        if count != 1:
            raise ValueError(
                f"generation_kwargs: {name} is {count}: TRL itself repeats each prompt num_generations times. Leave it out"
            )
    if arguments.use_liger_kernel:
        raise ValueError("use_liger_kernel is on: it may replace what the top-K log-probs are computed from")
    if config.soft_acceptance and arguments.loss_type != "cispo":
        raise ValueError(
            f"soft_acceptance takes the place of the clip, but loss_type {arguments.loss_type!r} clips: use 'cispo', "
            "with a large epsilon_high"
        )


def check_trainer(trainer: Any) -> None:
    """The same of what is known once the trainer is made."""
    if trainer.rollout_func is not None:
        raise ValueError("rollout_func makes the rollouts: their top-K log-probs can't be recorded")
    if trainer.is_fsdp_enabled or trainer.is_deepspeed_enabled:
        raise ValueError("FSDP and DeepSpeed may split the head, which is read as a whole: use DDP")


def check_sampling(sampling: Sampling) -> None:
    """Raw log-probs of a distribution that tokens were not drawn from, as the service would say."""
    if sampling.log_probs != "raw":
        return
    neutral = Sampling("raw")
    if sampling.temperature != 1.0:
        changed = f"the temperature is {sampling.temperature}"
    elif sampling.top_p not in (None, 1.0):
        changed = f"top_p is {sampling.top_p}"
    elif sampling.top_k not in (None, 0, -1):
        changed = f"top_k is {sampling.top_k}"
    elif sampling.min_p not in (None, 0.0):
        changed = f"min_p is {sampling.min_p}"
    elif sampling.repetition_penalty not in (None, 1.0) or sampling.logit_bias != neutral.logit_bias:
        changed = "penalties or biases are set"
    else:
        return
    raise ValueError(
        f"logprobs_mode is 'raw_logprobs', but {changed}: the recorded log-probs would not be those that tokens are "
        "drawn from. vLLM needs logprobs_mode='processed_logprobs'"
    )


def check_head(
    hidden: torch.Tensor, head: Any, tokens: torch.Tensor, log_probs: torch.Tensor, temperature: float
) -> None:
    """Whether `log_probs` [N] of `tokens` are those of hidden [N, H] times the head's weights: some
    models scale or cap their logits after that."""
    logits = torch.nn.functional.linear(
        hidden.float(), head.weight.float(), None if head.bias is None else head.bias.float()
    )
    expected = (logits / temperature).log_softmax(-1).gather(1, tokens[:, None])[:, 0]
    difference = (expected - log_probs).abs().mean().item()
    if not difference < _HEAD_TOLERANCE:
        raise ValueError(
            f"the model's log-probs are {difference:.2g} nats from those of its last hidden states times its head. "
            "Models that scale or cap their logits are not supported"
        )
