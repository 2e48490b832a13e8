"""An EvaluateRequest on its way, whose arrays are copied once: into the bytes that gRPC takes."""

from __future__ import annotations

from typing import Mapping, NamedTuple

import numpy as np

from sis.v1 import ratio_service_pb2 as pb
from sis.wire.fields import key

_FIELDS = pb.EvaluateRequest.DESCRIPTOR.fields_by_name


class EvaluateRequest(NamedTuple):
    # All of it but the arrays of the form.
    message: pb.EvaluateRequest
    # The field that is set, "gathered" for one, and its arrays by name. "": there is nothing else.
    form: str = ""
    arrays: Mapping[str, memoryview] = {}

    def size(self) -> int:
        """Some bytes less than it is serialized."""
        return self.message.ByteSize() + sum(map(len, self.arrays.values()))

    def serialize(self) -> bytes:
        """As protobuf would, which copies arrays into the message and out of it again."""
        if not self.form:
            return self.message.SerializeToString()
        rest = pb.EvaluateRequest()
        rest.CopyFrom(self.message)
        rest.ClearField(self.form)
        form = _FIELDS[self.form]
        fields = form.message_type.fields_by_name
        parts = [getattr(self.message, self.form).SerializeToString()]
        for name, values in self.arrays.items():
            if len(values):
                parts += [key(fields[name].number, len(values)), values]
        return b"".join([rest.SerializeToString(), key(form.number, sum(map(len, parts))), *parts])


def in_place(array: np.ndarray) -> memoryview:
    """The bytes of an array, where they are."""
    return memoryview(array.reshape(-1).view(np.uint8))
