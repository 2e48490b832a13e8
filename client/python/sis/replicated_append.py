"""An append stream over several replicas: one stream to each, opened when an entry needs it."""

from __future__ import annotations

import threading
import time
from concurrent import futures
from typing import Callable, Dict, List, Optional, Sequence

from sis import errors
from sis.append import AppendStream, PlacedArrays
from sis.records import SequenceRef
from sis.server_append import ServerAppendStream
from sis.v1 import ratio_service_pb2 as pb

# After a replica has failed, its entries are refused for so many seconds before it is asked again.
RETRY_SECONDS = 1.0


class _Lane:
    """The stream to one replica. When it breaks, what was under way is refused, and later another is opened."""

    def __init__(self, open_stream: Callable[[], ServerAppendStream]) -> None:
        self._open_stream = open_stream
        self._lock = threading.Lock()
        # Guarded by _lock.
        self._stream: Optional[ServerAppendStream] = None
        # On time.monotonic(), once the stream is broken.
        self._reopen_at: Optional[float] = None
        self._refused: List[errors.Refusal] = []

    def put(self, message: pb.AppendEntry) -> None:
        with self._lock:
            if self._stream is None or (self._reopen_at is not None and time.monotonic() >= self._reopen_at):
                self._stream, self._reopen_at = self._open_stream(), None
            stream = self._stream
        try:
            stream.put(message)
        except errors.Error as error:
            self._broken(stream, error, message)

    def flush(self) -> Dict[SequenceRef, int]:
        """The committed lengths. sis.AppendError lists what was refused."""
        with self._lock:
            stream = None if self._reopen_at is not None else self._stream
        committed: Dict[SequenceRef, int] = {}
        refused: List[errors.Refusal] = []
        if stream is not None:
            try:
                committed = stream.flush()
            except errors.AppendError as error:
                refused += error.refused
            except errors.Error as error:
                self._broken(stream, error)
        with self._lock:
            refused, self._refused = refused + self._refused, []
        if refused:
            raise errors.AppendError(refused)
        return committed

    def end(self) -> None:
        with self._lock:
            stream, self._stream = self._stream, None
        if stream is not None:
            stream.abandon()

    def _broken(
        self, stream: ServerAppendStream, error: errors.Error, message: Optional[pb.AppendEntry] = None
    ) -> None:
        if not errors.is_unreachable(error):
            raise error
        refused = stream.give_up(error, message)
        with self._lock:
            self._refused += refused
            if self._stream is stream and self._reopen_at is None:
                self._reopen_at = time.monotonic() + RETRY_SECONDS


class ReplicatedAppendStream(AppendStream):
    """Sends each entry to the replica that has its sequence."""

    def __init__(
        self,
        top_k: int,
        replica_of: Callable[[str], int],
        open_streams: Sequence[Callable[[], ServerAppendStream]],
        pool: futures.Executor,
    ) -> None:
        super().__init__(top_k)
        self._replica_of = replica_of
        self._lanes = [_Lane(open_stream) for open_stream in open_streams]
        self._pool = pool
        self._closed = False

    def put(self, message: pb.AppendEntry, placed: Optional[PlacedArrays] = None) -> None:
        """`placed` is None: replicas share no segments."""
        if self._closed:
            raise ValueError("the append stream is closed")
        entry = getattr(message, message.WhichOneof("entry"))
        self._lanes[self._replica_of(entry.sequence.id)].put(message)

    def flush(self) -> Dict[SequenceRef, int]:
        committed: Dict[SequenceRef, int] = {}
        refused: List[errors.Refusal] = []
        for flushed in [self._pool.submit(lane.flush) for lane in self._lanes]:
            try:
                committed.update(flushed.result())
            except errors.AppendError as error:
                refused += error.refused
        if refused:
            raise errors.AppendError(refused)
        return committed

    def close(self) -> None:
        if self._closed:
            return
        try:
            self.flush()
        finally:
            self.abandon()

    def abandon(self) -> None:
        self._closed = True
        for lane in self._lanes:
            lane.end()
