"""Leaves a replica alone that gives no answer, so that it does not cost every call its timeout."""

from __future__ import annotations

import math
import threading
import time
from typing import Callable, Optional, TypeVar

import grpc

from sis import _errors

_Answer = TypeVar("_Answer")

# A replica that gave no answer is left alone for so many times as long as it was waited for, so
# that one which hangs costs little; but within these seconds, so that one which comes back is seen.
TIMES_WAITED = 10.0
SHORTEST, LONGEST = 1.0, 10.0


class CircuitBreaker:
    """Of one replica. Thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        # On the clock; 0: the replica is not left alone, infinity: somebody is probing it. Guarded
        # by _lock, as is what the replica failed with.
        self._alone_until = 0.0
        self._error: Optional[_errors.Error] = None

    def call(self, ask: Callable[[], _Answer], probe: Callable[[], object]) -> _Answer:
        """Returns the answer of `ask`. Raises as `admit` does, without asking."""
        self.admit(probe)
        return self._heard(ask)

    def admit(self, probe: Callable[[], object]) -> None:
        """Raises sis.Unavailable at once while calls to the replica are paused.

        After the pause, the first caller sends `probe`, a small call with a short deadline. Other callers go
        on without the replica until the probe is answered.
        """
        with self._lock:
            if not self._alone_until:
                return
            if self._clock() < self._alone_until:
                raise _errors.from_status(grpc.StatusCode.UNAVAILABLE, f"left alone for a while, after {self._error}")
            self._alone_until = math.inf
        try:
            self._heard(probe)
        except _errors.Error as error:
            if _errors.is_unreachable(error):
                raise
        except BaseException:
            # The probe was not sent.
            with self._lock:
                self._alone_until = self._clock()
            raise

    def failed(self, error: _errors.Error, began: float) -> None:
        """Notes that the replica did not answer the call that began at `began` on time.monotonic()."""
        now = self._clock()
        with self._lock:
            self._error = error
            self._alone_until = now + min(max(TIMES_WAITED * (now - began), SHORTEST), LONGEST)

    def _heard(self, ask: Callable[[], _Answer]) -> _Answer:
        began = self._clock()
        try:
            answer = ask()
        except _errors.Error as error:
            if _errors.is_unreachable(error):
                self.failed(error, began)
            else:
                self._answered()
            raise
        self._answered()
        return answer

    def _answered(self) -> None:
        with self._lock:
            self._alone_until = 0.0
