"""Parts of messages as protobuf writes them, where it would cost too much itself."""

from __future__ import annotations

import functools

_DELIMITED = 2


def varint(value: int) -> bytes:
    data = bytearray()
    while value >= 0x80:
        data.append(value & 0x7F | 0x80)
        value >>= 7
    data.append(value)
    return bytes(data)


@functools.lru_cache(1 << 12)
def key(number: int, size: int) -> bytes:
    """What comes before a field of so many bytes."""
    return varint(number << 3 | _DELIMITED) + varint(size)
