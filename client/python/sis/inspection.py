"""What the service keeps of its last evaluations for a closer look."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Dict, Iterable, List, Tuple

import numpy as np

from sis.evaluation import Totals
from sis.records import SequenceRef
from sis.v1 import ratio_service_pb2 as pb

# As many as a server names.
_DEVIATIONS = 64


@dataclass(frozen=True)
class InspectedSequence:
    """A sequence that Client.inspect_sequence can open."""

    sequence: SequenceRef
    # The draw of the values that are kept.
    draw: int
    # Of those that are kept, as are the totals.
    positions: int
    totals: Totals
    # As in SequenceInspection.
    cut_begin: int
    cut_end: int


@dataclass(frozen=True)
class TokenCounts:
    """How often a token was accepted and rejected in the sequences that are kept. Each count is too
    high by at most max_error."""

    token_id: int
    accepted: int
    rejected: int
    max_error: int


@dataclass(frozen=True)
class Deviation:
    """A position with a large |log w|, nats."""

    sequence: SequenceRef
    position: int
    token_id: int
    draw: int
    log_ratio: float


@dataclass(frozen=True)
class RunInspection:
    """What is worth a closer look in a run."""

    # By id.
    sequences: Tuple[InspectedSequence, ...]
    # By how much more frequent they are among the rejected than among the accepted, most first.
    tokens: Tuple[TokenCounts, ...]
    # Largest |log w| first.
    deviations: Tuple[Deviation, ...]
    # As of Runs.
    unanswered: Tuple[int, ...] = ()

    @staticmethod
    def from_proto(response: pb.InspectRunResponse) -> RunInspection:
        return RunInspection(
            tuple(
                InspectedSequence(
                    _ref(kept.sequence), kept.draw, kept.positions, Totals.from_proto(kept.totals),
                    kept.cut_begin, kept.cut_end,
                )
                for kept in response.sequences
            ),
            tuple(
                TokenCounts(token.token_id, token.accepted, token.rejected, token.max_error)
                for token in response.tokens
            ),
            tuple(
                Deviation(_ref(found.sequence), found.position, found.token_id, found.draw, found.log_ratio)
                for found in response.deviations
            ),
            tuple(response.unanswered),
        )


@dataclass(frozen=True, eq=False)
class SequenceInspection:
    """The last evaluated values of T consecutive positions of a sequence, beside the record. Where
    a decision is 0, the position was not evaluated, and the rest of its values mean nothing."""

    draw: int
    first_position: int
    # uint8 [T], see Decision.
    decisions: np.ndarray
    # int32 [T].
    sampled_ids: np.ndarray
    # float32 [T]. log q of the sampled tokens, as recorded, and log w.
    sampled_log_probs: np.ndarray
    log_ratios: np.ndarray
    # float32 [T]. a, log M and xi.
    acceptance_probabilities: np.ndarray
    log_envelopes: np.ndarray
    residual_masses: np.ndarray
    # float64 [T], in [0, 1). Accepted if below a.
    uniforms: np.ndarray
    # uint64 [T]. Policy versions behind the one that was current.
    staleness: np.ndarray
    # int32 [T, K] and float32 [T, K]: the record.
    top_k_ids: np.ndarray
    top_k_log_probs: np.ndarray
    # float32 [T, K]. The current policy's at the same slots; NaN where it is not known.
    current_log_probs: np.ndarray
    # Positions that were evaluated in this draw but are not kept, as the server's --inspected_bytes
    # has no room for them, all lie in [cut_begin, cut_end). Both are 0 if there are none.
    cut_begin: int
    cut_end: int

    @staticmethod
    def from_proto(response: pb.InspectSequenceResponse) -> SequenceInspection:
        def array(data: bytes, dtype: str) -> np.ndarray:
            return np.frombuffer(data, dtype)

        def rows(data: bytes, dtype: str) -> np.ndarray:
            return array(data, dtype).reshape(-1, response.top_k)

        return SequenceInspection(
            draw=response.draw,
            first_position=response.first_position,
            decisions=array(response.decisions, "u1"),
            sampled_ids=array(response.sampled_ids, "<i4"),
            sampled_log_probs=array(response.sampled_log_probs, "<f4"),
            log_ratios=array(response.log_ratios, "<f4"),
            acceptance_probabilities=array(response.acceptance_probabilities, "<f4"),
            log_envelopes=array(response.log_envelopes, "<f4"),
            residual_masses=array(response.residual_masses, "<f4"),
            uniforms=array(response.uniforms, "<u4") / 2.0**32,
            staleness=array(response.staleness, "<u8"),
            top_k_ids=rows(response.top_k_ids, "<i4"),
            top_k_log_probs=rows(response.top_k_log_probs, "<f4"),
            current_log_probs=rows(response.current_log_probs, "<f4"),
            cut_begin=response.cut_begin,
            cut_end=response.cut_end,
        )


def _ref(sequence: pb.SequenceRef) -> SequenceRef:
    return SequenceRef(sequence.id, sequence.attempt)


def merged_inspections(parts: Iterable[pb.InspectRunResponse]) -> pb.InspectRunResponse:
    """InspectRun over several replicas. A token's counts leave out the replicas that don't name it,
    as it doesn't stand out there."""
    sequences: List[pb.InspectRunResponse.InspectedSequence] = []
    deviations: List[pb.InspectRunResponse.Deviation] = []
    tokens: Dict[int, pb.InspectRunResponse.TokenCounts] = {}
    for part in parts:
        sequences += part.sequences
        deviations += part.deviations
        for counts in part.tokens:
            token = tokens.setdefault(counts.token_id, pb.InspectRunResponse.TokenCounts(token_id=counts.token_id))
            token.accepted += counts.accepted
            token.rejected += counts.rejected
            token.max_error += counts.max_error
    sequences.sort(key=lambda kept: (kept.sequence.id, kept.sequence.attempt))
    deviations.sort(key=lambda found: -abs(found.log_ratio))
    by_odds = sorted(
        tokens.values(), key=lambda token: (-math.log((token.rejected + 1) / (token.accepted + 1)), token.token_id)
    )
    return pb.InspectRunResponse(sequences=sequences, tokens=by_odds, deviations=deviations[:_DEVIATIONS])
