"""Skips a replica that does not answer, so that not every call waits for its timeout."""

from __future__ import annotations

import math
import threading
import time
from typing import Callable, Optional, TypeVar

import grpc

from sis import _errors

_Answer = TypeVar("_Answer")

# A replica that did not answer is skipped for TIMES_WAITED times the duration of the failed call, so
# that a replica that hangs costs little. The limits, in seconds, let a replica that is back be found.
TIMES_WAITED = 10.0
SHORTEST, LONGEST = 1.0, 10.0


class CircuitBreaker:
    """The circuit breaker of one replica. Thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        # Time on the clock until which the replica is skipped. 0: it is not; infinity: a thread is
        # probing it. Guarded by _lock, like _error, the error of the last failed call.
        self._skipped_until = 0.0
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
            if not self._skipped_until:
                return
            if self._clock() < self._skipped_until:
                raise _errors.from_status(
                    grpc.StatusCode.UNAVAILABLE, f"replica skipped until its next probe, after {self._error}"
                )
            self._skipped_until = math.inf
        try:
            self._heard(probe)
        except _errors.Error as error:
            if _errors.is_unreachable(error):
                raise
        except BaseException:
            # The probe was not sent.
            with self._lock:
                self._skipped_until = self._clock()
            raise

    def failed(self, error: _errors.Error, began: float) -> None:
        """Notes that the replica did not answer the call that began at `began` on time.monotonic()."""
        now = self._clock()
        with self._lock:
            self._error = error
            self._skipped_until = now + min(max(TIMES_WAITED * (now - began), SHORTEST), LONGEST)

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
            self._skipped_until = 0.0
