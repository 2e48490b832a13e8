"""Base algorithms on modified ratios. docs/algorithms.md has formulas, ranges and defaults."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Optional

from sis.v1 import ratio_service_pb2 as pb


class Algorithm:
    """Base class of the algorithms. Each is a dataclass with the fields of the message of its name."""

    def to_proto(self) -> pb.Algorithm:
        algorithm = pb.Algorithm()
        # DppoTopK is in the field dppo_top_k.
        chosen = getattr(algorithm, re.sub("(?<=[a-z])(?=[A-Z])", "_", type(self).__name__).lower())
        chosen.SetInParent()
        chosen.MergeFrom(type(chosen)(**vars(self)))
        return algorithm


@dataclass(frozen=True)
class ImportanceSampling(Algorithm):
    """g(w) = w."""


@dataclass(frozen=True)
class NoCorrection(Algorithm):
    """g(w) = 1."""


@dataclass(frozen=True)
class Grpo(Algorithm):
    """PPO's clip with one bound."""

    epsilon: Optional[float] = None


@dataclass(frozen=True)
class Dapo(Algorithm):
    """PPO's clip with two bounds."""

    epsilon_low: Optional[float] = None
    epsilon_high: Optional[float] = None


@dataclass(frozen=True)
class Gspo(Algorithm):
    """One clipped ratio per sequence."""

    epsilon_low: Optional[float] = None
    epsilon_high: Optional[float] = None


@dataclass(frozen=True)
class Cispo(Algorithm):
    """The ratio with an upper limit, as a constant weight of log p."""

    epsilon_high: Optional[float] = None


@dataclass(frozen=True)
class DppoTopK(Algorithm):
    """A trust region in total variation over the recorded set. Needs evaluate, and two policies."""

    threshold: Optional[float] = None


@dataclass(frozen=True)
class DppoBinary(Algorithm):
    """A trust region in abs(p(y) - q(y))."""

    threshold: Optional[float] = None


@dataclass(frozen=True)
class ClipCov(Algorithm):
    """Drops a few of the tokens whose log-prob and advantage covary most. Needs advantages.

    It chooses among all positions of a batch, so clients of several replicas refuse it.
    """

    lower: Optional[float] = None
    upper: Optional[float] = None
    fraction: Optional[float] = None


@dataclass(frozen=True)
class Tis(Algorithm):
    """Truncated importance sampling. The epsilons apply to three policies only."""

    truncation: Optional[float] = None
    epsilon_low: Optional[float] = None
    epsilon_high: Optional[float] = None


@dataclass(frozen=True)
class IcePop(Algorithm):
    """Drops tokens whose ratio is outside [alpha, beta]. The epsilons apply to three policies only."""

    alpha: Optional[float] = None
    beta: Optional[float] = None
    epsilon_low: Optional[float] = None
    epsilon_high: Optional[float] = None


@dataclass(frozen=True)
class SoftAcceptance(Algorithm):
    """Without a clip. A token that has already moved in the direction of its advantage is weighted by its acceptance
    probability. Needs advantages."""


@dataclass(frozen=True)
class DampedTruncation(Algorithm):
    """Without a clip or a draw: the importance ratio, truncated at 1. The ratio of a token that has already moved in
    the direction of its advantage is multiplied by its acceptance probability. Needs advantages."""
