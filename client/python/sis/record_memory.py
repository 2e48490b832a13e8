"""Where records are written that are to be appended."""

from __future__ import annotations

import threading
import time
from typing import Callable, Optional

import numpy as np

from sis import errors
from sis.owner import EndedBeforeForks
from sis.segment import Segment, aligned, has_abandoned
from sis.top_k import TopK

# What a client leases for its records, or the next of these if the server has no more: 32 MiB are
# some 190,000 positions with K = 20.
SEGMENT_BYTES = (32 << 20, 4 << 20)
# Seconds after which a server that shared no memory is asked again, and how long whoever asks waits for
# one that hangs.
ASK_AGAIN_SECONDS = 10.0
LEASE_SECONDS = 1.0


class RecordMemory(EndedBeforeForks):
    """Memory shared with the server, as far as it shares any; else of this process. Thread-safe."""

    def __init__(self, lease: Optional[Callable[[int], Segment]]) -> None:
        """`lease`: of a segment of so many bytes, within LEASE_SECONDS; None if there can be none."""
        self._lease = lease
        self._lock = threading.Lock()
        # Guarded by _lock.
        self._segment: Optional[Segment] = None
        self._ask_at = 0.0  # on time.monotonic()
        super().__init__()

    def end_idle(self) -> None:
        """Ends the lease; the arrays stay as they are. The next call leases anew."""
        # In a process that was forked the lock may be held for ever.
        if not self._owner.here:
            return
        with self._lock:
            segment, self._segment = self._segment, None
        if segment is not None:
            segment.close()

    def close(self) -> None:
        """As end_idle, and from then on all memory is of this process."""
        self._lease = None
        self.end_idle()

    def empty(self, positions: int, top_k: int) -> TopK:
        """Uninitialised. Where there is no room in the segment, of this process too: nobody waits for
        it."""
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
        if self._may_ask():
            self._ask()
        with self._lock:
            if self._segment is None:
                return None
            try:
                return self._segment.empty(size, np.uint8)
            except errors.NotFound:  # its lease has ended this moment
                return None
            except MemoryError:
                if has_abandoned(self._segment):
                    # After a call that broke off; the next one is whole again.
                    self._segment.close()
                return None

    def _may_ask(self) -> bool:
        """Whether there is no lease, and this thread is to ask for one: others don't wait for it."""
        with self._lock:
            if self._segment is not None:
                if not self._segment.ended:
                    return False
                self._segment.close()
                self._segment = None
            now = time.monotonic()
            if self._lease is None or now < self._ask_at:
                return False
            self._ask_at = now + ASK_AGAIN_SECONDS
            return True

    def _ask(self) -> None:
        lease = self._lease
        if lease is None:  # closed meanwhile
            return
        for size in SEGMENT_BYTES:
            try:
                segment = lease(size)
            except errors.ResourceExhausted:
                continue
            except (errors.Error, OSError):
                # It shares none, or there is no server, or none whose memory this process sees.
                return
            with self._lock:
                if self._lease is None:  # closed meanwhile
                    needless: Optional[Segment] = segment
                else:  # or of a thread that asked at the same time
                    needless, self._segment, self._ask_at = self._segment, segment, 0.0
            if needless is not None:
                needless.close()
            return
