"""An append stream over several replicas: one stream to each, opened when an entry needs it."""

from __future__ import annotations

import threading
import time
from concurrent import futures
from typing import Callable, Dict, List, Optional, Sequence, Tuple

from sis import _errors
from sis._append import AppendStream
from sis._append_streams.checked_entries import Entry
from sis._append_streams.server_append import ServerAppendStream
from sis._records import SequenceRef
from sis._run import RunConfig
from sis._servers.single_server import SingleServer


def by_replica(entries: Sequence[Entry], replica_of: Callable[[str], int]) -> Dict[int, List[Entry]]:
    """Returns the entries of each replica, in order. `replica_of` maps a sequence's name to its replica."""
    parts: Dict[int, List[Entry]] = {}
    for entry in entries:
        parts.setdefault(replica_of(entry.sequence.id), []).append(entry)
    return parts


class _Lane:
    """The stream to one replica. If it fails, its entries in flight are refused, and another stream is opened later."""

    def __init__(self, server: SingleServer, open_stream: Callable[[SingleServer], ServerAppendStream]) -> None:
        self._server = server
        self._open_stream = open_stream
        self._lock = threading.Lock()
        # Guarded by _lock. None: not opened yet, or failed.
        self._stream: Optional[ServerAppendStream] = None
        self._refused: List[_errors.Refusal] = []

    def put(self, entries: Sequence[Entry], at_once: bool) -> None:
        with self._lock:
            try:
                stream = self._opened()
            except _errors.Error as error:
                self._refused += [entry.refusal(error.code, error.message) for entry in entries]
                return
        began = time.monotonic()
        try:
            stream._put_checked(entries, at_once)
        except _errors.Error as error:
            self._broken(stream, error, began, entries)

    def flush(self) -> Tuple[Dict[SequenceRef, int], List[_errors.Refusal]]:
        """Returns the committed lengths and the refusals."""
        with self._lock:
            stream = self._stream
        committed: Dict[SequenceRef, int] = {}
        refused: List[_errors.Refusal] = []
        if stream is not None:
            began = time.monotonic()
            try:
                committed = stream._flush()
            except _errors.AppendError as error:
                refused += error.refused
            except _errors.Error as error:
                self._broken(stream, error, began)
        with self._lock:
            refused, self._refused = refused + self._refused, []
        return committed, refused

    def end(self) -> None:
        with self._lock:
            stream, self._stream = self._stream, None
        if stream is not None:
            stream.abandon()

    def _opened(self) -> ServerAppendStream:
        """Returns the stream. Needs _lock. Raises sis.Unavailable while the breaker pauses calls to the replica."""
        if self._stream is None:
            self._server.admit()
            self._stream = self._open_stream(self._server)
        return self._stream

    def _broken(
        self, stream: ServerAppendStream, error: _errors.Error, began: float, entries: Sequence[Entry] = ()
    ) -> None:
        if not _errors.is_away(error):
            raise error
        refused = stream.give_up(error, entries)
        with self._lock:
            self._refused += refused
            if self._stream is stream:
                self._stream = None
                if _errors.is_unreachable(error):
                    self._server.failed(error, began)


class ReplicatedAppendStream(AppendStream):
    """Sends each entry to the replica that has its sequence."""

    def __init__(
        self,
        config: RunConfig,
        replica_of: Callable[[str], int],
        servers: Sequence[SingleServer],
        open_stream: Callable[[SingleServer], ServerAppendStream],
        pool: futures.Executor,
    ) -> None:
        super().__init__(config)
        self._replica_of = replica_of
        self._lanes = [_Lane(server, open_stream) for server in servers]
        self._pool = pool
        # True once a stream was opened, for an entry or to check the header.
        self._opened = False

    def _check(self) -> None:
        self._owner.check("append stream")
        if self._closed:
            raise ValueError("the append stream is closed")

    def _put_checked(self, entries: Sequence[Entry], at_once: bool) -> None:
        self._check()
        self._opened = True
        parts = by_replica(entries, self._replica_of)
        if len(parts) == 1:
            ((index, part),) = parts.items()
            self._lanes[index].put(part, at_once)
            return
        calls = [self._pool.submit(self._lanes[index].put, part, at_once) for index, part in parts.items()]
        futures.wait(calls)
        for call in calls:
            call.result()

    def _flush(self) -> Dict[SequenceRef, int]:
        self._check()
        if not self._opened:
            # Otherwise no server would check the header.
            self._opened = True
            futures.wait([self._pool.submit(lane.put, [], at_once=False) for lane in self._lanes])
        committed: Dict[SequenceRef, int] = {}
        refused: List[_errors.Refusal] = []
        for flushed in [self._pool.submit(lane.flush) for lane in self._lanes]:
            of_one, refused_by_one = flushed.result()
            committed.update(of_one)
            refused += refused_by_one
        if refused:
            raise _errors.AppendError(refused)
        return committed

    def _break_off(self) -> None:
        self._closed = True
        for lane in self._lanes:
            lane.end()
