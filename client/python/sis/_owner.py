"""Connections, and the threads behind them, don't come along into a process that is forked."""

from __future__ import annotations

import os


class Owner:
    """The process that made this."""

    def __init__(self) -> None:
        self._process = os.getpid()

    @property
    def here(self) -> bool:
        return os.getpid() == self._process

    def check(self, what: str) -> None:
        """RuntimeError in any other process."""
        if not self.here:
            raise RuntimeError(
                f"this {what} was made in process {self._process}, from which this one ({os.getpid()}) was forked: "
                "its connections don't work here. Make a sis.Client here, after the fork"
            )
