"""The settings in verl's configuration."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Mapping, Optional

from sis.integrations._config import SisConfig
from sis._run import Sampling


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
