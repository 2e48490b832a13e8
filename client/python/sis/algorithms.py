"""Base algorithms on the modified ratios; docs/algorithms.md has formulas, ranges and what is taken
where unset."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Optional, Union

from sis.v1 import ratio_service_pb2 as pb


@dataclass(frozen=True)
class ImportanceSampling:
    """g(w) = w."""


@dataclass(frozen=True)
class NoCorrection:
    """g(w) = 1."""


@dataclass(frozen=True)
class Grpo:
    """PPO's clip with one bound."""

    epsilon: Optional[float] = None


@dataclass(frozen=True)
class Dapo:
    """PPO's clip with two bounds."""

    epsilon_low: Optional[float] = None
    epsilon_high: Optional[float] = None


@dataclass(frozen=True)
class Gspo:
    """One clipped ratio per sequence."""

    epsilon_low: Optional[float] = None
    epsilon_high: Optional[float] = None


@dataclass(frozen=True)
class Cispo:
    """The ratio, limited from above, as a constant weight of log p."""

    epsilon_high: Optional[float] = None


@dataclass(frozen=True)
class DppoTopK:
    """A trust region in total variation over the recorded set. Needs evaluate or evaluate_logits,
    and two policies."""

    threshold: Optional[float] = None


@dataclass(frozen=True)
class DppoBinary:
    """A trust region in abs(p(y) - q(y))."""

    threshold: Optional[float] = None


@dataclass(frozen=True)
class ClipCov:
    """Drops a few of the tokens whose log-prob and advantage covary most. Needs advantages.

    It chooses among all positions of a batch, so a client of several replicas refuses it.
    """

    lower: Optional[float] = None
    upper: Optional[float] = None
    fraction: Optional[float] = None


@dataclass(frozen=True)
class Tis:
    """Truncated importance sampling. The epsilons count with three policies only."""

    truncation: Optional[float] = None
    epsilon_low: Optional[float] = None
    epsilon_high: Optional[float] = None


@dataclass(frozen=True)
class IcePop:
    """Leaves out tokens whose ratio lies outside [alpha, beta]. The epsilons count with three
    policies only."""

    alpha: Optional[float] = None
    beta: Optional[float] = None
    epsilon_low: Optional[float] = None
    epsilon_high: Optional[float] = None


@dataclass(frozen=True)
class SoftAcceptance:
    """No clip: a token that has already moved the way its advantage pushes is weighed with its
    acceptance probability. Needs advantages."""


Algorithm = Union[
    ImportanceSampling,
    NoCorrection,
    Grpo,
    Dapo,
    Gspo,
    Cispo,
    DppoTopK,
    DppoBinary,
    ClipCov,
    Tis,
    IcePop,
    SoftAcceptance,
]

_FIELDS = {
    ImportanceSampling: ("importance_sampling", pb.Algorithm.ImportanceSampling),
    NoCorrection: ("no_correction", pb.Algorithm.NoCorrection),
    Grpo: ("grpo", pb.Algorithm.Grpo),
    Dapo: ("dapo", pb.Algorithm.Dapo),
    Gspo: ("gspo", pb.Algorithm.Gspo),
    Cispo: ("cispo", pb.Algorithm.Cispo),
    DppoTopK: ("dppo_top_k", pb.Algorithm.Dppo),
    DppoBinary: ("dppo_binary", pb.Algorithm.Dppo),
    ClipCov: ("clip_cov", pb.Algorithm.ClipCov),
    Tis: ("tis", pb.Algorithm.Tis),
    IcePop: ("ice_pop", pb.Algorithm.IcePop),
    SoftAcceptance: ("soft_acceptance", pb.Algorithm.SoftAcceptance),
}


def to_proto(algorithm: Algorithm) -> pb.Algorithm:
    field, message = _FIELDS[type(algorithm)]
    return pb.Algorithm(**{field: message(**asdict(algorithm))})
