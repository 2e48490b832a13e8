"""Base algorithms on modified ratios. docs/algorithms.md has formulas, ranges and defaults."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Optional

from sis.v1 import ratio_service_pb2 as pb

# The names of the package sis that this module defines.
__all__ = [
    "Cispo", "ClipCov", "DampedTruncation", "Dapo", "DppoBinary", "DppoTopK", "Grpo", "Gspo", "IcePop",
    "ImportanceSampling", "NoCorrection", "SoftAcceptance", "Tis",
]  # fmt: skip


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
    """PPO's clip with one bound.

    Attributes:
        epsilon: Clips the ratio to [1 - epsilon, 1 + epsilon].
    """

    epsilon: Optional[float] = None


@dataclass(frozen=True)
class Dapo(Algorithm):
    """PPO's clip with two bounds.

    Attributes:
        epsilon_low: The ratio is clipped at 1 - epsilon_low.
        epsilon_high: The ratio is clipped at 1 + epsilon_high.
    """

    epsilon_low: Optional[float] = None
    epsilon_high: Optional[float] = None


@dataclass(frozen=True)
class Gspo(Algorithm):
    """One clipped ratio per sequence.

    Attributes:
        epsilon_low: The ratio is clipped at 1 - epsilon_low.
        epsilon_high: The ratio is clipped at 1 + epsilon_high.
    """

    epsilon_low: Optional[float] = None
    epsilon_high: Optional[float] = None


@dataclass(frozen=True)
class Cispo(Algorithm):
    """The ratio with an upper limit, as a constant weight of log p.

    Attributes:
        epsilon_high: The weight is at most 1 + epsilon_high.
    """

    epsilon_high: Optional[float] = None


@dataclass(frozen=True)
class DppoTopK(Algorithm):
    """A trust region in total variation over the recorded set. Needs evaluate, and two policies.

    Attributes:
        threshold: Largest divergence at which an outward gradient counts.
    """

    threshold: Optional[float] = None


@dataclass(frozen=True)
class DppoBinary(Algorithm):
    """A trust region in abs(p(y) - q(y)).

    Attributes:
        threshold: Largest divergence at which an outward gradient counts.
    """

    threshold: Optional[float] = None


@dataclass(frozen=True)
class ClipCov(Algorithm):
    """Drops a few of the tokens whose log-prob and advantage covary most. Needs advantages.

    It chooses among all positions of a batch, so clients of several replicas refuse it.

    Attributes:
        lower: Smallest covariance of a token that may be chosen.
        upper: Largest covariance of a token that may be chosen.
        fraction: Share of the positions whose gradient is left out.
    """

    lower: Optional[float] = None
    upper: Optional[float] = None
    fraction: Optional[float] = None


@dataclass(frozen=True)
class Tis(Algorithm):
    """Truncated importance sampling. The epsilons apply to three policies only.

    Attributes:
        truncation: Largest weight.
        epsilon_low: The ratio is clipped at 1 - epsilon_low.
        epsilon_high: The ratio is clipped at 1 + epsilon_high.
    """

    truncation: Optional[float] = None
    epsilon_low: Optional[float] = None
    epsilon_high: Optional[float] = None


@dataclass(frozen=True)
class IcePop(Algorithm):
    """Drops tokens whose ratio is outside [alpha, beta]. The epsilons apply to three policies only.

    Attributes:
        alpha: Smallest weight that counts.
        beta: Largest weight that counts.
        epsilon_low: The ratio is clipped at 1 - epsilon_low.
        epsilon_high: The ratio is clipped at 1 + epsilon_high.
    """

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
