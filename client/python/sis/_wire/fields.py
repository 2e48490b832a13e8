"""Fields of a message in its bytes, for messages that hold large arrays: protobuf would copy each of them twice
and more. The bytes of a message are those of its fields, one after the other."""

from __future__ import annotations

import functools
from typing import Any


def prefix(kind: Any, name: str, size: int) -> bytes:
    """Returns the tag and length before the `size` bytes of a field of bytes, or of a message.

    Args:
        kind: Descriptor of the message that has the field.
    """
    return _tag(kind, name) + _varint(size)


@functools.lru_cache(maxsize=None)
def _tag(kind: Any, name: str) -> bytes:
    # Wire type 2: a length and so many bytes.
    return _varint(kind.fields_by_name[name].number << 3 | 2)


def _varint(value: int) -> bytes:
    made = bytearray()
    while value > 127:
        made.append(value & 127 | 128)
        value >>= 7
    made.append(value)
    return bytes(made)
