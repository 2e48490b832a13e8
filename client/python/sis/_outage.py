"""What a trainer says while the service is away."""

from __future__ import annotations

import threading
import warnings
from typing import Any, Callable, Set

import grpc

from sis import _errors


class Outage:
    """From the first call that is lost until each kind of call that was lost has succeeded again: it
    warns once. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lost: Set[str] = set()
        self._number = 0

    def lost(self, kind: str, message: str) -> None:
        """A RuntimeWarning if it begins."""
        with self._lock:
            begins = not self._lost
            self._lost.add(kind)
            self._number += begins
            number = self._number
        if begins:
            # Of one place Python shows the same text once.
            warnings.warn(f"{message} (outage {number})", RuntimeWarning, stacklevel=4)

    def succeeded(self, kind: str) -> None:
        with self._lock:
            self._lost.discard(kind)

    def asked(self, loss: str, call: Callable[[], Any]) -> Any:
        """What a call of the service returns. None if it is lost, as no server is reached or none has
        room. Raises what is no loss but a mistake."""
        try:
            answer = call()
        except _errors.Error as error:
            refused = error.refused if isinstance(error, _errors.AppendError) else [error]
            for one in refused:
                if not _errors.is_unreachable(one) and one.code != grpc.StatusCode.RESOURCE_EXHAUSTED:  # type: ignore[arg-type]
                    raise
            self.lost(loss, f"SIS: {loss}, and training goes on: {error}")
            return None
        self.succeeded(loss)
        return answer
