"""A large Evaluate, cut into many of about 1 MiB: the server works on the first while the others
are on their way."""

from __future__ import annotations

from typing import Callable, List, Mapping, NamedTuple, Sequence, Union

import numpy as np

from sis.evaluate_request import EvaluateRequest, Field
from sis.half_precision import RoundedUp
from sis.records import Slice
from sis.segment import Segment
from sis.v1 import ratio_service_pb2 as pb


class RaggedRows:
    """Of each position as many values as it has slots: taken by positions, like rows."""

    def __init__(self, values: Union[np.ndarray, RoundedUp], offsets: np.ndarray) -> None:
        """values: [S]; offsets: int64 [N + 1], where each position's begin, and the end."""
        self.values = values
        self.offsets = offsets
        self.shape = values.shape
        self.itemsize = values.itemsize

    def __getitem__(self, rows: slice) -> np.ndarray:
        start, stop, _ = rows.indices(len(self.offsets) - 1)
        return self.values[slice(int(self.offsets[start]), int(self.offsets[stop]))]

    def begin(self, position: int) -> int:
        """In bytes."""
        return int(self.offsets[position]) * self.itemsize


# An array of a form, one row per position.
Rows = Union[np.ndarray, RoundedUp, RaggedRows]


def lies_in(segment: Segment, array: Rows) -> bool:
    """Whether its values are there already."""
    values = array.values if isinstance(array, RaggedRows) else array
    return isinstance(values, np.ndarray) and segment.holds(values)


def placed(array: Rows, place: Callable[[np.ndarray], np.ndarray]) -> Rows:
    """The same where `place` puts it; what is to be RoundedUp is rounded."""
    values = place(array[:])
    return RaggedRows(values, array.offsets) if isinstance(array, RaggedRows) else values


class MicroBatch(NamedTuple):
    """Consecutive slices, and where their rows are in the arrays."""

    slices: Sequence[Slice]
    # The number of the first of them in the whole batch.
    first_slice: int
    rows: slice

    def request(
        self,
        options: pb.EvaluateRequest,
        form: str,
        arrays: Mapping[str, Rows],
        field: Callable[[np.ndarray], Field],
    ) -> EvaluateRequest:
        """`options` is all of the request but slices and the arrays of the form, which are those of
        the whole batch.

        `field` makes what stands in a message for an array.
        """
        message = pb.EvaluateRequest()
        message.CopyFrom(options)
        # A sequence of which nothing is committed gives an empty slice, which the service does not
        # evaluate.
        message.slices.extend(part.to_proto() for part in self.slices if part.length)
        return EvaluateRequest(message, form, {name: field(array[self.rows]) for name, array in arrays.items()})


def cut(
    slices: Sequence[Slice], arrays: Mapping[str, Rows], limit: int, multiple: int = 1
) -> List[MicroBatch]:
    """Micro-batches of at most `limit` bytes of arrays, or one slice: that stays what the server
    gave a digest of.

    Each begins at a multiple of `multiple` positions, and of as many bytes of ragged rows: a slice
    that doesn't stays with the one before.
    """
    ragged = [array for array in arrays.values() if isinstance(array, RaggedRows)]
    row_bytes = sum(
        array.itemsize * int(np.prod(array.shape[1:]))
        for array in arrays.values()
        if not isinstance(array, RaggedRows)
    )

    def size(start: int, stop: int) -> int:
        return (stop - start) * row_bytes + sum(array.begin(stop) - array.begin(start) for array in ragged)

    def can_begin(position: int) -> bool:
        return position % multiple == 0 and all(array.begin(position) % multiple == 0 for array in ragged)

    batches = []
    first, start, stop = 0, 0, 0
    for index, part in enumerate(slices):
        if stop > start and can_begin(stop) and size(start, stop + part.length) > limit:
            batches.append(MicroBatch(slices[first:index], first, slice(start, stop)))
            first, start = index, stop
        stop += part.length
    batches.append(MicroBatch(slices[first:], first, slice(start, stop)))
    return batches
