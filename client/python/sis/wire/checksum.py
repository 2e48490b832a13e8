"""CRC-32C. Blocks get one only where a fast implementation is installed."""

from __future__ import annotations

from typing import Any, Callable, Iterable, Optional, Union

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
