"""Observed corrections beside the applied one, and their totals."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Dict, Iterable, List, Mapping, Union

from sis._algorithms import Algorithm, Tis
from sis._totals import Weighed
from sis.v1 import ratio_service_pb2 as pb
from sis._wire.messages import read

WEIGHTS = {"sampled": pb.WEIGHT_SAMPLED, "expected": pb.WEIGHT_EXPECTED}
_SEQUENCE_WEIGHTS = {
    "ratio": pb.ObservedCorrection.SEQUENCE_WEIGHT_RATIO,
    "one": pb.ObservedCorrection.SEQUENCE_WEIGHT_ONE,
    "product": pb.ObservedCorrection.SEQUENCE_WEIGHT_PRODUCT,
}


@dataclass(frozen=True)
class Sis:
    """The modified ratio with another k (0: the request's) or another weight, "sampled" or
    "expected". A k below the request's needs evaluate.

    Attributes:
        top_k: k; 0: the request's.
        weight: "sampled" or "expected".
    """

    top_k: int = 0
    weight: str = "sampled"


@dataclass(frozen=True)
class SequenceMask:
    """0 at every position of a slice unless the slice's geometric mean of w lies in [lower, upper].

    Attributes:
        lower: Smallest geometric mean of w in a slice that counts.
        upper: Largest geometric mean of w in a slice that counts.
        weight: Weight of the positions of such a slice: "ratio" (w), "one", or "product", the product of w over the
            slice, which then is limited instead of the mean.
    """

    lower: float
    upper: float
    weight: str = "ratio"


@dataclass(frozen=True)
class TokenMask:
    """w, or 0 where abs(p(y) - q(y)) is above max_distance.

    Attributes:
        max_distance: Largest distance that counts, in [0, 1].
    """

    max_distance: float


# An Algorithm is observed on the unmodified ratio. Gspo takes each slice for a whole sequence, DppoTopK
# needs log-probs at every slot, and ClipCov can't be: what it drops depends on all tokens of a batch.
Correction = Union[Sis, SequenceMask, TokenMask, Algorithm]

# Corrections that frameworks offer, with their defaults, by name; docs/algorithms.md has formulas and sources.
PRESETS: Dict[str, Correction] = {
    "tis": Tis(truncation=2.0),
    "trl": SequenceMask(0.0, 3.0, "product"),
    "nemo_rl": SequenceMask(0.999, 1.002),
    "skyrl": SequenceMask(0.99, 1.01, "one"),
    "prime_rl": TokenMask(0.1),
    "verl_geo_rs": SequenceMask(0.999, 1.001, "one"),
    "verl_seq_is_rs": SequenceMask(0.5, 2.0, "product"),
}


@dataclass(frozen=True)
class CorrectionTotals(Weighed):
    """Totals of one correction. Its weight at a position is the factor of
    advantage * grad log p(y).

    Attributes:
        positions: Scored positions.
        touched: Scored positions with a weight other than w.
        zeroed: Scored positions with weight 0.
        weight: Sum of the weights.
        weight_squared: Sum of their squares.
        abs_log_weight: Sum of abs(log weight) where the weight is not 0, nats.
        gradient_mass: Sum of abs(weight * advantage); 0 without advantages.
    """

    positions: int = 0
    touched: int = 0
    zeroed: int = 0
    weight: float = 0.0
    weight_squared: float = 0.0
    abs_log_weight: float = 0.0
    gradient_mass: float = 0.0


@dataclass(frozen=True)
class Histogram:
    """Positions by value: counts[i] is of values at most upper_bounds[i], and above the bound
    before it; the last count has no bound.

    Attributes:
        upper_bounds: Upper bounds of all counts but the last, ascending.
        counts: Positions, one more than the bounds.
    """

    upper_bounds: List[float]
    counts: List[int]


@dataclass(frozen=True)
class Distributions:
    """Distributions over scored positions.

    Attributes:
        abs_log_ratio: abs(log w), nats.
        log_envelope: Log-envelopes, nats.
        residual_mass: Residual masses.
        acceptance_probability: Acceptance probabilities.
        ratios_beyond: By bound: positions with w below it (bounds under 1) or above it.
    """

    abs_log_ratio: Histogram
    log_envelope: Histogram
    residual_mass: Histogram
    acceptance_probability: Histogram
    ratios_beyond: Dict[float, int]

    @staticmethod
    def from_proto(distributions: pb.Distributions) -> Distributions:
        return read(
            Distributions,
            distributions,
            ratios_beyond={beyond.bound: beyond.positions for beyond in distributions.ratios_beyond},
        )


def to_proto(observe: Mapping[str, Correction]) -> List[pb.ObservedCorrection]:
    """ValueError if a weight is unknown."""
    return [_message(name, correction) for name, correction in observe.items()]


# By kind: the field of ObservedCorrection, and the values of `weight` by name.
_FIELDS = {Sis: ("sis", WEIGHTS), SequenceMask: ("sequence_mask", _SEQUENCE_WEIGHTS), TokenMask: ("token_mask", {})}


def _message(name: str, correction: Correction) -> pb.ObservedCorrection:
    if isinstance(correction, Algorithm):
        return pb.ObservedCorrection(name=name, algorithm=correction.to_proto())
    field, weights = _FIELDS[type(correction)]
    values = dict(vars(correction))
    if weights:
        if values["weight"] not in weights:
            raise ValueError(f"observe[{name!r}].weight {values['weight']!r} must be one of {', '.join(weights)}")
        values["weight"] = weights[values["weight"]]
    return pb.ObservedCorrection(name=name, **{field: values})


def from_proto(corrections: Iterable[pb.CorrectionTotals]) -> Dict[str, CorrectionTotals]:
    return {totals.correction: read(CorrectionTotals, totals) for totals in corrections}
