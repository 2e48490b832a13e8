"""An append stream to one server."""

from __future__ import annotations

import collections
import dataclasses
import queue
import threading
import time
from typing import Callable, Deque, Dict, Iterator, List, Optional, Sequence, Tuple

import grpc

from sis import append, errors
from sis.append import AppendStream, PlacedArrays
from sis.records import SequenceRef
from sis.segment import Segment
from sis.v1 import ratio_service_pb2 as pb
from sis.v1 import ratio_service_pb2_grpc

# Entries are sent together once they hold so many bytes.
BATCH_BYTES = 256 << 10
# Batches sent and not acked yet; a caller that is further ahead waits.
MAX_IN_FLIGHT = 8
# What an entry refused without a delay waits at least, in seconds, so that a full server is not
# hammered.
MIN_RETRY_SECONDS = 0.02


@dataclasses.dataclass(eq=False)
class _Entry:
    """An entry that is not acked for good yet."""

    message: pb.AppendEntry
    # Kept, so that their memory is not used again before the server has read it.
    placed: Optional[PlacedArrays] = None
    # Set by the first refusal for lack of room, on time.monotonic().
    retry_until: Optional[float] = None

    @property
    def size(self) -> int:
        """Bytes that the server has to read for it."""
        arrays = () if self.placed is None else self.placed.arrays
        return self.message.ByteSize() + sum(array.nbytes for array in arrays)

    @property
    def segment(self) -> Optional[str]:
        """The one that holds the arrays; "" if the message holds them, None if there are none."""
        if not self.message.HasField("block"):
            return None
        return "" if self.placed is None else self.placed.segment.name

    def refusal(self, code: grpc.StatusCode, message: str) -> errors.Refusal:
        kind = self.message.WhichOneof("entry")
        entry = getattr(self.message, kind)
        if kind == "block":
            rows = len(entry.sampled_ids) // 4 if self.placed is None else len(self.placed.arrays[0])
            text = f"block [{entry.first_position}, {entry.first_position + rows})"
        else:
            text = f"{kind} {'to' if kind == 'truncate' else 'at'} {entry.length}"
        return errors.Refusal(entry.sequence.id, entry.sequence.attempt, text, code, message)


def refusal(message: pb.AppendEntry, error: errors.Error) -> errors.Refusal:
    """That of an entry which was not sent, because of `error`."""
    return _Entry(message).refusal(error.code, error.message)


def _batches(entries: Sequence[_Entry]) -> Iterator[Tuple[str, List[_Entry]]]:
    """In order, each with the segment that all its arrays lie in, or "" if they are in the
    message."""
    segment: Optional[str] = None
    batch: List[_Entry] = []
    for entry in entries:
        if None not in (segment, entry.segment) and segment != entry.segment:
            yield segment or "", batch
            segment, batch = None, []
        segment = entry.segment if segment is None else segment
        batch.append(entry)
    if batch:
        yield segment or "", batch


class ServerAppendStream(AppendStream):
    """Batches entries and matches acks with them."""

    def __init__(
        self,
        stub: ratio_service_pb2_grpc.RatioServiceStub,
        top_k: int,
        header: pb.AppendHeader,
        timeout: Optional[float],
        retry_timeout: float,
        segments: Callable[[], Sequence[Segment]] = tuple,
    ) -> None:
        super().__init__(top_k, segments)
        self._timeout = timeout
        self._retry_timeout = retry_timeout
        self._changed = threading.Condition()
        # All below is guarded by _changed.
        self._pending: List[_Entry] = []
        self._pending_bytes = 0
        self._in_flight: Deque[Tuple[float, List[_Entry]]] = collections.deque()
        self._waiting_for_room: List[Tuple[float, _Entry]] = []
        self._refused: List[errors.Refusal] = []
        self._committed: Dict[SequenceRef, int] = {}
        self._failure: Optional[errors.Error] = None
        # Whether the server has answered something, and so taken the header.
        self._answered = False

        self._requests: queue.SimpleQueue[Optional[pb.AppendRequest]] = queue.SimpleQueue()
        self._requests.put(pb.AppendRequest(header=header))
        self._call = stub.Append(iter(self._requests.get, None))
        self._reader = threading.Thread(target=self._read_acks, name="sis-append-acks", daemon=True)
        self._reader.start()

    def put(self, message: pb.AppendEntry, placed: Optional[PlacedArrays] = None) -> None:
        self._owner.check("append stream")
        entry = _Entry(message, placed)
        with self._changed:
            if message.HasField("truncate"):
                self._drain()
            self._check()
            self._pending.append(entry)
            self._pending_bytes += entry.size
            if self._pending_bytes >= BATCH_BYTES:
                self._send_pending()

    def flush(self) -> Dict[SequenceRef, int]:
        self._owner.check("append stream")
        with self._changed:
            self._drain()
            if not self._answered:
                # An empty batch: its answer, or that there is none, tells about the header.
                self._send_batch([], "")
                self._drain()
            committed, self._committed = self._committed, {}
            refused, self._refused = self._refused, []
        if refused:
            raise errors.AppendError(refused)
        return committed

    def unflushed(self) -> int:
        with self._changed:
            in_flight = sum(len(entries) for _, entries in self._in_flight)
            waiting = len(self._waiting_for_room) + len(self._pending)
            return in_flight + waiting + len(self._refused)

    def _end(self) -> None:
        with self._changed:
            self._closed = True
        self._requests.put(None)
        self._reader.join(self._timeout)
        self._call.cancel()

    def _break_off(self) -> None:
        with self._changed:
            self._closed = True
            self._leave_arrays()
        self._call.cancel()
        self._reader.join(self._timeout)

    def give_up(self, error: errors.Error, message: Optional[pb.AppendEntry] = None) -> List[errors.Refusal]:
        """After `error`, which a flush or the call with `message` raised: all entries that were
        refused or got no ack.

        The latter are refused with `error`, `message` among them.
        """
        with self._changed:
            unacked = [entry for _, entries in self._in_flight for entry in entries]
            unacked += [entry for _, entry in self._waiting_for_room] + self._pending
            self._in_flight.clear()
            self._waiting_for_room, self._pending, self._pending_bytes = [], [], 0
            refused, self._refused = self._refused, []
        if message is not None and all(entry.message is not message for entry in unacked):
            unacked.append(_Entry(message))
        return refused + [entry.refusal(error.code, error.message) for entry in unacked]

    # The methods below are called with _changed held, but for _read_acks.

    def _check(self) -> None:
        if self._failure is not None:
            append.ended(self)
            raise self._failure
        if self._closed:
            raise ValueError("the append stream is closed")

    def _send(self, entries: List[_Entry]) -> None:
        for segment, part in _batches(entries):
            self._send_batch(part, segment)

    def _send_batch(self, entries: List[_Entry], segment: str) -> None:
        self._in_flight.append((time.monotonic(), entries))
        batch = pb.AppendBatch(entries=[entry.message for entry in entries], segment=segment)
        self._requests.put(pb.AppendRequest(batch=batch))

    def _leave_arrays(self) -> None:
        """To the server, which may still be reading what was sent to it."""
        for _, entries in self._in_flight:
            for entry in entries:
                if entry.placed is not None:
                    entry.placed.segment.abandon(entry.placed.arrays)

    def _send_pending(self) -> None:
        self._wait_until(lambda: not self._waiting_for_room and len(self._in_flight) < MAX_IN_FLIGHT)
        # Another thread may have sent them while this one waited.
        if self._pending:
            self._send(self._pending)
            self._pending, self._pending_bytes = [], 0

    def _drain(self) -> None:
        self._send_pending()
        self._wait_until(lambda: not self._in_flight and not self._waiting_for_room)

    def _wait_until(self, done: Callable[[], bool]) -> None:
        """Waits for acks, and meanwhile sends again what waits for room: no thread of its own does
        that."""
        while True:
            self._check()
            if done():
                return
            now = time.monotonic()
            due = [entry for when, entry in self._waiting_for_room if when <= now]
            if due:
                self._waiting_for_room = [item for item in self._waiting_for_room if item[0] > now]
                self._send(due)
            wake = [when for when, _ in self._waiting_for_room]
            if self._in_flight and self._timeout is not None:
                expires = self._in_flight[0][0] + self._timeout
                if expires <= now:
                    self._fail(grpc.StatusCode.DEADLINE_EXCEEDED, f"no ack within {self._timeout} s")
                    continue
                wake.append(expires)
            self._changed.wait(min(wake) - now if wake else None)

    def _fail(self, code: grpc.StatusCode, message: str) -> None:
        self._failure = self._failure or errors.from_status(code, message)
        self._leave_arrays()
        self._call.cancel()
        self._changed.notify_all()

    def _settle(self, entries: List[_Entry], response: pb.AppendResponse) -> None:
        if len(entries) != len(response.acks):
            self._fail(
                grpc.StatusCode.INTERNAL, f"{len(response.acks)} acks for a batch of {len(entries)} entries"
            )
            return
        now = time.monotonic()
        for entry, ack in zip(entries, response.acks):
            if ack.code == 0:
                self._committed[SequenceRef(ack.sequence.id, ack.sequence.attempt)] = ack.committed_length
                continue
            if errors.status_code(ack.code) is grpc.StatusCode.RESOURCE_EXHAUSTED:
                if entry.retry_until is None:
                    entry.retry_until = now + self._retry_timeout
                again = now + max(ack.retry_seconds, MIN_RETRY_SECONDS)
                if again <= entry.retry_until:
                    self._waiting_for_room.append((again, entry))
                    continue
            self._refused.append(entry.refusal(errors.status_code(ack.code), ack.message))

    def _read_acks(self) -> None:
        code, message = grpc.StatusCode.UNAVAILABLE, "the server ended the append stream"
        try:
            for response in self._call:
                with self._changed:
                    if not self._in_flight:
                        self._fail(grpc.StatusCode.INTERNAL, "an ack without a batch")
                        return
                    self._answered = True
                    # Not kept in a variable: acked arrays are the caller's alone.
                    self._settle(self._in_flight.popleft()[1], response)
                    self._changed.notify_all()
        except grpc.RpcError as error:
            code, message = error.code(), error.details() or ""
        finally:
            # Ends the thread in which grpcio reads the requests.
            self._requests.put(None)
        with self._changed:
            if not self._closed:
                self._fail(code, message)
