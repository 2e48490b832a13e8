"""Append streams that stay open from call to call."""

from __future__ import annotations

import os
import threading
import time
import weakref
from typing import Callable, Dict, List, NamedTuple, Optional, Sequence

from sis import _errors
from sis._append import Source
from sis._append_streams.checked_entries import Entry
from sis._append_streams.server_append import ServerAppendStream
from sis._owner import Owner
from sis._records import SequenceRef

# Beyond these the one that was used longest ago is ended.
MOST_IDLE = 16
# Seconds after which another is opened, so that connections that are to end can.
MOST_SECONDS = 10.0


class _Kept(NamedTuple):
    source: Source
    stream: ServerAppendStream
    # On time.monotonic().
    opened: float


class KeptStreams:
    """Open streams to one server. A call has a stream for itself, so that it gets only the acks of its
    own entries. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # All is flushed; the one that was used last is last. Guarded by _lock.
        self._idle: List[_Kept] = []
        self._closed = False
        self._owner = Owner()
        _every.add(self)

    def append(
        self, source: Source, open_stream: Callable[[], ServerAppendStream], entries: Sequence[Entry]
    ) -> Dict[SequenceRef, int]:
        """The committed lengths, once all is stored. `open_stream` opens a stream for `source`.

        Raises what a stream's flush raises. But a stream that an earlier call has opened tells
        nothing of the server when it breaks: all is sent once more, over another.
        """
        kept = self._take(source)
        if kept is not None:
            try:
                return self._flushed(kept, entries)
            except (_errors.AppendError, _errors.DeadlineExceeded):
                raise
            except _errors.Error:
                if self._closed:
                    raise
        return self._flushed(_Kept(source, open_stream(), time.monotonic()), entries)

    def close(self) -> None:
        """Ends those that are idle; the others when their calls return."""
        # In a process that was forked the lock may be held for ever.
        if self._owner.here:
            self._closed = True
            self.end_idle()

    def end_idle(self) -> None:
        if not self._owner.here:
            return
        with self._lock:
            idle, self._idle = self._idle, []
        for kept in idle:
            kept.stream.abandon()

    def _flushed(self, kept: _Kept, entries: Sequence[Entry]) -> Dict[SequenceRef, int]:
        try:
            kept.stream.put(entries, at_once=True)
            committed = kept.stream.flush_untraced()
        except _errors.AppendError:
            self._keep(kept)
            raise
        except BaseException:
            kept.stream.abandon()
            raise
        self._keep(kept)
        return committed

    def _take(self, source: Source) -> Optional[_Kept]:
        with self._lock:
            own = [index for index, kept in enumerate(self._idle) if kept.source == source]
            if not own:
                return None
            kept = self._idle.pop(own[-1])
        if time.monotonic() - kept.opened < MOST_SECONDS:
            return kept
        kept.stream.abandon()
        return None

    def _keep(self, kept: _Kept) -> None:
        surplus: List[_Kept] = []
        with self._lock:
            self._idle.append(kept)
            while self._idle and (self._closed or len(self._idle) > MOST_IDLE):
                surplus.append(self._idle.pop(0))
        for one in surplus:
            one.stream.abandon()


_every: weakref.WeakSet[KeptStreams] = weakref.WeakSet()


def _before_fork() -> None:
    """Ends connections that nobody sees: gRPC's threads must have ended before a fork (Client says more)."""
    for streams in list(_every):
        streams.end_idle()


os.register_at_fork(before=_before_fork)
