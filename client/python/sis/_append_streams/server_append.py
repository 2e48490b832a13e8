"""An append stream to one server."""

from __future__ import annotations

import collections
import queue
import random
import threading
import time
from typing import Any, Callable, Deque, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple

import grpc

from sis import _errors, _owner
from sis._append import AppendStream, Source
from sis._append_streams.checked_entries import Entry, append_request
from sis._records import SequenceRef
from sis.v1 import ratio_service_pb2 as pb

# Bytes and number of entries of small calls that are sent together. The server works on each batch while
# the next one is made.
BATCH_BYTES = 256 << 10
BATCH_ENTRIES = 1024
# Approximate bytes of a message of a large call. Large messages cost less: one of 4 MiB takes half the time
# of sixteen of 256 KiB.
MESSAGE_BYTES = 2 << 20
# Maximum number of unacked batches, and of their bytes. Beyond it callers wait.
MAX_IN_FLIGHT = 8
MAX_BYTES_IN_FLIGHT = 4 << 20
# Shortest wait of an entry that was refused without a delay, in seconds. It spares a full server.
MIN_RETRY_SECONDS = 0.02
# The delay doubles with each further refusal of an entry, at most this many times.
MAX_DOUBLINGS = 3


class _Batch(NamedTuple):
    """A batch that was sent but not acked yet."""

    # On time.monotonic().
    sent: float
    entries: Sequence[Entry]
    size: int


def _take(entries: List[Entry]) -> _Batch:
    """Removes the entries of one message from the front of `entries`."""
    size, count = 0, 0
    while count < min(len(entries), BATCH_ENTRIES) and size < MESSAGE_BYTES:
        size += entries[count].size
        count += 1
    batch = _Batch(time.monotonic(), entries[:count], size)
    del entries[:count]
    return batch


class ServerAppendStream(AppendStream):
    """Sends entries in batches, and matches acks with them."""

    def __init__(self, call: Callable[[Iterator[bytes]], grpc.Call], source: Source, timeout: Optional[float]) -> None:
        """`call`: Append."""
        super().__init__(source.run.config)
        self._timeout = timeout
        self._retry_timeout = source.retry_timeout
        self._changed = threading.Condition()
        # _changed guards everything below.
        self._pending: List[Entry] = []
        self._pending_bytes = 0
        self._in_flight: Deque[_Batch] = collections.deque()
        # Refused entries, with the time to resend them.
        self._waiting_for_room: List[Tuple[float, Entry]] = []
        self._refused: List[_errors.Refusal] = []
        self._committed: Dict[SequenceRef, int] = {}
        self._failure: Optional[_errors.Error] = None
        # True once the server has answered anything, which means that it accepted the header.
        self._answered = False

        self._requests: queue.SimpleQueue[Optional[bytes]] = queue.SimpleQueue()
        self._requests.put(pb.AppendRequest(header=source.header()).SerializeToString())
        self._call: Any = call(iter(self._requests.get, None))
        self._reader = threading.Thread(target=self._read_acks, name="sis-append-acks", daemon=True)
        self._reader.start()

    def _put_checked(self, entries: Sequence[Entry], at_once: bool) -> None:
        self._owner.check("append stream")
        with self._changed:
            self._check()
            self._pending += entries
            self._pending_bytes += sum(entry.size for entry in entries)
            if at_once or self._pending_bytes >= BATCH_BYTES or len(self._pending) >= BATCH_ENTRIES:
                self._send_pending()

    def _flush(self) -> Dict[SequenceRef, int]:
        self._owner.check("append stream")
        with self._changed:
            self._drain()
            if not self._answered:
                # The answer to an empty batch, or its absence, shows whether the header was accepted.
                self._send(_take([]))
                self._drain()
            committed, self._committed = self._committed, {}
            refused, self._refused = self._refused, []
        if refused:
            raise _errors.AppendError(refused)
        return committed

    def _break_off(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._call.cancel()
        self._reader.join(self._timeout)
        _owner.call_ended()

    def give_up(self, error: _errors.Error, entries: Sequence[Entry] = ()) -> List[_errors.Refusal]:
        """Ends the stream after `error`, which a flush or the call with `entries` raised.

        Returns:
            All refused entries, and all unacked ones, refused with `error`; includes `entries`.
        """
        with self._changed:
            unacked = [entry for batch in self._in_flight for entry in batch.entries]
            unacked += [entry for _, entry in self._waiting_for_room] + self._pending
            self._in_flight.clear()
            self._waiting_for_room = []
            self._pending, self._pending_bytes = [], 0
            refused, self._refused = self._refused, []
        known = set(unacked)
        unacked += [entry for entry in entries if not entry.answered and entry not in known]
        return refused + [entry.refusal(error.code, error.message) for entry in unacked]

    # The methods below need _changed, except _read_acks.

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure
        if self._closed:
            raise ValueError("the append stream is closed")

    def _send(self, batch: _Batch) -> None:
        self._in_flight.append(batch)
        self._requests.put(append_request(batch.entries))

    def _send_pending(self) -> None:
        while self._pending:
            self._wait_until(self._may_send)
            # Another thread may have sent them while this one waited.
            batch = _take(self._pending)
            self._pending_bytes -= batch.size
            self._send(batch)

    def _may_send(self) -> bool:
        in_flight = sum(batch.size for batch in self._in_flight)
        return not self._waiting_for_room and len(self._in_flight) < MAX_IN_FLIGHT and in_flight < MAX_BYTES_IN_FLIGHT

    def _drain(self) -> None:
        self._send_pending()
        self._wait_until(lambda: not self._in_flight and not self._waiting_for_room)

    def _wait_until(self, done: Callable[[], bool]) -> None:
        """Waits for acks. Also resends refused entries in time, because no other thread does."""
        while True:
            self._check()
            if done():
                return
            now = time.monotonic()
            due = [entry for when, entry in self._waiting_for_room if when <= now]
            if due:
                self._waiting_for_room = [item for item in self._waiting_for_room if item[0] > now]
                while due:
                    self._send(_take(due))
            wake = [when for when, _ in self._waiting_for_room]
            if self._in_flight and self._timeout is not None:
                expires = self._in_flight[0].sent + self._timeout
                if expires <= now:
                    late = grpc.StatusCode.DEADLINE_EXCEEDED
                    self._fail(_errors.from_status(late, f"no ack within {self._timeout} s"))
                    continue
                wake.append(expires)
            self._changed.wait(min(wake) - now if wake else None)

    def _fail(self, error: _errors.Error) -> None:
        self._failure = self._failure or error
        self._call.cancel()
        self._changed.notify_all()

    def _settle(self, batch: _Batch, response: pb.AppendResponse) -> None:
        if len(batch.entries) != len(response.acks):
            wrong = f"{len(response.acks)} acks for a batch of {len(batch.entries)} entries"
            self._fail(_errors.from_status(grpc.StatusCode.INTERNAL, wrong))
            return
        for entry, ack in zip(batch.entries, response.acks):
            code = ack.code
            if code == 0:
                self._committed[entry.sequence] = ack.committed_length
                entry.answered = True
            elif not self._wait_for_room(entry, ack):
                self._refused.append(entry.refusal(_errors.status_code(code), ack.message))
                entry.answered = True

    def _wait_for_room(self, entry: Entry, ack: pb.Ack) -> bool:
        """Returns True if a refused entry will be resent."""
        if _errors.status_code(ack.code) is not grpc.StatusCode.RESOURCE_EXHAUSTED:
            return False
        now = time.monotonic()
        if entry.retry_until is None:
            entry.retry_until = now + self._retry_timeout
        delay = max(ack.retry_seconds, MIN_RETRY_SECONDS) * 2 ** min(entry.refusals, MAX_DOUBLINGS)
        # Random, so that workers don't all resend at the same time.
        again = now + delay * random.uniform(1.0, 1.25)
        entry.refusals += 1
        if again > entry.retry_until:
            return False
        self._waiting_for_room.append((again, entry))
        return True

    def _read_acks(self) -> None:
        failure = _errors.from_status(grpc.StatusCode.UNAVAILABLE, "the server ended the append stream")
        try:
            for response in self._call:
                with self._changed:
                    if not self._in_flight:
                        self._fail(_errors.from_status(grpc.StatusCode.INTERNAL, "an ack without a batch"))
                        return
                    self._answered = True
                    self._settle(self._in_flight.popleft(), response)
                    self._changed.notify_all()
        except grpc.RpcError as error:
            failure = _errors.from_rpc(error)
        finally:
            # Ends the thread in which grpcio reads the requests.
            self._requests.put(None)
        with self._changed:
            if not self._closed:
                self._fail(failure)
