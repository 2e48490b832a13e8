"""CRC-32C. Blocks get one only where a fast implementation is installed; short parts always do."""

from __future__ import annotations

from typing import Any, Callable, Iterable, List, Optional, Sequence, Union

import numpy as np


def _find() -> Optional[Callable[[Any, int], int]]:
    try:
        from crc32c import crc32c

        return crc32c
    except ImportError:
        pass
    try:
        from google_crc32c import extend

        # It takes nothing that could be written to.
        return lambda data, crc: extend(crc, bytes(data))
    except ImportError:
        return None


_extend = _find()


def crc32c(parts: Iterable[Union[bytes, np.ndarray]]) -> Optional[int]:
    """CRC-32C of the concatenated parts, contiguous arrays among them; None without the package
    `crc32c` or `google-crc32c`."""
    if _extend is None:
        return None
    crc = 0
    for part in parts:
        crc = _extend(part, crc)
    return crc


def crc32c_each(parts: Sequence[bytes]) -> List[int]:
    """CRC-32C of every part. Without a package, a step of numpy per byte of the longest part."""
    if _extend is not None:
        return [_extend(part, 0) for part in parts]
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        # The polynomial 0x1EDC6F41, bit-reversed.
        table = np.where(table & 1, (table >> 1) ^ np.uint32(0x82F63B78), table >> 1).astype(np.uint32)
    # The longest part first, so that those that have a byte left are the first ones.
    order = sorted(range(len(parts)), key=lambda index: -len(parts[index]))
    lengths = np.array([len(parts[index]) for index in order])
    columns = np.zeros((int(lengths.max(initial=0)), len(parts)), np.uint8)
    for row, index in enumerate(order):
        columns[: len(parts[index]), row] = np.frombuffer(parts[index], np.uint8)
    crc = np.full(len(parts), 0xFFFFFFFF, np.uint32)
    for position, column in enumerate(columns):
        left = int(np.searchsorted(-lengths, -position, side="left"))
        crc[:left] = table[(crc[:left] ^ column[:left]) & 0xFF] ^ (crc[:left] >> 8)
    results = [0] * len(parts)
    for row, index in enumerate(order):
        results[index] = int(crc[row]) ^ 0xFFFFFFFF
    return results
