"""Warnings of a trainer while the service is unreachable."""

from __future__ import annotations

import threading
import warnings
from typing import Callable, Optional, Set, TypeVar

import grpc

from sis import _errors

_Answer = TypeVar("_Answer")


class Outage:
    """An outage lasts from the first lost call until each kind of lost call has succeeded again. Warns once per
    outage. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lost: Set[str] = set()
        self._number = 0

    def lost(self, kind: str, message: str) -> None:
        """Notes a lost call. Gives a RuntimeWarning if it begins an outage."""
        with self._lock:
            begins = not self._lost
            self._lost.add(kind)
            self._number += begins
            number = self._number
        if begins:
            # Python shows equal warnings from one line only once, so the text has a number.
            warnings.warn(f"{message} (outage {number})", RuntimeWarning, stacklevel=4)

    def succeeded(self, kind: str) -> None:
        with self._lock:
            self._lost.discard(kind)

    def asked(self, loss: str, call: Callable[[], _Answer]) -> Optional[_Answer]:
        """Returns the result of `call`, or None if it is lost: no server is reachable, or none has space. Raises
        other errors."""
        try:
            answer = call()
        except _errors.Error as error:
            refused = error.refused if isinstance(error, _errors.AppendError) else [error]
            for one in refused:
                if not _errors.is_away(one) and one.code != grpc.StatusCode.RESOURCE_EXHAUSTED:
                    raise
            self.lost(loss, f"SIS: {loss}, and training goes on: {error}")
            return None
        self.succeeded(loss)
        return answer
