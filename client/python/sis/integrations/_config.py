"""The settings of all integrations."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Dict, Mapping, Optional, Sequence, Union

from sis._algorithms import DampedTruncation, IcePop, SoftAcceptance
from sis._client import Client
from sis._corrections import Correction, PRESETS, Sis
from sis._run import Run, check_id

# The longest time that the service keeps a record for a trainer, in seconds.
_LONGEST_KEPT = 3600.0
_OF_RUN = ("top_k", "mass", "max_staleness", "time_to_live", "log_prob_encoding")
_OBSERVED: Dict[str, Correction] = {
    "sis": Sis(),
    "sis_expected": Sis(weight="expected"),
    "damped_truncation": DampedTruncation(),
    "soft_acceptance": SoftAcceptance(),
    "icepop": IcePop(),
    **PRESETS,
}


@dataclass(frozen=True)
class SisConfig:
    """Settings, the same for all processes of a training. Every one has a default.

    In the formulas w is a token's importance ratio and a its acceptance probability. A token is outward if it has
    already moved the way its advantage pushes.

    Attributes:
        address: host:port of the server, or a list with those of all replicas. None: TRL starts a server on this
            machine, which ends with the training; the other integrations need an address.
        top_k: K, the number of most probable tokens that are recorded per position.
        run: Name of the training on the server, 1 to 256 characters of [A-Za-z0-9._-]. None: TRL makes a name; the
            other integrations need one.
        observe: Whether to record, evaluate and log without changing the training. The metrics also show what other
            corrections would have done.
        weight: "sampled": an accepted token weighs 1, any other w. "expected": every token weighs a + (1 - a) w.
        soft_acceptance: Whether outward tokens weigh a times as much, instead of the loss's clip.
        damped_truncation: Whether every token weighs min(w, 1), and an outward one a times as much, instead of the
            loss's clip; nothing is drawn. "without_sets": min(w, 1/w) instead of a, which needs no record.
        sets: Whose most probable tokens are recorded, and whose log-probs w is relative to. "engine": the engine that
            generates. "trainer": the trained model before the first update on a rollout (TRL and verl).
        mass: Sum of probabilities, in (0, 1), at which a position's set ends before top_k; 0: at top_k. Ignored if
            rollouts are filtered by top-p, top-k or min-p.
        seed: Key of the draws. None: the seed of TRL's arguments, 0 elsewhere.
        max_staleness: Policy versions after which a position is MISSING. None: no limit. TRL's asynchronous trainer
            sets its own.
        time_to_live: Seconds after its last use when a sequence is dropped, unless it is released before; 0: never.
        log_prob_encoding: "fixed16" (16 bits, rounded down) or "float32".
        timeout: Seconds that a call may take.
        token_table_steps: Optimiser steps between two tables, in the experiment trackers of TRL or verl, of the tokens
            that are accepted and rejected most, and between two values of accept rate and D by age; 0: neither.
    """

    address: Union[None, str, Sequence[str]] = None
    top_k: int = 20
    run: Optional[str] = None
    observe: bool = False
    weight: str = "sampled"
    soft_acceptance: bool = False
    damped_truncation: Union[bool, str] = False
    sets: str = "engine"
    mass: float = 0.0
    seed: Optional[int] = None
    max_staleness: Optional[int] = None
    time_to_live: float = 3600.0
    log_prob_encoding: str = "fixed16"
    timeout: float = 60.0
    token_table_steps: int = 0

    def __post_init__(self) -> None:
        for name, allowed in (
            ("weight", ("sampled", "expected")),
            ("damped_truncation", (False, True, "without_sets")),
            ("sets", ("engine", "trainer")),
        ):
            if getattr(self, name) not in allowed:
                raise ValueError(f"{name} is {getattr(self, name)!r}, must be one of {', '.join(map(repr, allowed))}")
        if self.damped_truncation and self.soft_acceptance:
            raise ValueError("damped_truncation and soft_acceptance are both on: each is a rule of its own: set one")
        if self.damped_truncation and self.weight != "sampled":
            raise ValueError(f"weight is {self.weight!r}, but damped_truncation weighs by w itself: leave weight out")
        if self.observe and (self.rule or self.weight != "sampled"):
            raise ValueError(f"observe is on, which changes no weight: leave {self.rule or 'weight'} out")
        if self.top_k < 1:
            raise ValueError(f"top_k is {self.top_k}, must be at least 1")
        if self.run is not None:
            check_id(self.run)

    @staticmethod
    def of(given: Mapping[str, Any], name: str) -> SisConfig:
        """Reads settings from a framework's configuration.

        Args:
            given: Values by field name. `address` and `run` are required.
            name: Name of `given` in that configuration, for errors.

        Returns:
            The settings.

        Raises:
            ValueError: A field is unknown, missing or has a wrong value.
        """
        known = [field.name for field in fields(SisConfig)]
        for field in given:
            if field not in known:
                raise ValueError(f"{name}.{field} is unknown, must be one of {', '.join(sorted(known))}")
        for field in ("address", "run"):
            if not given.get(field):
                raise ValueError(f"{name}.{field} is missing")
        # verl's lists are not Python's.
        address = given["address"] if isinstance(given["address"], str) else list(given["address"])
        return SisConfig(**{**given, "address": address})

    @property
    def rule(self) -> Optional[str]:
        """The setting that replaces the loss's clip; None if no setting does."""
        if self.damped_truncation:
            return "damped_truncation"
        return "soft_acceptance" if self.soft_acceptance else None

    @property
    def observed(self) -> Dict[str, Correction]:
        """Corrections to observe, by the names of their metrics; empty without `observe`."""
        return dict(_OBSERVED) if self.observe else {}

    @property
    def keep_seconds(self) -> float:
        """Seconds that the service keeps fetched records, in (0, 3600]."""
        return min(self.time_to_live or _LONGEST_KEPT, _LONGEST_KEPT)

    def client(self, skips: bool = True) -> Client:
        """Returns a client, which has sent nothing yet.

        Args:
            skips: Whether calls skip an unreachable server for some seconds, even if it is the only one.

        Returns:
            The client.
        """
        assert self.address is not None
        address = [self.address] if skips and isinstance(self.address, str) else self.address
        return Client(address, timeout=self.timeout)

    def create_run(self, client: Client, vocabulary_size: int, incarnation: int = 0, **others: Any) -> Run:
        """Creates the run, or returns the one that is there.

        Args:
            client: Client of the servers.
            vocabulary_size: Number of tokens of the model's head.
            incarnation: The run's incarnation; 0: the one that is there.
            others: Further arguments of `sis.Client.create_run`; they replace those of these settings.

        Returns:
            The run.

        Raises:
            sis.Error: The server refuses the run or is unreachable.
        """
        assert self.run is not None
        own = {name: getattr(self, name) for name in _OF_RUN}
        own.update(seed=self.seed or 0, vocabulary_size=vocabulary_size, incarnation=incarnation)
        return client.create_run(self.run, **{**own, **others})


def vocabulary_size(hf_config: Any) -> int:
    """Returns the number of tokens of the head of a model with this configuration of transformers."""
    return int((hf_config.get_text_config() if hasattr(hf_config, "get_text_config") else hf_config).vocab_size)
