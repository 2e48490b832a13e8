"""What a training has to say."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, Mapping, Optional, Sequence, Union

from sis.client import Client
from sis.run import Run, Sampling, check_id
from sis.token_weights import TokenWeights, check_sets

# Of Settings: what is a setting of the run too.
_OF_RUN = ("top_k", "seed", "max_staleness", "time_to_live", "log_prob_encoding", "mass")


@dataclass(frozen=True)
class Settings:
    """The same for all actors and rollout servers of a training."""

    # What sis.Client takes: host:port, or a list of the replicas'.
    address: Union[str, Sequence[str]]
    # Names the training, and no other; one that is resumed may have its name again. Of
    # [A-Za-z0-9._-].
    run: str
    # K, the recorded tokens per position. All that follow are as in Client.create_run.
    top_k: int = 20
    seed: int = 0
    max_staleness: Optional[int] = None
    # Seconds.
    time_to_live: float = 3600.0
    log_prob_encoding: str = "fixed16"
    # Seconds that a call may take; without an answer the step goes on with verl's own ratios, by a rule
    # with a = 0 (docs/trl.md).
    timeout: float = 10.0
    # Seconds that the records of a mini-batch are kept after their last use at least, unless they are
    # released. At most 3600.
    keep_seconds: float = 600.0
    # Whether the service may forget what was trained on.
    release: bool = True
    # Where a set's probabilities reach this sum it ends, before top_k; 0: at top_k. Of no effect where
    # verl's configuration has rollouts leave tokens out.
    mass: float = 0.0
    # Every so many steps the trackers of trainer.logger get a table of the tokens that are accepted and
    # rejected most; 0: never.
    token_table_steps: int = 0
    # As in sis.token_weights.TokenWeights.
    weight: str = "sampled"
    soft_acceptance: bool = False
    damped_truncation: Union[bool, str] = False
    # Whose K most probable tokens are recorded, and whose log-probs ratios are to: "engine", vLLM's, or
    # "trainer", the actors' own while they recompute old log-probs.
    sets: str = "engine"

    def __post_init__(self) -> None:
        check_id(self.run)
        TokenWeights.of(self)
        check_sets(self.sets)

    @staticmethod
    def of(custom: Optional[Mapping[str, Any]]) -> Optional[Settings]:
        """Of `actor_rollout_ref.rollout.custom`; None if that has no `sis`."""
        given = (custom or {}).get("sis")
        if given is None:
            return None
        known = {entry.name for entry in fields(Settings)}
        for name in given:
            if name not in known:
                raise ValueError(f"rollout.custom.sis.{name} is unknown, must be one of {', '.join(sorted(known))}")
        for name in ("address", "run"):
            if not given.get(name):
                raise ValueError(f"rollout.custom.sis.{name} is missing")
        values = dict(given)
        if not isinstance(values["address"], str):
            values["address"] = list(values["address"])
        return Settings(**values)

    def for_rollouts(self, rollout: Mapping[str, Any]) -> Settings:
        """These, but for the mass where rollouts leave tokens out: sets then have to tell which were kept.
        rollout: that part of verl's configuration."""
        return replace(self, mass=0.0) if self.sets == "engine" and _filters(rollout).truncates else self

    def client(self) -> Client:
        """Sends nothing yet."""
        address = self.address if isinstance(self.address, str) else list(self.address)
        return Client(address, timeout=self.timeout)

    def create_run(self, client: Client, vocabulary_size: int, incarnation: int = 0) -> Run:
        """`incarnation`: as in Client.create_run; 0 is the one that is there."""
        return client.create_run(
            self.run,
            incarnation=incarnation,
            vocabulary_size=vocabulary_size,
            algorithm="verl",
            **{name: getattr(self, name) for name in _OF_RUN},
        )


def rollouts_record(custom: Optional[Mapping[str, Any]]) -> bool:
    """By `actor_rollout_ref.rollout.custom`."""
    settings = Settings.of(custom)
    return settings is not None and settings.sets == "engine"


def truncates(actor: Mapping[str, Any], rollout: Mapping[str, Any]) -> bool:
    """Of these parts of verl's configuration: whether rollouts leave tokens out. ValueError if the training
    can't be right with that."""
    truncated = _filters(rollout).truncates
    if truncated and actor.get("use_kl_loss"):
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


def vocabulary_size(hf_config: Any) -> int:
    """Of a configuration of transformers: how many tokens its head has."""
    text = hf_config.get_text_config() if hasattr(hf_config, "get_text_config") else hf_config
    return int(text.vocab_size)
