"""Where records are written that are to be appended."""

from __future__ import annotations

import threading
import time
from typing import Callable, Optional

import numpy as np

from sis import errors
from sis.segment import ALIGNMENT, Segment, aligned
from sis.top_k import TopK

# What a client leases for its records, or the next of these if the server has no more: 32 MiB are
# some 190,000 positions with K = 20.
SEGMENT_BYTES = (32 << 20, 4 << 20)
# Of positions: where blocks begin in arrays for several of them, so that each can be referred to.
BLOCK_ALIGNMENT = ALIGNMENT // 4
# Seconds after which a server that shared no memory is asked again.
ASK_AGAIN_SECONDS = 10.0


class RecordMemory:
    """Memory shared with the server, as far as it shares any; else of this process. Thread-safe."""

    def __init__(self, lease: Optional[Callable[[int], Segment]]) -> None:
        """`lease`: of a segment of so many bytes; None if there can be none."""
        self._lease = lease
        self._lock = threading.Lock()
        # Guarded by _lock.
        self._segment: Optional[Segment] = None
        self._ask_at = 0.0  # on time.monotonic()

    def empty(self, positions: int, top_k: int) -> TopK:
        """Uninitialised. Where there is no room in the segment, of this process too: nobody waits."""
        narrow, wide = aligned(4 * positions), aligned(4 * positions * top_k)
        memory = self._shared(2 * (narrow + wide))
        if memory is None:
            memory = np.empty(2 * (narrow + wide), np.uint8)
        rows, slots = memory[: 2 * narrow].reshape(2, -1), memory[2 * narrow :].reshape(2, -1)
        shape = positions, top_k
        return TopK(
            rows[0, : 4 * positions].view(np.int32),
            rows[1, : 4 * positions].view(np.float32),
            slots[0, : 4 * positions * top_k].view(np.int32).reshape(shape),
            slots[1, : 4 * positions * top_k].view(np.float32).reshape(shape),
        )

    def _shared(self, size: int) -> Optional[np.ndarray]:
        """uint8 [size]."""
        with self._lock:
            segment = self._leased()
            if segment is None:
                return None
            try:
                return segment.empty(size, np.uint8)
            except errors.NotFound:  # its lease has ended this moment
                return None
            except MemoryError:
                if segment.has_abandoned:
                    # After a call that broke off; the next one is whole again.
                    segment.close()
                return None

    def _leased(self) -> Optional[Segment]:
        if self._segment is not None:
            if not self._segment.ended:
                return self._segment
            self._segment.close()
            self._segment = None
        if self._lease is not None and time.monotonic() >= self._ask_at:
            for size in SEGMENT_BYTES:
                try:
                    self._segment = self._lease(size)
                    break
                except errors.ResourceExhausted:
                    continue
                except (errors.Error, OSError):
                    # It shares none, or there is no server, or none whose memory this process sees.
                    break
            if self._segment is None:
                self._ask_at = time.monotonic() + ASK_AGAIN_SECONDS
        return self._segment
