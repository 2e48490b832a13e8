"""What a user of the trainer may choose."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional, Sequence, Union

from sis.run import check_id
from sis.token_weights import TokenWeights, check_sets


@dataclass
class SisConfig:
    """All of it has defaults: `SisConfig()` starts a server of its own on this machine."""

    # host:port of a server, or the list of all replicas. None: the main process starts a server,
    # which ends with it.
    address: Union[None, str, Sequence[str]] = None
    # K, the most probable tokens that are recorded of every position.
    top_k: int = 20
    # "sampled": an accepted token weighs 1, any other its importance ratio w. "expected": every token
    # weighs a + (1 - a) w, where a is its acceptance probability.
    weight: str = "sampled"
    # Multiplies the weight of tokens that have already moved the way their advantage pushes by a
    # (docs/algorithms.md), in the place of the loss's clip.
    soft_acceptance: bool = False
    # Every token weighs min(w, 1), times a if it has already moved the way its advantage pushes
    # (docs/algorithms.md), in the place of the loss's clip. Nothing is drawn. "without_sets": times
    # min(w, 1/w) instead, of the sampled token alone.
    damped_truncation: Union[bool, str] = False
    # Keys the draws. None: that of the training arguments.
    seed: Optional[int] = None
    # The name of the run on the server. A run that is there is begun anew, as another incarnation.
    # None: a name of its own. Of [A-Za-z0-9._-].
    run: Optional[str] = None
    # Seconds that the records of a rollout are kept after their last use at least, unless they are
    # released. At most 3600.
    keep_seconds: float = 3600.0
    # Where a set's probabilities reach this sum it ends, before top_k; 0: at top_k. Of no effect with
    # top_p, top_k or min_p, which need whole sets.
    mass: float = 0.0
    # Every so many optimiser steps the trackers of report_to get a table of the tokens that are accepted
    # and rejected most; 0: never.
    token_table_steps: int = 0
    # Whose K most probable tokens are recorded, and whose log-probs ratios are to: "engine", or "trainer", the
    # trained model's own before the first update on a rollout. That takes TRL's forward pass for old log-probs
    # and nothing but tokens of the engine, whose mismatch is then left to TRL's own correction, or none.
    sets: str = "engine"

    def __post_init__(self) -> None:
        TokenWeights.of(self)
        check_sets(self.sets)
        if self.top_k < 1:
            raise ValueError(f"top_k is {self.top_k}, must be at least 1")
        if self.run is not None:
            check_id(self.run)
