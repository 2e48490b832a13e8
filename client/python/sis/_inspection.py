"""The last evaluated values, which the service keeps for inspection."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Iterable, List, Optional, Tuple

import numpy as np

from sis._entries import Annotation
from sis._evaluation import Totals
from sis._records import SequenceRef
from sis.v1 import ratio_service_pb2 as pb
from sis._wire.messages import read


@dataclass(frozen=True)
class ListedSequence:
    """A sequence that a server has in memory.

    Attributes:
        sequence: The sequence.
        committed_length: One past the highest position.
        positions: Fewer where blocks have not come.
        sealed: Whether the sequence is sealed.
        unread: No trainer has fetched or evaluated it. False where a store keeps what is evicted.
        policy_version: The newest of its positions.
        bytes: Bytes that it uses.
    """

    sequence: SequenceRef
    committed_length: int
    positions: int
    sealed: bool
    unread: bool
    policy_version: int
    bytes: int


class Sequences(List[ListedSequence]):
    """A page of the list of sequences, by the bytes of the id, then by attempt."""

    def __init__(
        self,
        sequences: Iterable[ListedSequence] = (),
        more: bool = False,
        unanswered: Iterable[int] = (),
        store_keeps_evicted: bool = False,
    ) -> None:
        """Makes a page.

        Args:
            sequences: The sequences.
            more: Whether further sequences follow.
            unanswered: As in Runs.
            store_keeps_evicted: Whether a store keeps evicted sequences, which are not listed.
        """
        super().__init__(sequences)
        self.more = more
        self.unanswered: Tuple[int, ...] = tuple(unanswered)
        self.store_keeps_evicted = store_keeps_evicted


@dataclass(frozen=True)
class InspectedSequence:
    """A sequence that Client.inspect_sequence can open.

    Attributes:
        sequence: The sequence.
        draw: The draw of the values that are kept.
        positions: Number and totals of the positions that are kept.
        totals: Sums over its positions.
        cut_begin: As in SequenceInspection.
        cut_end: Positions at the end that are left out.
    """

    sequence: SequenceRef
    draw: int
    positions: int
    totals: Totals
    cut_begin: int
    cut_end: int


@dataclass(frozen=True)
class TokenCounts:
    """How often a token was accepted and rejected in the sequences that are kept. Each count is too
    high by at most max_error.

    Attributes:
        token_id: The token.
        accepted: Accepted positions with this token.
        rejected: Rejected positions with this token.
        max_error: The largest error of the counts.
    """

    token_id: int
    accepted: int
    rejected: int
    max_error: int


@dataclass(frozen=True)
class Deviation:
    """A position with a large |log w|, nats.

    Attributes:
        sequence: The sequence.
        position: The position.
        token_id: The sampled token.
        draw: The optimiser step.
        log_ratio: log w, nats.
    """

    sequence: SequenceRef
    position: int
    token_id: int
    draw: int
    log_ratio: float


@dataclass(frozen=True)
class RunInspection:
    """Sequences, tokens and positions of a run that stand out.

    Attributes:
        sequences: By id.
        tokens: By how much more frequent they are among the rejected than among the accepted, most first.
        deviations: Largest |log w| first.
        unanswered: As in Runs.
    """

    sequences: Tuple[InspectedSequence, ...]
    tokens: Tuple[TokenCounts, ...]
    deviations: Tuple[Deviation, ...]
    unanswered: Tuple[int, ...] = ()


# Arrays of SequenceInspection that don't travel as float32.
_DTYPES = {
    "decisions": "u1",
    "sampled_ids": "<i4",
    "top_k_ids": "<i4",
    "uniforms": "<u4",
    "staleness": "<i8",
    "missing_reasons": "u1",
}
_WIDE = ("top_k_ids", "top_k_log_probs", "current_log_probs")


@dataclass(frozen=True, eq=False)
class SequenceInspection:
    """The record and last evaluated values of T consecutive positions of a sequence. If a decision is 0, the
    position was not evaluated, and its other values have no meaning.

    Attributes:
        draw: The optimiser step of the last evaluation.
        first_position: The first position of the arrays.
        decisions: uint8 [T], see Decision.
        missing_reasons: uint8 [T], a MissingReason where the decision is MISSING, otherwise 0.
        sampled_ids: int32 [T].
        sampled_log_probs: float32 [T]. log q of the sampled tokens, as recorded, and log w.
        log_ratios: float32 [T], nats.
        acceptance_probabilities: float32 [T]. a, log M and xi.
        log_envelopes: float32 [T], nats.
        residual_masses: float32 [T].
        uniforms: float64 [T], in [0, 1). Accepted if below a.
        staleness: int64 [T]. Policy versions behind the one that was current; negative: ahead of it.
        top_k_ids: int32 [T, K] and float32 [T, K]: the record.
        top_k_log_probs: float32 [T, K], nats.
        current_log_probs: float32 [T, K]. The current policy's at the same slots; NaN where it is not known.
        cut_begin: Range [cut_begin, cut_end) of the positions that were evaluated in this draw without space in
            --inspected_bytes. Both are 0 if there are none.
        cut_end: Positions at the end that are left out.
        annotation: Annotation of the seal; None without one.
    """

    draw: int
    first_position: int
    decisions: np.ndarray
    missing_reasons: np.ndarray
    sampled_ids: np.ndarray
    sampled_log_probs: np.ndarray
    log_ratios: np.ndarray
    acceptance_probabilities: np.ndarray
    log_envelopes: np.ndarray
    residual_masses: np.ndarray
    uniforms: np.ndarray
    staleness: np.ndarray
    top_k_ids: np.ndarray
    top_k_log_probs: np.ndarray
    current_log_probs: np.ndarray
    cut_begin: int
    cut_end: int
    annotation: Optional[Annotation] = None

    @staticmethod
    def from_proto(response: pb.InspectSequenceResponse) -> SequenceInspection:
        arrays = {
            field.name: np.frombuffer(getattr(response, field.name), _DTYPES.get(field.name, "<f4"))
            for field in response.DESCRIPTOR.fields
            if field.type == field.TYPE_BYTES
        }
        arrays.update((name, arrays[name].reshape(-1, response.top_k)) for name in _WIDE)
        arrays["uniforms"] = arrays["uniforms"] / 2.0**32
        return read(SequenceInspection, response, **arrays)
