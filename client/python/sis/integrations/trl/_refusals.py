"""Refuses settings under which the training would differ from what it seems to be."""

from __future__ import annotations

import os
import warnings
from typing import Any, Mapping

import torch

from sis.integrations._config import SisConfig
from sis.integrations._refusals import Needed, check, check_cispo
from sis._logit_transform import LogitTransform
from sis._run import Sampling

# Share of the largest logit by which float32 sums of some thousand products may differ in another order.
_OTHER_ORDER = 2.0**-18
# Fields of transformers' generation_config.
_SPECULATIVE = ("prompt_lookup_num_tokens", "assistant_model", "assistant_early_exit", "use_mtp")
# Needed values in a server's /server_info.
_OF_VLLM_SERVER: Needed = {
    "model_config.logprobs_mode": ("processed_logprobs", "tokens are drawn from other distributions"),
    "speculative_config": (None, "its log-probs of some tokens are then wrong by several nats"),
}
# Values of Sampling that change nothing.
_NEUTRAL = {
    "temperature": (1.0,), "top_p": (None, 1.0), "top_k": (None, 0, -1), "min_p": (None, 0.0),
    "repetition_penalty": (None, 1.0), "logit_bias": (False,),
}  # fmt: skip


def check_arguments(arguments: Any, config: SisConfig) -> None:
    """Raises ValueError if SIS does not support this GRPOConfig."""
    needed: Needed = {
        f"generation_kwargs.{name}": (1, "TRL itself repeats each prompt num_generations times")
        for name in ("n", "num_return_sequences")
    }
    if config.sets == "trainer":
        _check_own_sets(arguments)
    else:
        needed["use_transformers_continuous_batching"] = (False, "generate_batch does not tell the top-K log-probs")
        if not arguments.use_vllm:
            at_a_time = "transformers then draw several tokens at a time, whose top-K log-probs are not recorded"
            needed.update({f"generation_kwargs.{name}": (None, at_a_time) for name in _SPECULATIVE})
        if not config.observe:
            check_truncation(asked_for(arguments), arguments.beta)
    rule = config.rule
    if rule is not None:
        needed["importance_sampling_level"] = ("token", f"{rule} gives each token a weight")
        if arguments.loss_type == "vespo":
            needed["loss_type"] = ("dapo", f"vespo weighs sequences, but {rule} gives each token a weight")
        if arguments.beta != 0:
            of_kl = f"it weighs the KL term by the loss's ratio, but by {rule} that is 1"
            needed["use_bias_correction_kl"] = (False, of_kl)
    check(arguments, needed)
    if not config.observe:
        check_cispo(arguments)


def _check_own_sets(arguments: Any) -> None:
    per_rollout = arguments.steps_per_generation * arguments.num_iterations
    if arguments.gradient_accumulation_steps % per_rollout == 0:
        raise ValueError(
            f"gradient_accumulation_steps is {arguments.gradient_accumulation_steps}, so a rollout is trained on by "
            "one update, with the weights that SisConfig.sets='trainer' records: all ratios would be 1. Set "
            "num_iterations to 2, or steps_per_generation above gradient_accumulation_steps, or sets to 'engine'"
        )


def switch_off_own_correction(arguments: Any) -> None:
    """Switches TRL's own correction (TIS or MIS), which is on by default, off: it would correct tokens twice. The main
    process warns."""
    if not (arguments.use_vllm and arguments.vllm_importance_sampling_correction):
        return
    arguments.vllm_importance_sampling_correction = False
    if arguments.process_index == 0:
        warnings.warn(
            "vllm_importance_sampling_correction, TRL's own correction, is switched off: SIS corrects the same tokens",
            stacklevel=2,
        )


def asked_for(arguments: Any) -> Sampling:
    """Returns the filters of this GRPOConfig."""
    names = ("top_p", "top_k", "min_p")
    further = arguments.generation_kwargs or {}
    return Sampling("processed", **{name: further.get(name, getattr(arguments, name)) for name in names})


def check_truncation(sampling: Sampling, beta: float) -> None:
    """Raises ValueError if a filter is combined with a reference model."""
    if sampling.truncates and beta != 0:
        raise ValueError(
            f"beta is {beta}, and top_p, top_k or min_p leave tokens out: the current policy is renormalised over the "
            "others, and the reference model is not. Set beta to 0, or top_p to 1, top_k to 0 and min_p to None"
        )


def check_whole_sets(sampling: Sampling, mass: float) -> None:
    """Raises ValueError if a rollout_func filters tokens although the run has a mass, as the arguments have no filter."""
    if sampling.truncates and 0 < mass < 1:
        raise ValueError(
            f"top_p, top_k or min_p leave tokens out, and SisConfig.mass is {mass}: a cut set doesn't tell what was "
            "kept. Set mass to 0, or top_p, top_k and min_p in the trainer's arguments too"
        )


def check_vllm_server(told: Mapping[str, Any], top_k: int) -> None:
    """Raises ValueError if a vLLM server does not return K log-probs of the distribution that tokens are drawn from.

    Args:
        told: The server's VllmConfig, from its /server_info.
        top_k: K.
    """
    check(told, _OF_VLLM_SERVER, "the vLLM server's ")
    most = told["model_config"]["max_logprobs"]
    if 0 <= most < top_k:
        raise ValueError(
            f"the vLLM server's max_logprobs is {most}, SisConfig.top_k {top_k}: start it with --max-logprobs -1"
        )


def check_sharding(arguments: Any) -> None:
    """Raises ValueError if FSDP1 is set, by these TrainingArguments or by `accelerate launch` in the environment."""
    version = 2
    # transformers 4 sets the environment instead.
    if getattr(arguments, "fsdp_plugin_args", None) is not None:
        version = arguments.fsdp_plugin_args["fsdp_version"]
    elif os.environ.get("ACCELERATE_USE_FSDP", "").lower() == "true":
        version = int(os.environ.get("FSDP_VERSION", "1"))
    if version != 2:
        raise ValueError(
            "FSDP1 flattens the head, whose rows are read: set fsdp_version to 2 in fsdp_config, or use DDP"
        )


def check_sampling(sampling: Sampling, beta: float) -> None:
    """Raises ValueError if log-probs are raw ones, of a distribution that tokens were not drawn from; and as
    check_truncation does."""
    check_truncation(sampling, beta)
    if sampling.log_probs != "raw":
        return
    changed = [
        f"{name} is {value}" for name, neutral in _NEUTRAL.items() if (value := getattr(sampling, name)) not in neutral
    ]
    if changed:
        raise ValueError(
            f"logprobs_mode is 'raw_logprobs', but {changed[0]}: the recorded log-probs would not "
            "be those that tokens are drawn from. vLLM needs logprobs_mode='processed_logprobs'"
        )


def check_head(
    hidden: torch.Tensor,
    head: Any,
    tokens: torch.Tensor,
    log_probs: torch.Tensor,
    transform: LogitTransform,
    temperature: float,
    dtype: torch.dtype,
) -> None:
    """Raises ValueError if the model changes its logits in an unknown way.

    Args:
        hidden: [N, H], the last hidden states.
        head: The model's Head.
        tokens: int [N], the sampled tokens.
        log_probs: float32 [N], their log-probs by the model, which must be those of hidden times head, transformed,
            except for rounding.
        transform: The transform of logits that the model's configuration names.
        temperature: Temperature of the rollouts.
        dtype: Type in which TRL's head multiplies.
    """
    with torch.autocast(hidden.device.type, enabled=False):
        logits = hidden.to(dtype) @ head.weight.to(dtype).T
        if head.bias is not None:
            logits = logits + head.bias.to(dtype)
    logits = transform(logits.float()) / temperature
    expected = logits.log_softmax(-1).gather(1, tokens[:, None])[:, 0]
    difference = (expected - log_probs).abs().mean().item()
    rounding = max(torch.finfo(dtype).eps / 2, _OTHER_ORDER) * logits.abs().amax(dim=1).mean().item()
    if not difference <= rounding:
        raise ValueError(
            f"the model's log-probs are {difference:.2g} nats from those of its last hidden states times its head, and "
            f"rounding is {rounding:.2g}: it seems to scale or cap its logits in a way that its configuration does not "
            "tell. Such models are not supported"
        )
