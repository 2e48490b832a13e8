"""Splits a large Evaluate into requests of about 4 MiB, so that the server works on one while others are being
transferred. Each of several replicas gets the requests of its own sequences."""

from __future__ import annotations

import itertools
from typing import Any, Dict, List, Mapping, NamedTuple, Sequence

import numpy as np

from sis import _ragged
from sis._ragged import Selection
from sis._records import Slice
from sis.v1 import ratio_service_pb2 as pb
from sis._wire import fields as wire_fields


class Current(NamedTuple):
    """The current policy's values at N positions, for one form of EvaluateRequest."""

    # The field of the form, such as "gathered".
    form: str
    # [N] each, by the name of the form's field.
    arrays: Mapping[str, np.ndarray]
    # float32 [S], nats: the form's log_probs, at the used slots. Empty in a form without them.
    log_probs: np.ndarray
    # int64 [N + 1]: position i has log_probs[offsets[i] : offsets[i + 1]].
    offsets: np.ndarray

    def fields(self, rows: Selection) -> Dict[str, np.ndarray]:
        """Returns the form's fields for these positions."""
        fields = {name: array[rows] for name, array in self.arrays.items()}
        if len(self.log_probs):
            fields["log_probs"] = self.log_probs[_ragged.slots_of(rows, self.offsets)]
        return fields

    def size(self, start: int, stop: int) -> int:
        """Returns the size of the fields for positions [start, stop), in bytes."""
        of_position = sum(array.itemsize for array in self.arrays.values())
        slots = int(self.offsets[stop] - self.offsets[start])
        return (stop - start) * of_position + slots * self.log_probs.itemsize


class Request(NamedTuple):
    """An EvaluateRequest."""

    # The message without the arrays below.
    message: pb.EvaluateRequest
    # The field of the form, such as "gathered".
    form: str
    fields: Mapping[str, np.ndarray]
    # The request's own arrays.
    arrays: Mapping[str, np.ndarray]

    def serialized(self) -> bytes:
        form = _arrays(_FORMS[self.form].message_type, self.fields)
        size = sum(memoryview(part).nbytes for part in form)
        arrays = _arrays(pb.EvaluateRequest.DESCRIPTOR, self.arrays)
        prefix = wire_fields.prefix(pb.EvaluateRequest.DESCRIPTOR, self.form, size)
        return b"".join([self.message.SerializeToString(), *arrays, prefix, *form])


def _arrays(kind: Any, arrays: Mapping[str, np.ndarray]) -> List[Any]:
    """Returns the bytes of array fields."""
    parts: List[Any] = []
    for name, array in arrays.items():
        parts += (wire_fields.prefix(kind, name, array.nbytes), array)
    return parts


_FORMS = pb.EvaluateRequest.DESCRIPTOR.fields_by_name


class MicroBatch(NamedTuple):
    """The slices of one request, and their rows in the arrays."""

    # Numbers of the slices in the whole batch, ascending. A sequence without committed positions gives an
    # empty slice, which the service does not evaluate: its number is left out.
    numbers: Sequence[int]
    rows: Selection

    @property
    def length(self) -> int:
        """Returns the number of positions."""
        return self.rows.stop - self.rows.start if isinstance(self.rows, slice) else len(self.rows)


def cut(slices: Sequence[Slice], numbers: Sequence[int], current: Current, limit: int) -> List[MicroBatch]:
    """Returns micro-batches of the slices with these numbers, each of at most `limit` bytes of arrays, or of one
    slice: the server's digest is of a whole slice."""
    starts = [0, *itertools.accumulate(part.length for part in slices)]
    batches: List[List[int]] = [[]]
    size = 0
    for number in numbers:
        own = current.size(starts[number], starts[number + 1])
        if batches[-1] and size + own > limit:
            batches.append([])
            size = 0
        batches[-1].append(number)
        size += own
    return [
        MicroBatch(batch, _ragged.joined([slice(starts[number], starts[number + 1]) for number in batch]))
        for batch in batches
    ]
