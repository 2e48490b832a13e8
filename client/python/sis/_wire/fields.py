"""Encodes fields of messages with large arrays, which protobuf would copy several times. The bytes of a message are the
concatenated bytes of its fields."""

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
    # Wire type 2: a length, followed by the bytes.
    return _varint(kind.fields_by_name[name].number << 3 | 2)


def _varint(value: int) -> bytes:
    made = bytearray()
    while value > 127:
        made.append(value & 127 | 128)
        value >>= 7
    made.append(value)
    return bytes(made)
