"""What a trainer says while the service is away."""

from __future__ import annotations

import warnings
from typing import Set


class Outage:
    """From the first call that is lost until each kind of call that was lost has succeeded again: it
    warns once."""

    def __init__(self) -> None:
        self._lost: Set[str] = set()

    def lost(self, kind: str, message: str) -> None:
        """A RuntimeWarning if it begins."""
        if not self._lost:
            warnings.warn(message, RuntimeWarning, stacklevel=4)
        self._lost.add(kind)

    def succeeded(self, kind: str) -> None:
        self._lost.discard(kind)
