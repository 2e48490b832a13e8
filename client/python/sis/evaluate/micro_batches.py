"""A large Evaluate, cut into many of about 1 MiB: the server works on the first while the others
are on their way. Of several replicas each gets those of its own sequences."""

from __future__ import annotations

import itertools
from typing import List, Mapping, NamedTuple, Sequence, Union

import numpy as np

from sis import ragged
from sis.evaluate.request import EvaluateRequest, in_place
from sis.ragged import Selection
from sis.records import Slice
from sis.v1 import ratio_service_pb2 as pb


class RaggedRows:
    """Of each position as many values as it has slots: taken by positions, like rows."""

    def __init__(self, values: np.ndarray, offsets: np.ndarray) -> None:
        """values: [S]; offsets: int64 [N + 1], where each position's begin, and the end."""
        self.values = values
        self.offsets = offsets
        self.shape = values.shape
        self.itemsize = values.itemsize

    def __getitem__(self, rows: Selection) -> np.ndarray:
        return self.values[ragged.slots_of(rows, self.offsets)]

    def begin(self, position: int) -> int:
        """In bytes."""
        return int(self.offsets[position]) * self.itemsize


# An array of a form, one row per position.
Rows = Union[np.ndarray, RaggedRows]


class Share(NamedTuple):
    """What one server is sent of a batch."""

    # Its index among several.
    server: int
    # Of the slices, rising; empty ones are not sent.
    numbers: Sequence[int]


class MicroBatch(NamedTuple):
    """Slices that are evaluated by one request, and where their rows are in the arrays."""

    # Of the slices in the whole batch, rising. A sequence of which nothing is committed gives an empty
    # slice, which the service does not evaluate: its number is not among them.
    numbers: Sequence[int]
    rows: Selection

    @property
    def length(self) -> int:
        """In positions."""
        return self.rows.stop - self.rows.start if isinstance(self.rows, slice) else len(self.rows)

    def request(
        self,
        options: pb.EvaluateRequest,
        slices: Sequence[Slice],
        form: str,
        arrays: Mapping[str, Rows],
    ) -> EvaluateRequest:
        """`options` is all of the request but slices and the arrays of the form; these are those of
        the whole batch."""
        message = pb.EvaluateRequest()
        message.CopyFrom(options)
        message.slices.extend(slices[number].to_proto() for number in self.numbers)
        return EvaluateRequest(message, form, {name: in_place(array[self.rows]) for name, array in arrays.items()})


def cut(
    slices: Sequence[Slice], numbers: Sequence[int], arrays: Mapping[str, Rows], limit: int
) -> List[MicroBatch]:
    """Of the slices with these numbers, micro-batches of at most `limit` bytes of arrays, or one slice:
    that stays what the server gave a digest of."""
    rows_of_all = [array for array in arrays.values() if isinstance(array, RaggedRows)]
    row_bytes = sum(
        array.itemsize * int(np.prod(array.shape[1:]))
        for array in arrays.values()
        if not isinstance(array, RaggedRows)
    )
    starts = [0, *itertools.accumulate(part.length for part in slices)]

    batches: List[List[int]] = [[]]
    size = 0
    for number in numbers:
        start, stop = starts[number], starts[number + 1]
        own = (stop - start) * row_bytes + sum(array.begin(stop) - array.begin(start) for array in rows_of_all)
        if batches[-1] and size + own > limit:
            batches.append([])
            size = 0
        batches[-1].append(number)
        size += own
    return [
        MicroBatch(batch, ragged.joined([slice(starts[number], starts[number + 1]) for number in batch]))
        for batch in batches
    ]
