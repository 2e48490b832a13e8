"""CRC-32C of what is appended, if the machine has a fast implementation of it."""

from __future__ import annotations

from typing import Callable, Optional, Sequence


def _find() -> Optional[Callable[[bytes, int], int]]:
    try:
        from crc32c import crc32c

        return crc32c
    except ImportError:
        pass
    try:
        from google_crc32c import extend

        return lambda data, crc: extend(crc, data)
    except ImportError:
        return None


_extend = _find()


def crc32c(parts: Sequence[bytes]) -> Optional[int]:
    """CRC-32C of the concatenated parts; None without the package `crc32c` or `google-crc32c`."""
    if _extend is None:
        return None
    crc = 0
    for part in parts:
        crc = _extend(part, crc)
    return crc
