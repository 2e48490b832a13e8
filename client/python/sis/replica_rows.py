"""The arrays of an Evaluate over several replicas, cut up and put together row by row."""

from __future__ import annotations

from typing import Any, Iterable, Mapping, Sequence

import numpy as np

from sis.v1 import ratio_service_pb2 as pb

# Fields of a request that differ between replicas.
_OF_A_REPLICA = ("slices", "lease_id")


class Rows:
    """Which rows of a batch's arrays belong to which replica."""

    def __init__(
        self, slices: Sequence[pb.Slice], parts: Mapping[int, Sequence[int]], mask: bytes
    ) -> None:
        replica_of_slice = np.full(len(slices), -1)
        for index, numbers in parts.items():
            replica_of_slice[list(numbers)] = index
        lengths = [part.length for part in slices]
        self._replica = np.repeat(replica_of_slice, lengths)
        self._ends = np.cumsum(lengths)
        masked = np.frombuffer(mask, np.uint8) == 0
        # A mask of the wrong length is refused by whoever answers.
        self._masked = (
            masked if len(masked) == len(self._replica) else np.zeros(len(self._replica), bool)
        )

    def copy(self, request: Any, part: Any, index: int) -> None:
        """All of a message, of its arrays the rows of one replica. Arrays that do not divide into
        rows go as they are, to be refused."""
        for field, value in request.ListFields():
            if field.name in _OF_A_REPLICA:
                continue
            if field.type == field.TYPE_BYTES:
                ragged = field.name == "log_probs" and getattr(request, "top_k_counts", b"")
                rows = self._slots(ragged) if ragged else self._replica
                setattr(part, field.name, _split(value, rows == index))
            elif hasattr(value, "extend"):
                getattr(part, field.name).extend(value)
            elif field.message_type is None:
                setattr(part, field.name, value)
            else:
                getattr(part, field.name).SetInParent()
                self.copy(value, getattr(part, field.name), index)

    def _slots(self, counts: bytes) -> np.ndarray:
        """The replica of each slot, of which positions have so many."""
        if len(counts) != 2 * len(self._replica):
            return np.empty(0, self._replica.dtype)
        return np.repeat(self._replica, np.frombuffer(counts, np.uint16))

    def missing_totals(self, number: int) -> pb.Totals:
        """What a slice counts without an answer: masked positions, the others missing."""
        end = self._ends[number]
        length = end - (self._ends[number - 1] if number else 0)
        masked = int(self._masked[end - length : end].sum())
        return pb.Totals(missing=int(length) - masked, masked=masked)

    def merge_outputs(
        self,
        answers: Mapping[int, pb.EvaluateResponse],
        outputs: Iterable[int],
        merged: pb.EvaluateResponse,
    ) -> None:
        rows = {index: self._replica == index for index in answers}
        for output in outputs:
            if output == pb.ACCEPT_BITS:
                accepted = np.zeros(len(self._replica), np.uint8)
                for index, answer in answers.items():
                    bits = np.frombuffer(answer.accept_bits, np.uint8)
                    accepted[rows[index]] = np.unpackbits(
                        bits, count=rows[index].sum(), bitorder="little"
                    )
                merged.accept_bits = np.packbits(accepted, bitorder="little").tobytes()
                continue
            name, values = pb.Output.Name(output).lower(), np.zeros(len(self._replica), np.float32)
            if output == pb.DECISIONS:
                values = np.where(self._masked, np.uint8(pb.MASKED), np.uint8(pb.MISSING))
            for index, answer in answers.items():
                values[rows[index]] = np.frombuffer(getattr(answer, name), values.dtype)
            setattr(merged, name, values.tobytes())


def _split(values: bytes, mine: np.ndarray) -> bytes:
    """These rows of an array; all of one that does not divide into so many."""
    if not len(mine) or len(values) % len(mine):
        return values
    return np.frombuffer(values, np.uint8).reshape(len(mine), -1)[mine].tobytes()
