"""Connections, and the threads behind them, don't come along into a process that is forked."""

from __future__ import annotations

import abc
import os
import weakref


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


_ended_before_forks: weakref.WeakSet[EndedBeforeForks] = weakref.WeakSet()


def _before_fork() -> None:
    for one in list(_ended_before_forks):
        one.end_idle()


os.register_at_fork(before=_before_fork)


class EndedBeforeForks(abc.ABC):
    """Connections that nobody sees. gRPC's threads must have ended before a fork (Client says more), so
    these are ended here."""

    def __init__(self) -> None:
        self._owner = Owner()
        _ended_before_forks.add(self)

    @abc.abstractmethod
    def end_idle(self) -> None:
        """Thread-safe."""
