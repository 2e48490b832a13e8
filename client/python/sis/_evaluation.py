"""Results of evaluate."""

from __future__ import annotations

import enum
import math
import operator
from dataclasses import dataclass, field
from typing import Dict, Iterable, List, Mapping, Optional, Sequence, Tuple

import numpy as np

from sis import _corrections
from sis._ages import AgeTotals
from sis._corrections import CorrectionTotals, Distributions
from sis._evaluate.micro_batches import MicroBatch
from sis._options import LogRatioSum
from sis._records import MissingRange, MissingReason
from sis._totals import Scored, per_scored
from sis.v1 import ratio_service_pb2 as pb
from sis._wire.messages import read
from sis._wire.sums import merged, summed


class Decision(enum.IntEnum):
    """Values of Evaluation.decisions.

    Attributes:
        ACCEPTED: Distributed as if the current policy had sampled it: modified ratio 1.
        REJECTED: Keeps its importance ratio.
        OUTSIDE_TOP_K: Not in V_k: never accepted, keeps its importance ratio.
        MISSING: Without a record: use the trainer's own ratio.
        MASKED: Excluded by the mask.
    """

    ACCEPTED = pb.DECISION_ACCEPTED
    REJECTED = pb.DECISION_REJECTED
    OUTSIDE_TOP_K = pb.DECISION_OUTSIDE_TOP_K
    MISSING = pb.DECISION_MISSING
    MASKED = pb.DECISION_MASKED


@dataclass(frozen=True)
class Totals(Scored):
    """Sums over scored positions: those that are accepted, rejected or outside V_k.

    Rates and means are per scored position; NaN without scored positions.

    Attributes:
        accepted: Accepted positions.
        rejected: Rejected positions.
        outside_top_k: Positions whose token is not in V_k.
        missing: Positions without a record.
        envelope_violations: Scored positions whose log importance ratio exceeds the log-envelope although the token is
            in V_k.
        d: Sum of D = |log p(y) - log q(y)|, nats.
        d_sis: Sum of D_SIS, nats: D of positions that are not accepted.
        log_envelope: Sum of the log-envelopes, nats.
        residual_mass: Sum of the residual masses.
        acceptance_probability: Sum of the acceptance probabilities a; 0 outside V_k.
        expected_acceptance: Sum of (1 - residual mass) / envelope, the mean accept rate over the behaviour policy's
            draws.
        k3: Sum of w - 1 - log w at the sampled tokens, nats: the k3 estimator of KL(behaviour || current).
        total_variation: Sum of the policies' total variation on V_k; 0 unless requested.
        masked: Masked positions.
        seen: Scored and missing positions.
        missing_share: Share of the seen positions that are missing.
        accept_rate: Share of scored positions that were accepted.
        mean_d: Mean of D, nats.
        mean_d_sis: Mean of D_SIS, nats.
        mean_log_envelope: Mean of the log-envelopes, nats.
        mean_residual_mass: Mean of the residual masses.
        mean_acceptance_probability: The mean of a, 0 outside V_k: the accept rate without the noise of the draw.
        mean_expected_acceptance: The mean of (1 - residual mass) / envelope: the accept rate without the noise of the
            sampled tokens.
        mean_k3: An estimate of KL(behaviour || current) per position, nats.
        mean_total_variation: Mean of the policies' total variation on V_k.
    """

    accepted: int = 0
    rejected: int = 0
    outside_top_k: int = 0
    missing: int = 0
    envelope_violations: int = 0
    d: float = 0.0
    d_sis: float = 0.0
    log_envelope: float = 0.0
    residual_mass: float = 0.0
    acceptance_probability: float = 0.0
    expected_acceptance: float = 0.0
    k3: float = 0.0
    total_variation: float = 0.0
    masked: int = 0

    def __add__(self, other: Totals) -> Totals:
        return Totals(*map(operator.add, vars(self).values(), vars(other).values()))

    @property
    def seen(self) -> int:
        """Scored and missing positions."""
        return self.scored + self.missing

    @property
    def missing_share(self) -> float:
        """Share of the seen positions that are missing; NaN without any."""
        return self.missing / self.seen if self.seen else math.nan

    mean_log_envelope = per_scored("log_envelope")
    mean_residual_mass = per_scored("residual_mass")
    mean_acceptance_probability = per_scored("acceptance_probability")
    mean_expected_acceptance = per_scored("expected_acceptance")
    mean_k3 = per_scored("k3")
    mean_total_variation = per_scored("total_variation")


@dataclass(frozen=True)
class PrefixPoint:
    """Sums of Totals as if only the top_k most probable slots were used.

    Attributes:
        top_k: k, the slots that are used.
        residual_mass: Sum of the residual masses.
        expected_acceptance: Sum of (1 - residual mass) / envelope.
        positions: Scored positions, over which the sums are.
    """

    top_k: int
    residual_mass: float
    expected_acceptance: float
    positions: int


@dataclass(frozen=True)
class Step:
    """The totals of one draw over all evaluations of all ranks. Each position counts once.

    Attributes:
        totals: Sums over the positions.
        sequences: Different (sequence, attempt) with at least one position counted.
        distributions: None unless list_steps requested it for this draw.
        ages: By age in policy versions, ascending; only classes with positions. Records ahead of the current version
            are last.
        corrections: "plain", "clipped" and "applied", then what evaluations of this draw observed, by name.
        missing: totals.missing by reason, without zeros.
        prefix_curve: One point for each k that evaluations of this draw requested, ascending; each over the positions
            of the evaluations that requested it.
        uncounted_positions: Positions that the totals omit, because the server had no memory for them. Each evaluation
            of a position counts.
        uncounted_prefix_positions: Positions that points of the prefix curve omit, for each point.
        uncounted_correction_positions: Positions that observed corrections omit, for each correction.
        begun_at: Time of the first evaluation, in seconds since 1970-01-01 00:00 UTC.
        ended_at: Time of the last evaluation, in seconds since 1970-01-01 00:00 UTC.
        unanswered: See Runs.unanswered.
    """

    totals: Totals
    sequences: int
    distributions: Optional[Distributions] = None
    ages: Tuple[AgeTotals, ...] = ()
    corrections: Mapping[str, CorrectionTotals] = field(default_factory=dict)
    missing: Mapping[MissingReason, int] = field(default_factory=dict)
    prefix_curve: Tuple[PrefixPoint, ...] = ()
    uncounted_positions: int = 0
    uncounted_prefix_positions: int = 0
    uncounted_correction_positions: int = 0
    begun_at: float = 0.0
    ended_at: float = 0.0
    unanswered: Tuple[int, ...] = ()

    @staticmethod
    def from_proto(response: pb.GetStepResponse) -> Step:
        return read(
            Step,
            response,
            corrections=_corrections.from_proto(response.corrections),
            missing={MissingReason(part.reason): part.positions for part in response.missing},
        )


class Steps(Dict[int, Step]):
    """Steps by draw. The draw that began last is last."""

    def __init__(self, steps: Mapping[int, Step], unanswered: Iterable[int] = ()) -> None:
        """Makes the steps.

        Args:
            steps: By draw; the step that began last is last.
            unanswered: As in Runs.
        """
        super().__init__(steps)
        # See Runs.unanswered.
        self.unanswered: Tuple[int, ...] = tuple(unanswered)


# The arrays of an Evaluation, by name, with their types in messages; None for bits.
OUTPUTS = {
    "accepted": pb.OUTPUT_ACCEPT_BITS,
    "decisions": pb.OUTPUT_DECISIONS,
    "ratios": pb.OUTPUT_RATIOS,
    "log_ratios": pb.OUTPUT_LOG_RATIOS,
    "acceptance_probabilities": pb.OUTPUT_ACCEPTANCE_PROBABILITIES,
    "surrogates": pb.OUTPUT_SURROGATES,
    "coefficients": pb.OUTPUT_COEFFICIENTS,
}
_DTYPES = {name: np.dtype("u1" if name == "decisions" else "<f4") for name in OUTPUTS if name != "accepted"}


@dataclass(frozen=True, eq=False)
class Evaluation:
    """The result over N evaluated positions, slice by slice. Outputs that were not requested are None.

    Attributes:
        accepted: bool [N]: decision is ACCEPTED.
        decisions: uint8 [N], see Decision.
        ratios: float32 [N]: the modified ratio, 1 if accepted, otherwise p(y)/q(y).
        log_ratios: float32 [N], nats: the logarithm of `ratios`; -inf for 0.
        acceptance_probabilities: float32 [N]: the acceptance probability; 0 outside V_k, missing or masked.
        surrogates: float32 [N]: g, which replaces the ratio in the algorithm's formula; 0 where masked.
        coefficients: float32 [N]: c; the gradient of a position's objective is c * advantage * grad log p(y). 0 where
            masked. With weight "expected" the same formula is used at the mean ratio. Its dependence on p through the
            acceptance probability is ignored, so it is not a derivative.
        totals: Sums over all positions.
        slice_totals: One per slice, in order.
        prefix_curve: One per requested k, over all N positions.
        missing: Ranges without a record.
        newly_counted: Positions of this draw that no call had counted before.
        log_ratio_sums: With Gspo, one per slice: its addend of the sequence's sum. Otherwise empty.
        corrections: With EvaluateOptions.observe: "plain", "clipped", "applied" and the observed corrections, by name.
            Otherwise empty.
    """

    accepted: np.ndarray
    decisions: Optional[np.ndarray]
    ratios: Optional[np.ndarray]
    log_ratios: Optional[np.ndarray]
    acceptance_probabilities: Optional[np.ndarray]
    surrogates: Optional[np.ndarray]
    coefficients: Optional[np.ndarray]
    totals: Totals
    slice_totals: Tuple[Totals, ...]
    prefix_curve: Tuple[PrefixPoint, ...]
    missing: Tuple[MissingRange, ...]
    newly_counted: int
    log_ratio_sums: Tuple[LogRatioSum, ...]
    corrections: Mapping[str, CorrectionTotals] = field(default_factory=dict)

    @staticmethod
    def from_proto(
        answers: Sequence[Tuple[MicroBatch, pb.EvaluateResponse]],
        slices: int,
        positions: int,
        outputs: Iterable[str] = (),
        *,
        log_ratio_sums: bool = False,
    ) -> Evaluation:
        """Returns the evaluation of a batch with this number of slices and positions, from the answers to its
        parts. `outputs`: requested in addition to "accepted". log_ratio_sums: True if the answers have them."""
        accepted = np.zeros(positions, np.uint8)
        arrays = {name: np.zeros(positions, _DTYPES[name].newbyteorder("=")) for name in _DTYPES if name in outputs}
        missing: List[MissingRange] = []
        slice_totals = [Totals()] * slices
        log_sums = [LogRatioSum(0, 0)] * slices
        for batch, response in answers:
            bits = np.frombuffer(response.accept_bits, np.uint8)
            accepted[batch.rows] = np.unpackbits(bits, count=batch.length, bitorder="little")
            for name, values in arrays.items():
                values[batch.rows] = np.frombuffer(getattr(response, name), _DTYPES[name])
            missing += [read(MissingRange, part, slice=batch.numbers[part.slice]) for part in response.missing]
            for number, totals in zip(batch.numbers, response.slice_totals):
                slice_totals[number] = read(Totals, totals)
            for number, total in zip(batch.numbers, response.log_ratio_sums):
                log_sums[number] = read(LogRatioSum, total)
        responses = [response for _, response in answers]
        curve = merged(response.prefix_curve for response in responses)
        return Evaluation(
            accepted=accepted.view(bool),
            **{name: arrays.get(name) for name in _DTYPES},
            totals=read(Totals, summed([response.totals for response in responses])),
            slice_totals=tuple(slice_totals),
            prefix_curve=tuple(read(PrefixPoint, point) for point in curve),
            missing=tuple(sorted(missing)),
            newly_counted=sum(response.newly_counted for response in responses),
            log_ratio_sums=tuple(log_sums) if log_ratio_sums else (),
            corrections=_corrections.from_proto(merged(response.corrections for response in responses)),
        )
