"""A large Evaluate, cut into many of about 1 MiB: the server works on the first while the others
are on their way."""

from __future__ import annotations

from typing import Callable, List, Mapping, NamedTuple, Sequence, Union

import numpy as np

from sis.evaluate_request import EvaluateRequest, Field
from sis.half_precision import RoundedUp
from sis.records import Slice
from sis.v1 import ratio_service_pb2 as pb


# An array of a form, one row per position.
Rows = Union[np.ndarray, RoundedUp]


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

    Each begins at a multiple of `multiple` positions: a slice that doesn't stays with the one
    before.
    """
    row_bytes = sum(array.itemsize * int(np.prod(array.shape[1:])) for array in arrays.values())
    batches = []
    first, start, stop = 0, 0, 0
    for index, part in enumerate(slices):
        if stop > start and stop % multiple == 0 and (stop + part.length - start) * row_bytes > limit:
            batches.append(MicroBatch(slices[first:index], first, slice(start, stop)))
            first, start = index, stop
        stop += part.length
    batches.append(MicroBatch(slices[first:], first, slice(start, stop)))
    return batches
