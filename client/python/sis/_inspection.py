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
    """A sequence that a server has in memory."""

    sequence: SequenceRef
    # One past the highest position.
    committed_length: int
    # Fewer where blocks have not come.
    positions: int
    sealed: bool
    # No trainer has fetched or evaluated it. False where a store keeps what is evicted.
    unread: bool
    # The newest of its positions.
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
        super().__init__(sequences)
        # Whether there are more after these.
        self.more = more
        # As in Runs.
        self.unanswered: Tuple[int, ...] = tuple(unanswered)
        # Whether a store keeps evicted sequences, which are not listed.
        self.store_keeps_evicted = store_keeps_evicted


@dataclass(frozen=True)
class InspectedSequence:
    """A sequence that Client.inspect_sequence can open."""

    sequence: SequenceRef
    # The draw of the values that are kept.
    draw: int
    # Number and totals of the positions that are kept.
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
    """Sequences, tokens and positions of a run that stand out."""

    # By id.
    sequences: Tuple[InspectedSequence, ...]
    # By how much more frequent they are among the rejected than among the accepted, most first.
    tokens: Tuple[TokenCounts, ...]
    # Largest |log w| first.
    deviations: Tuple[Deviation, ...]
    # As in Runs.
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
    position was not evaluated, and its other values have no meaning."""

    draw: int
    first_position: int
    # uint8 [T], see Decision.
    decisions: np.ndarray
    # uint8 [T], a MissingReason where the decision is MISSING, otherwise 0.
    missing_reasons: np.ndarray
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
    # int64 [T]. Policy versions behind the one that was current; negative: ahead of it.
    staleness: np.ndarray
    # int32 [T, K] and float32 [T, K]: the record.
    top_k_ids: np.ndarray
    top_k_log_probs: np.ndarray
    # float32 [T, K]. The current policy's at the same slots; NaN where it is not known.
    current_log_probs: np.ndarray
    # Range [cut_begin, cut_end) of the positions that were evaluated in this draw without space in --inspected_bytes.
    # Both are 0 if there are none.
    cut_begin: int
    cut_end: int
    # Annotation of the seal; None without one.
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
