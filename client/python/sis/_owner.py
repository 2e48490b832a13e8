"""Connections, and the threads behind them, don't come along into a process that is forked."""

from __future__ import annotations

import abc
import os
import time
from typing import Optional, TypeVar

# Seconds that a fork waits after a call. Before a fork gRPC 1.51 waits for one of its threads. If that thread still
# cleans up after a call, it waits for the fork, and both wait for ever.
_REST_SECONDS = 0.1

_last_call = 0.0


def call_ended() -> None:
    """Notes that this process has just ended a call or closed a connection."""
    global _last_call
    _last_call = time.monotonic()


def _rest() -> None:
    time.sleep(max(0.0, _last_call + _REST_SECONDS - time.monotonic()))


os.register_at_fork(before=_rest)


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


_Closes = TypeVar("_Closes", bound="ClosesItself")


class ClosesItself(abc.ABC):
    """A context manager that closes itself on exit, or after an error ends at once."""

    @abc.abstractmethod
    def close(self) -> None:
        """Sends the rest, and ends."""

    @abc.abstractmethod
    def abandon(self) -> None:
        """Ends without sending the rest."""

    def __enter__(self: _Closes) -> _Closes:
        return self

    def __exit__(self, exception_type: Optional[type], *_: object) -> None:
        if exception_type is None:
            self.close()
        else:
            self.abandon()
