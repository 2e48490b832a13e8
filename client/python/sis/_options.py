"""Options of evaluate."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Dict, Mapping, NamedTuple, Optional, Sequence, cast

import numpy as np

from sis import _algorithms, _arrays, _corrections
from sis._algorithms import Algorithm
from sis._arrays import ArrayLike
from sis._corrections import Correction
from sis._evaluate.micro_batches import MicroBatch
from sis._ragged import Selection
from sis._records import Slice
from sis.v1 import ratio_service_pb2 as pb


class LogRatioSum(NamedTuple):
    """The sum of the log of the modified ratio over unmasked positions. Add the sums of several machines.

    Attributes:
        log_ratio: Sum of log ratios, in units of 2^-30 nats.
        positions: Number of positions of the sum.
    """

    log_ratio: int
    positions: int


@dataclass(frozen=True, eq=False)
class EvaluateOptions:
    """Arrays are [N], one element per position, slice by slice.

    Attributes:
        weight: "sampled": the modified ratio is 1 if accepted, otherwise w. "expected": its mean over the draw, a + (1
            - a) w.
        mask: The loss mask, booleans: false where the policy did not generate the token, or it is not trained on. Such
            positions are MASKED and don't count; the page and sisctl show them as not in the loss.
        own_log_probs: The trainer's own log q of the sampled tokens, for the ratios of MISSING positions. There
            evaluate's sampled_log_probs must be of the trainer's own tokens, which sis.gather takes.
        decoupled_log_probs: With three policies, log p of the sampled tokens under the current policy. evaluate's other
            values are then the proximal policy's.
        algorithm: For the outputs "surrogates" and "coefficients".
        advantages: float32 [N], one per position.
        sampled_ids: The tokens of the trainer's batch. FailedPrecondition names the first position where another token
            is recorded.
        log_ratio_sums: With Gspo, one per slice: the sums of whole sequences, if other machines have parts of them.
        observe: Corrections to observe in addition, by the names of their metrics. Evaluation.corrections has the sums
            of each over the same ratios.
    """

    weight: str = "sampled"
    mask: Optional[ArrayLike] = None
    own_log_probs: Optional[ArrayLike] = None
    decoupled_log_probs: Optional[ArrayLike] = None
    algorithm: Optional[Algorithm] = None
    advantages: Optional[ArrayLike] = None
    sampled_ids: Optional[ArrayLike] = None
    log_ratio_sums: Optional[Sequence[LogRatioSum]] = None
    observe: Mapping[str, Correction] = field(default_factory=dict)

    def _needs_one_request(self, slices: Sequence[Slice]) -> bool:
        """Returns True if an output depends on the whole batch, which then must not be split.

        These are Clip-Cov's choice, and Gspo's sums if a sequence has several slices and its sum is not given.
        """
        if isinstance(self.algorithm, _algorithms.Gspo) and self.log_ratio_sums is None:
            return len({(part.sequence, part.attempt) for part in slices}) < len(slices)
        return isinstance(self.algorithm, _algorithms.ClipCov)

    def _checked(self, slices: Sequence[Slice], length: int, vocabulary_size: int) -> EvaluateOptions:
        """Returns these options with the numpy arrays that are sent. Raises ValueError if an array does not fit
        `length` positions."""
        if self.weight not in _corrections.WEIGHTS:
            raise ValueError(f"weight {self.weight!r} must be one of {', '.join(_corrections.WEIGHTS)}")
        if self.log_ratio_sums is not None and len(self.log_ratio_sums) != len(slices):
            raise ValueError(f"log_ratio_sums has {len(self.log_ratio_sums)} elements, must be {len(slices)}")

        checked: Dict[str, Any] = {
            name: _arrays.float32(name, getattr(self, name), (length,))
            for name in ("own_log_probs", "decoupled_log_probs", "advantages")
            if getattr(self, name) is not None
        }
        if self.mask is not None:
            checked["mask"] = _booleans("mask", self.mask, length)
        if self.sampled_ids is not None:
            ids = _arrays.int32("sampled_ids", self.sampled_ids, (length,))
            checked["sampled_ids"] = _packed_ids(ids, checked.get("mask"), vocabulary_size)
        return replace(self, **checked)

    def _write_whole(self, request: pb.EvaluateRequest) -> None:
        """Writes the fields that are equal in all requests of a batch. The options must be checked."""
        request.weight = _corrections.WEIGHTS[self.weight]
        if self.algorithm is not None:
            request.algorithm.CopyFrom(self.algorithm.to_proto())
        request.observe.extend(_corrections.to_proto(self.observe))

    def _write(self, request: pb.EvaluateRequest, batch: MicroBatch) -> None:
        """Writes the other fields, except `_arrays`, for the slices of `batch`. The options must be checked."""
        if self.mask is not None:
            request.mask = cast(np.ndarray, self.mask)[batch.rows].tobytes()
        if self.decoupled_log_probs is not None:
            own = cast(np.ndarray, self.decoupled_log_probs)
            request.decoupled.current_log_probs = own[batch.rows].tobytes()
        if self.log_ratio_sums is not None:
            for message, number in zip(request.slices, batch.numbers):
                message.sequence_log_ratio_sum.CopyFrom(pb.LogRatioSum(**self.log_ratio_sums[number]._asdict()))

    def _arrays(self, rows: Selection) -> Dict[str, np.ndarray]:
        """Returns the arrays of these positions, by field of a request. The options must be checked."""
        own = {name: getattr(self, name) for name in ("own_log_probs", "advantages", "sampled_ids")}
        return {name: values[rows] for name, values in own.items() if values is not None}


def _packed_ids(ids: np.ndarray, mask: Optional[np.ndarray], vocabulary_size: int) -> np.ndarray:
    """Returns uint8 [N, width], with the smallest width for the vocabulary, or 4 if an unmasked id is outside of it.
    Masked ids, which the service ignores, are 0."""
    if mask is not None:
        ids = np.where(mask, ids, 0)
    known = not ids.size or (ids.min() >= 0 and ids.max() < vocabulary_size)
    width = next(width for width in (2, 3, 4) if vocabulary_size <= 1 << 8 * width) if known else 4
    return np.ascontiguousarray(ids.astype("<u4").view(np.uint8).reshape(-1, 4)[:, :width])


def _booleans(name: str, values: ArrayLike, length: int) -> np.ndarray:
    array: Any = _arrays.to_numpy(values)
    if array.shape != (length,):
        raise ValueError(f"{name} has shape {list(array.shape)}, must be [{length}]")
    if array.dtype != bool and not np.isin(array, (0, 1)).all():
        raise ValueError(f"{name} holds other values than 0 and 1")
    return array.astype(bool)
