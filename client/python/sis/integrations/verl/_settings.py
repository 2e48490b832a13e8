"""The settings in verl's configuration, and configurations that SIS does not support: ValueError, with the setting to
change."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any, Callable, Mapping, Optional

from sis.integrations._config import SisConfig
from sis.integrations._refusals import Needed, check
from sis.integrations._token_tables import check_trackers
from sis._run import Sampling

# Values of actor.policy_loss.loss_mode that read more of ratios and advantages than each token's product.
_NOT_PER_TOKEN = ("clip_cov", "kl_cov", "geo_mean", "dro")
_MODEL: Needed = {"use_fused_kernels": (False, "the logits that SIS needs are never made")}
_ENGINE: Needed = {**_MODEL, "pad_to_length": (False, "verl doesn't allow it with a function of logits")}
_MEGATRON: Needed = {
    "context_parallel_size": (1, "it cuts sequences up"),
    "dynamic_context_parallel": (False, "it cuts sequences up"),
    "use_remove_padding": (True, "logits are padded without"),
    "override_transformer_config.fp8": (None, "it pads sequences"),
}
_CORRECTION = "algorithm.rollout_correction"
_TRUNCATED = "rollout.top_p or top_k leave tokens out: ratios are of the others"
_RECORDS: Needed = {
    "actor_rollout_ref.rollout.name": ("vllm", "SIS records vLLM"),
    "actor_rollout_ref.rollout.calculate_log_probs": (True, "without log-probs no sample is known again"),
}
_OWN_SETS: Needed = {
    f"{_CORRECTION}.bypass_mode": (False, "actors then recompute no old log-probs, which sis.sets='trainer' needs"),
}


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
    if truncated:
        check(rollout, {"logprobs_mode": ("processed_logprobs", _TRUNCATED)}, "rollout.")
    if truncated and not observe:
        check(actor, {"use_kl_loss": (False, f"{_TRUNCATED}, and the reference model is of all tokens")}, "actor.")
    return truncated


def _filters(rollout: Mapping[str, Any]) -> Sampling:
    return Sampling("processed", top_p=rollout.get("top_p"), top_k=rollout.get("top_k"))


def check_training(config: Mapping[str, Any]) -> None:
    """Raises ValueError if SIS does not support a training that uses it. Called before anything starts."""
    parts = config["actor_rollout_ref"]
    actor, rollout = parts["actor"], parts["rollout"]
    settings = config_of(rollout.get("custom"))
    if settings is None:
        return
    own_sets, rule = settings.sets == "trainer", settings.rule
    truncated = not own_sets and truncates(actor, rollout, settings.observe)
    check_trackers(settings.token_table_steps, config["trainer"]["logger"], "trainer.logger")
    strategy = actor["strategy"]
    engine = actor.get("megatron" if strategy == "megatron" else "fsdp_config") or {}
    ulysses = max(part.get("ulysses_sequence_parallel_size") or 1 for part in (actor, engine))
    engine = {**engine, "strategy": strategy, "ulysses_sequence_parallel_size": ulysses}
    check_engine(engine, parts["model"], settings, truncated)
    needed = dict(_OWN_SETS if own_sets else _RECORDS)
    if not (own_sets or settings.observe):
        needed[f"{_CORRECTION}.rollout_is"] = (None, "it weights the tokens too, which corrects twice")
    correction = config["algorithm"].get("rollout_correction") or {}
    if own_sets and "token" in (correction.get("rollout_rs") or ""):
        needed[f"{_CORRECTION}.rollout_rs"] = (None, "it takes tokens out of what actors have recorded as a whole")
    if rule is not None:
        if (actor.get("policy_loss") or {}).get("loss_mode") in _NOT_PER_TOKEN:
            of_loss = f"{rule} gives each token a weight in the place of ratios"
            needed["actor_rollout_ref.actor.policy_loss.loss_mode"] = ("vanilla", of_loss)
        if correction.get("bypass_mode"):
            all_0 = f"it rejects by differences from the old log-probs, which are all 0 by {rule} in bypass mode"
            needed[f"{_CORRECTION}.rollout_rs"] = (None, all_0)
    loss_mode = "distillation.distillation_loss.loss_mode"
    distillation = config.get("distillation") or {}
    if distillation.get("enabled") and distillation["distillation_loss"]["loss_mode"] == "forward_kl_topk":
        needed[loss_mode] = ("k3", "it needs the hook of the engine that SIS uses")
    check(config, needed)


def check_engine(engine: Mapping[str, Any], model: Mapping[str, Any], settings: SisConfig, truncated: bool) -> None:
    """Raises ValueError unless verl passes on the logits of this actor's engine and model, row after row, as settings
    and filters need them.

    Args:
        engine: An engine's configuration, with its strategy.
        model: A model's.
        settings: The settings.
        truncated: Whether rollouts are filtered, and ratios are of the kept tokens.
    """
    strategy, own_sets = engine["strategy"], settings.sets == "trainer"
    if strategy not in ("fsdp", "fsdp2", "megatron"):
        raise ValueError(
            f"actor.strategy is {strategy!r}, which SIS does not support. Set it to 'fsdp2', or 'fsdp' or 'megatron'"
        )
    if strategy == "megatron" and (own_sets or truncated):
        name = "sis.sets='trainer'" if own_sets else "rollout.top_p or top_k"
        raise ValueError(f"{name} is set, which needs whole vocabularies: leave it out, or train by verl's ppo_trainer")
    needed = {**_ENGINE, **(_MEGATRON if strategy == "megatron" else {})}
    if own_sets:
        needed["ulysses_sequence_parallel_size"] = (1, "nobody has run sis.sets 'trainer' with it")
    check(engine, needed, "the actor's ")
    check(model, _MODEL, "model.")
