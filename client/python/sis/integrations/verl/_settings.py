"""The settings in verl's configuration, and configurations that SIS does not support: ValueError, with the setting to
change."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any, Callable, Mapping, Optional

from sis.integrations._config import SisConfig
from sis.integrations._token_tables import check_trackers
from sis._run import Sampling

# Values of actor.policy_loss.loss_mode that read more of ratios and advantages than each token's product.
_NOT_PER_TOKEN = ("clip_cov", "kl_cov", "geo_mean", "dro")


def replace_function(owner: Any, name: str, own: Callable[..., Any]) -> None:
    """Lets `own` be called in place of a function of verl, with that function as its first argument."""
    stock = getattr(owner, name)

    # Keeps the attributes that verl's decorators set.
    @functools.wraps(stock)
    def replaced(*arguments: Any, **named: Any) -> Any:
        return own(stock, *arguments, **named)

    setattr(owner, name, replaced)


def config_of(custom: Optional[Mapping[str, Any]]) -> Optional[SisConfig]:
    """Returns the settings in `actor_rollout_ref.rollout.custom`; None if there is no `sis`."""
    given = (custom or {}).get("sis")
    return None if given is None else SisConfig.of(given, "rollout.custom.sis")


def for_rollouts(config: SisConfig, rollout: Mapping[str, Any]) -> SisConfig:
    """Returns the settings, with mass 0 if rollouts are filtered: sets then must show which tokens were kept."""
    return replace(config, mass=0.0) if config.sets == "engine" and _filters(rollout).truncates else config


def rollouts_record(custom: Optional[Mapping[str, Any]]) -> bool:
    """Returns whether rollout servers record, by `actor_rollout_ref.rollout.custom`."""
    config = config_of(custom)
    return config is not None and config.sets == "engine"


def truncates(actor: Mapping[str, Any], rollout: Mapping[str, Any], observe: bool = False) -> bool:
    """Returns whether rollouts are filtered, by these parts of verl's configuration.

    Raises:
        ValueError: The training would be wrong with filters.
    """
    truncated = _filters(rollout).truncates
    if truncated and actor.get("use_kl_loss") and not observe:
        raise ValueError(
            "actor.use_kl_loss is true, and rollout.top_p or top_k leave tokens out: the current policy is "
            "renormalised over the others, and the reference model is not. Set use_kl_loss to false, or top_p to 1.0 and top_k to -1"
        )
    if truncated and rollout.get("logprobs_mode") == "raw_logprobs":
        raise ValueError(
            "rollout.logprobs_mode is 'raw_logprobs', and top_p or top_k leave tokens out: those are not the log-probs "
            "that tokens are drawn from. Set it to 'processed_logprobs'"
        )
    return truncated


def _filters(rollout: Mapping[str, Any]) -> Sampling:
    return Sampling("processed", top_p=rollout.get("top_p"), top_k=rollout.get("top_k"))


def check_training(config: Mapping[str, Any]) -> None:
    """Raises ValueError if SIS does not support a training's configuration. Called before anything starts."""
    parts = config["actor_rollout_ref"]
    actor, rollout = parts["actor"], parts["rollout"]
    strategy = actor["strategy"]
    of_engine = actor.get("megatron" if strategy == "megatron" else "fsdp_config") or {}
    check_engine({**of_engine, "strategy": strategy}, parts["model"])
    settings = config_of(rollout.get("custom"))
    observe = settings is not None and settings.observe
    if settings is not None:
        check_split(strategy, settings, settings.sets == "engine" and truncates(actor, rollout, observe))
        check_trackers(settings.token_table_steps, config["trainer"]["logger"], "trainer.logger")
        rule, mode = settings.rule, (actor.get("policy_loss") or {}).get("loss_mode")
        if rule is not None and mode in _NOT_PER_TOKEN:
            raise ValueError(
                f"actor.policy_loss.loss_mode is {mode!r}, but {rule} gives each token a weight in the place of ratios. "
                "Set it to 'vanilla'"
            )
        correction = config["algorithm"].get("rollout_correction") or {}
        if rule is not None and correction.get("bypass_mode") and correction.get("rollout_rs"):
            raise ValueError(
                "algorithm.rollout_correction.rollout_rs rejects by differences from the old log-probs, which are all 0 "
                f"by {rule} in bypass mode. Set it to null"
            )
    if settings is not None and settings.sets == "trainer":
        _check_own_sets(config)
    else:
        _check_recording(config, observe)
    distillation = config.get("distillation") or {}
    if distillation.get("enabled") and distillation["distillation_loss"]["loss_mode"] == "forward_kl_topk":
        raise ValueError(
            "distillation.distillation_loss.loss_mode is 'forward_kl_topk', which needs the hook of the engine that "
            "SIS uses. Set it to 'k3', or another that estimates"
        )


def check_parallel(sets: str, ulysses: int) -> None:
    """Raises ValueError if the trainer's sets are combined with Ulysses, of this ulysses_sequence_parallel_size."""
    if sets == "trainer" and ulysses > 1:
        raise ValueError(
            f"actor.fsdp_config.ulysses_sequence_parallel_size is {ulysses}, with which nobody has run sis.sets "
            "'trainer'. Set it to 1, or sets to 'engine'"
        )


def check_split(strategy: str, settings: SisConfig, truncated: bool) -> None:
    """Raises ValueError if settings need whole vocabularies, and ranks have parts of them."""
    for name, on in {"sis.sets='trainer'": settings.sets == "trainer", "rollout.top_p or top_k": truncated}.items():
        if on and strategy == "megatron":
            raise ValueError(
                f"{name} is set, which needs whole vocabularies: leave it out, or train by verl's ppo_trainer"
            )


def _check_own_sets(config: Mapping[str, Any]) -> None:
    actor = config["actor_rollout_ref"]["actor"]
    sizes = (part.get("ulysses_sequence_parallel_size") or 1 for part in (actor, actor.get("fsdp_config") or {}))
    check_parallel("trainer", max(sizes))
    correction = config["algorithm"].get("rollout_correction") or {}
    if correction.get("bypass_mode"):
        raise ValueError(
            "algorithm.rollout_correction.bypass_mode is true, by which actors never recompute old log-probs, and "
            "sis.sets is 'trainer', which records them. Set bypass_mode to false, or sets to 'engine'"
        )
    if "token" in (correction.get("rollout_rs") or ""):
        raise ValueError(
            f"algorithm.rollout_correction.rollout_rs is {correction['rollout_rs']!r}, which takes tokens out of what "
            "actors have recorded as a whole. Set it to null, or to one that rejects sequences"
        )


def _check_recording(config: Mapping[str, Any], observe: bool) -> None:
    actor, rollout = config["actor_rollout_ref"]["actor"], config["actor_rollout_ref"]["rollout"]
    truncates(actor, rollout, observe)
    if rollout["name"] != "vllm":
        raise ValueError(f"rollout.name is {rollout['name']!r}: SIS records vLLM. Set it to 'vllm'")
    if not rollout.get("calculate_log_probs"):
        raise ValueError(
            "rollout.calculate_log_probs is false: without log-probs no sample is known again. Set it to true"
        )
    if (config["algorithm"].get("rollout_correction") or {}).get("rollout_is") and not observe:
        raise ValueError(
            "algorithm.rollout_correction.rollout_is weights the tokens too, which corrects twice. Set it to null"
        )


def check_engine(engine: Mapping[str, Any], model: Mapping[str, Any]) -> None:
    """Raises ValueError unless verl passes on the logits of this actor's engine and model, row after row."""
    strategy = engine["strategy"]
    if strategy == "megatron":
        _check_megatron(engine)
    elif strategy not in ("fsdp", "fsdp2"):
        raise ValueError(
            f"actor.strategy is {strategy!r}, which SIS does not support. Set it to 'fsdp2', or 'fsdp' or 'megatron'"
        )
    if model.get("use_fused_kernels") or engine.get("use_fused_kernels"):
        raise ValueError("model.use_fused_kernels is true: the logits that SIS needs are never made. Set it to false")
    if engine.get("pad_to_length"):
        raise ValueError(
            "the actor's pad_to_length is true: verl doesn't allow it with a function of logits. Set it to false"
        )


def _check_megatron(engine: Mapping[str, Any]) -> None:
    if (size := engine.get("context_parallel_size", 1)) > 1:
        raise ValueError(f"actor.megatron.context_parallel_size is {size}, which cuts sequences up. Set it to 1")
    if engine.get("dynamic_context_parallel"):
        raise ValueError("actor.megatron.dynamic_context_parallel is true, which cuts sequences up. Set it to false")
    if not engine.get("use_remove_padding", True):
        raise ValueError("actor.megatron.use_remove_padding is false, by which logits are padded. Set it to true")
    if (engine.get("override_transformer_config") or {}).get("fp8"):
        raise ValueError("actor.megatron.override_transformer_config.fp8 is set, which pads sequences. Leave it out")
