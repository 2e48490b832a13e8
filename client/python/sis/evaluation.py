"""What the service answers to the current policy's values."""

from __future__ import annotations

import enum
import functools
from dataclasses import dataclass, field, fields
from typing import Dict, Iterable, Mapping, Optional, Sequence, Tuple

import numpy as np

from sis import corrections
from sis.corrections import CorrectionTotals, Distributions
from sis.options import LogRatioSum
from sis.records import MissingRange, MissingReason
from sis.v1 import ratio_service_pb2 as pb


class Decision(enum.IntEnum):
    """Values of Evaluation.decisions."""

    # Distributed as if the current policy had sampled it: modified ratio 1.
    ACCEPTED = pb.ACCEPTED
    # Keeps its importance ratio.
    REJECTED = pb.REJECTED
    # Not in V_k: never accepted, keeps its importance ratio.
    OUTSIDE_TOP_K = pb.OUTSIDE_TOP_K
    # No record: use the trainer's own ratio.
    MISSING = pb.MISSING
    # The policy did not generate it.
    MASKED = pb.MASKED


@dataclass(frozen=True)
class Totals:
    """Sums over positions. "Scored" is accepted, rejected or outside V_k; only scored positions
    enter the sums.

    The rates and means are per scored position, and NaN if there is none.
    """

    accepted: int = 0
    rejected: int = 0
    outside_top_k: int = 0
    missing: int = 0
    # Scored positions whose log importance ratio lies above the log-envelope although the token is
    # in V_k.
    envelope_violations: int = 0
    # D and D_SIS, nats.
    d: float = 0.0
    d_sis: float = 0.0
    # Sum of the log-envelopes, nats.
    log_envelope: float = 0.0
    residual_mass: float = 0.0
    acceptance_probability: float = 0.0
    # Sum of (1 - residual mass) / envelope: what the accept rate is on average over the behaviour
    # policy's draws.
    expected_acceptance: float = 0.0
    # Sum of w - 1 - log w at the sampled tokens, nats: the k3 estimator of KL(behaviour ||
    # current).
    k3: float = 0.0
    # Sum of the policies' total variation on V_k; 0 where it was not asked for.
    total_variation: float = 0.0
    # Positions that the mask leaves out.
    masked: int = 0

    @staticmethod
    def from_proto(totals: pb.Totals) -> Totals:
        return Totals(**{entry.name: getattr(totals, entry.name) for entry in fields(Totals)})

    def __add__(self, other: Totals) -> Totals:
        return Totals(*(getattr(self, entry.name) + getattr(other, entry.name) for entry in fields(Totals)))

    def _mean(self, total: float) -> float:
        return total / self.scored if self.scored else float("nan")

    @property
    def scored(self) -> int:
        return self.accepted + self.rejected + self.outside_top_k

    @property
    def accept_rate(self) -> float:
        return self._mean(self.accepted)

    @property
    def mean_d(self) -> float:
        """D per scored position, nats."""
        return self._mean(self.d)

    @property
    def mean_d_sis(self) -> float:
        """D_SIS per scored position, nats."""
        return self._mean(self.d_sis)

    @property
    def mean_log_envelope(self) -> float:
        """Nats."""
        return self._mean(self.log_envelope)

    @property
    def mean_residual_mass(self) -> float:
        return self._mean(self.residual_mass)

    @property
    def mean_acceptance_probability(self) -> float:
        """The mean of a, 0 outside V_k: the accept rate without the noise of the draw."""
        return self._mean(self.acceptance_probability)

    @property
    def mean_expected_acceptance(self) -> float:
        """The mean of (1 - residual mass) / envelope: the accept rate without the noise of the
        sampled tokens."""
        return self._mean(self.expected_acceptance)

    @property
    def mean_k3(self) -> float:
        """An estimate of KL(behaviour || current) per position, nats."""
        return self._mean(self.k3)

    @property
    def mean_total_variation(self) -> float:
        return self._mean(self.total_variation)


@dataclass(frozen=True)
class PrefixPoint:
    """What Totals would hold if only the top_k most probable slots were used."""

    top_k: int
    residual_mass: float
    expected_acceptance: float
    # Scored positions: those that the sums are over.
    positions: int

    @staticmethod
    def from_proto(point: pb.PrefixPoint) -> PrefixPoint:
        return PrefixPoint(**{entry.name: getattr(point, entry.name) for entry in fields(PrefixPoint)})

    def __add__(self, other: PrefixPoint) -> PrefixPoint:
        return PrefixPoint(
            self.top_k,
            self.residual_mass + other.residual_mass,
            self.expected_acceptance + other.expected_acceptance,
            self.positions + other.positions,
        )


@dataclass(frozen=True)
class Step:
    """The totals of one draw over everything that was evaluated, by any rank, each position
    once."""

    totals: Totals
    # Different (sequence, attempt) with at least one position counted.
    sequences: int
    # None from a server that does not tell.
    distributions: Optional[Distributions] = None
    # "plain", "clipped" and "applied", then what evaluations of this draw observed, by name.
    corrections: Mapping[str, CorrectionTotals] = field(default_factory=dict)
    # totals.missing by reason; those that occur.
    missing: Mapping[MissingReason, int] = field(default_factory=dict)
    # One point for each k that evaluations of this draw asked for, rising; each over the positions
    # of those that did.
    prefix_curve: Tuple[PrefixPoint, ...] = ()
    # Positions that are in none of this, as the server's totals of steps had no room for them, each
    # time that they were evaluated; those missing from points of the prefix curve, once for each
    # point, and from observed corrections, once for each.
    uncounted_positions: int = 0
    uncounted_prefix_positions: int = 0
    uncounted_correction_positions: int = 0
    # As of Runs.
    unanswered: Tuple[int, ...] = ()

    @staticmethod
    def from_proto(response: pb.GetStepResponse) -> Step:
        return Step(
            Totals.from_proto(response.totals),
            response.sequences,
            Distributions.from_proto(response.distributions) if response.HasField("distributions") else None,
            corrections.from_proto(response.corrections),
            {MissingReason(part.reason): part.positions for part in response.missing},
            tuple(map(PrefixPoint.from_proto, response.prefix_curve)),
            response.uncounted_positions,
            response.uncounted_prefix_positions,
            response.uncounted_correction_positions,
            tuple(response.unanswered),
        )


class Steps(Dict[int, Step]):
    """By draw. The one that was evaluated last is last."""

    def __init__(self, steps: Mapping[int, Step], unanswered: Iterable[int] = ()) -> None:
        super().__init__(steps)
        # As of Runs.
        self.unanswered: Tuple[int, ...] = tuple(unanswered)


# The arrays of an Evaluation as they travel, but for `accepted`, which travels as bits.
_DTYPES = {
    "decisions": np.dtype("u1"),
    **dict.fromkeys(
        ("ratios", "log_ratios", "acceptance_probabilities", "surrogates", "coefficients"), np.dtype("<f4")
    ),
}


@dataclass(frozen=True, eq=False)
class Evaluation:
    """Over the N positions that were evaluated, slice by slice. Outputs that were not asked for are
    None."""

    # bool [N]: decision is ACCEPTED.
    accepted: np.ndarray
    # uint8 [N], see Decision.
    decisions: Optional[np.ndarray]
    # float32 [N]: the modified ratio, 1 if accepted, else p(y)/q(y).
    ratios: Optional[np.ndarray]
    # float32 [N], nats: its logarithm.
    log_ratios: Optional[np.ndarray]
    # float32 [N]: the probability that the draw accepts; 0 outside V_k, missing or masked.
    acceptance_probabilities: Optional[np.ndarray]
    # float32 [N]: what stands in the ratio's place in the algorithm's formula; 0 where masked.
    surrogates: Optional[np.ndarray]
    # float32 [N]: c; the gradient of a position's objective is c * advantage * grad log p(y). 0
    # where masked. With weight "expected" it is the same formula at the mean ratio, whose own
    # dependence on p through the acceptance probability is left out: no derivative.
    coefficients: Optional[np.ndarray]
    totals: Totals
    # One per slice, in order.
    slice_totals: Tuple[Totals, ...]
    # One per k that was asked for, over all N positions.
    prefix_curve: Tuple[PrefixPoint, ...]
    missing: Tuple[MissingRange, ...]
    # Positions of this draw that no call had counted before.
    newly_counted: int
    # With Gspo, one per slice: what it adds to its sequence. Else empty.
    log_ratio_sums: Tuple[LogRatioSum, ...]
    # With EvaluateOptions.observe: "plain", "clipped", "applied" and these, by name. Else empty.
    corrections: Mapping[str, CorrectionTotals] = field(default_factory=dict)

    @staticmethod
    def from_proto(response: pb.EvaluateResponse, length: int, lengths: Tuple[int, ...]) -> Evaluation:
        """`length` is N; `lengths` are those of the slices as the caller knows them: empty ones
        were not sent."""

        def array(name: str) -> Optional[np.ndarray]:
            data = getattr(response, name)
            return np.frombuffer(data, _DTYPES[name]).astype(_DTYPES[name].newbyteorder("=")) if data else None

        bits = np.frombuffer(response.accept_bits, np.uint8)
        sent = [index for index, size in enumerate(lengths) if size]
        slice_totals = [Totals()] * len(lengths)
        for index, totals in zip(sent, response.slice_totals):
            slice_totals[index] = Totals.from_proto(totals)
        log_ratio_sums = [LogRatioSum(0, 0)] * len(lengths)
        for index, total in zip(sent, response.log_ratio_sums):
            log_ratio_sums[index] = LogRatioSum(total.log_ratio, total.positions)
        return Evaluation(
            accepted=np.unpackbits(bits, count=length, bitorder="little").view(bool),
            **{name: array(name) for name in _DTYPES},
            totals=Totals.from_proto(response.totals),
            slice_totals=tuple(slice_totals),
            prefix_curve=tuple(map(PrefixPoint.from_proto, response.prefix_curve)),
            missing=tuple(
                MissingRange.from_proto(missing)._replace(slice=sent[missing.slice])
                for missing in response.missing
            ),
            newly_counted=response.newly_counted,
            log_ratio_sums=tuple(log_ratio_sums) if response.log_ratio_sums else (),
            corrections=corrections.from_proto(response.corrections),
        )

    @staticmethod
    def of_nothing(
        slices: int, outputs: Sequence[str], prefix_curve: Sequence[int], log_ratio_sums: bool
    ) -> Evaluation:
        """Of `slices` empty slices, with these outputs."""
        empty = {name: np.empty(0, _DTYPES[name]) for name in outputs if name in _DTYPES}
        return Evaluation(
            accepted=np.empty(0, bool),
            **{**dict.fromkeys(_DTYPES), **empty},
            totals=Totals(),
            slice_totals=(Totals(),) * slices,
            prefix_curve=tuple(PrefixPoint(top_k, 0.0, 0.0, 0) for top_k in prefix_curve),
            missing=(),
            newly_counted=0,
            log_ratio_sums=(LogRatioSum(0, 0),) * slices if log_ratio_sums else (),
        )

    @staticmethod
    def concatenate(parts: Sequence[Evaluation]) -> Evaluation:
        """Of consecutive slices, as if they had been evaluated at once."""

        def joined(name: str) -> Optional[np.ndarray]:
            present = [array for array in (getattr(part, name) for part in parts) if array is not None]
            return np.concatenate(present) if present else None

        curves = [part.prefix_curve for part in parts]
        missing = []
        slices = 0
        for part in parts:
            missing.extend(entry._replace(slice=entry.slice + slices) for entry in part.missing)
            slices += len(part.slice_totals)
        return Evaluation(
            **{name: joined(name) for name in ("accepted", *_DTYPES)},
            totals=sum((part.totals for part in parts), Totals()),
            slice_totals=tuple(totals for part in parts for totals in part.slice_totals),
            prefix_curve=tuple(functools.reduce(PrefixPoint.__add__, points) for points in zip(*curves)),
            missing=tuple(missing),
            newly_counted=sum(part.newly_counted for part in parts),
            log_ratio_sums=tuple(total for part in parts for total in part.log_ratio_sums),
            corrections=corrections.added(part.corrections for part in parts),
        )
