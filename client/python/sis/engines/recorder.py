"""Streams what an engine generates into the service, while it generates."""

from __future__ import annotations

import dataclasses
import itertools
import threading
import time
from typing import Any, Dict, Iterable, Iterator, List, Optional, Sequence, Tuple, Type, Union

import numpy as np

from sis import errors, ragged
from sis.append import AppendStream
from sis.client import Client
from sis.engines.adapter import Adapter, Piece, Told
from sis.engines.lists import stretches
from sis.entries import AppendEntry, Block, Seal, Truncate
from sis.outage import Outage
from sis.owner import Owner
from sis.records import SequenceRef
from sis.run import Run

# A caller that is so many positions ahead of the server waits.
MAX_WAITING = 1 << 16
# Of records that are made at once.
_PART_BYTES = 2 << 20


@dataclasses.dataclass
class _Sequence:
    attempt: int = 0
    # The position that comes next.
    length: int = 0
    # How many positions of the present request were taken; counts with outputs that repeat.
    of_request: int = 0


@dataclasses.dataclass
class _Work:
    """What is to be sent of one sequence, between two entries that are no block."""

    sequence: SequenceRef
    first_position: int
    policy_version: int
    pieces: List[Piece] = dataclasses.field(default_factory=list)
    # Of all pieces.
    positions: int = 0
    # After the pieces, and its length.
    then: Optional[Tuple[Type[Union[Seal, Truncate]], int]] = None


class Recorder:
    """Records the sequences that an engine generates. A context manager: leaving it sends and
    stores all that was added.

    `add` only notes an output; a thread of the recorder makes records of all that were noted, at
    once, every `interval` seconds, and sends them. So the committed lengths grow while requests
    run, and the engine's own thread or event loop pays next to nothing. Where the server makes
    appends wait, `add` waits too once 65,536 positions are noted.

    What the server refuses, or an engine's output that can't be a record, is raised by the next
    call; all else is recorded. A server that gives no answer is tried again for `retry_timeout`
    seconds. Then what it has not stored is given up, with one RuntimeWarning until it answers
    again, or an error of the flush that waits for it: those positions are MISSING to trainers, and
    generation goes on.

    Threads: every method may be called from any thread; the outputs of one sequence in their order.
    """

    def __init__(
        self,
        client: Client,
        run: Run,
        adapter: Adapter,
        *,
        policy_version: int = 0,
        worker: str = "",
        interval: float = 0.5,
        retry_timeout: float = 60.0,
        outage: Optional[Outage] = None,
    ) -> None:
        """policy_version: of the weights that the engine has. worker: as in Client.append. interval,
        retry_timeout: seconds, as above. outage: of a caller that warns of outages itself, so that
        there is one warning."""
        self._client = client
        self._run = run
        self._adapter = adapter
        self._worker = worker
        self._interval = interval
        self._retry_timeout = retry_timeout
        self._outage = outage or Outage()
        # Of the writer, until that has ended. None: to be opened.
        self._stream: Optional[AppendStream] = self._open()
        self._owner = Owner()
        self._changed = threading.Condition()
        # All below is guarded by _changed.
        self._policy_version = policy_version
        # Those that are open, and those that were tried again.
        self._sequences: Dict[str, _Sequence] = {}
        # In the order in which it is to be sent, and the last of each sequence in it.
        self._work: List[_Work] = []
        self._last: Dict[str, _Work] = {}
        self._waiting = 0
        self._writing = False
        self._flush_wanted = False
        self._committed: Dict[SequenceRef, int] = {}
        self._failure: Optional[Exception] = None
        self._closed = False
        self._writer = threading.Thread(target=self._write, name="sis-recorder", daemon=True)
        self._writer.start()

    @property
    def policy_version(self) -> int:
        return self._policy_version

    @policy_version.setter
    def policy_version(self, version: int) -> None:
        """To be set when the engine has the new weights and every output of the old ones was added:
        what is added from now on is of this version."""
        with self._mine():
            self._policy_version = version

    @property
    def must_wait(self) -> bool:
        """Whether `add` would wait for the server."""
        return self._waiting >= MAX_WAITING

    def add(self, sequence: str, output: Any, *, more: bool = False) -> None:
        """Notes what the engine has returned for a sequence: its first output or the next one.

        An output that says that its request has finished seals the sequence, unless `more` is to
        come: another turn of an agent, after what a tool wrote (`skip`). After one that was aborted
        it stays open: a further request, whose prompt holds what was generated, goes on where it
        ended; or see `truncate` and `retry`.
        """
        told = self._adapter.told([output])[0]
        with self._mine():
            self._admit()
            self._note(sequence, output, told, more)

    def add_many(self, outputs: Iterable[Tuple[str, Any]]) -> None:
        """As `add` of these pairs of a sequence and an output one by one, but for less of this
        process's time: of what a step of the engine returned, say. ValueError if one of them can't be
        read; then none is noted."""
        pairs = list(outputs)
        told = self._adapter.told([output for _, output in pairs])
        with self._mine():
            self._admit()
            for (sequence, output), of_output in zip(pairs, told):
                self._note(sequence, output, of_output, False)

    def skip(self, sequence: str, positions: int) -> None:
        """Leaves positions without records: tokens that the policy did not generate, such as what a
        tool wrote. What is added next comes after them; the trainer's mask has a 0 there."""
        with self._mine():
            self._check()
            state = self._sequences.setdefault(sequence, _Sequence())
            state.length, state.of_request = state.length + positions, 0

    def truncate(self, sequence: str, length: int = 0) -> None:
        """Drops the positions of a sequence from `length` on, after its request was aborted. What
        is added next has that position."""
        with self._mine():
            self._check()
            state = self._sequences.setdefault(sequence, _Sequence())
            state.length, state.of_request = length, 0
            self._work_of(sequence, state).then = (Truncate, length)

    def retry(self, sequence: str) -> SequenceRef:
        """Begins another attempt at a sequence. What was recorded of those before stays theirs.
        Returns the name that trainers fetch it by."""
        with self._mine():
            self._check()
            attempt = self._sequences.get(sequence, _Sequence()).attempt + 1
            self._sequences[sequence] = _Sequence(attempt)
            self._last.pop(sequence, None)
        return SequenceRef(sequence, attempt)

    def forget(self, sequence: str) -> None:
        """Frees what the recorder itself keeps of a sequence that no call will name again: one that
        stays open, or was tried again. Others it forgets once they are sealed."""
        with self._mine():
            self._sequences.pop(sequence, None)
            self._last.pop(sequence, None)

    def flush(self) -> Dict[SequenceRef, int]:
        """Sends all that was added, and waits until it is stored. Returns the committed length of
        every sequence that grew since the last call."""
        with self._mine():
            self._flush_wanted = True
            self._changed.notify_all()
            while (self._work or self._writing or self._flush_wanted) and self._failure is None:
                self._changed.wait()
            self._check()
            committed, self._committed = self._committed, {}
        return committed

    def close(self) -> None:
        """Flushes, and ends the recorder. Raises what flush raises; it is closed even then.
        Idempotent."""
        self._owner.check("recorder")
        if self._closed:
            return
        try:
            self.flush()
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Ends the recorder at once; what was not flushed may or may not be stored."""
        if not self._owner.here:
            return
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        stream = self._stream
        if stream is not None:
            stream.abandon()
        self._writer.join()

    def __enter__(self) -> Recorder:
        return self

    def __exit__(self, exception_type: Optional[type], *_: object) -> None:
        if exception_type is None:
            self.close()
        else:
            self.abandon()

    def _mine(self) -> threading.Condition:
        """To be held by every call. In a process that was forked nobody writes, and the lock may be
        held for ever."""
        self._owner.check("recorder")
        return self._changed

    # The methods below are called with _changed held, but for _write and _send.

    def _admit(self) -> None:
        """Waits where the server makes appends wait."""
        self._check()
        while self.must_wait:
            self._flush_wanted = True
            self._changed.notify_all()
            self._changed.wait()
            self._check()

    def _note(self, sequence: str, output: Any, told: Told, more: bool) -> None:
        count, ended = told
        state = self._sequences.get(sequence)
        if state is None:
            state = self._sequences[sequence] = _Sequence()
        start = state.of_request if self._adapter.cumulative else 0
        added = count - start
        if added > 0:
            work = self._work_of(sequence, state)
            pieces = work.pieces
            if start > 0 and pieces and pieces[-1].stop == start:
                # The later output holds what the earlier one does.
                pieces[-1] = Piece(output, pieces[-1].start, count)
            else:
                pieces.append(Piece(output, start, count))
            work.positions += added
            self._waiting += added
            state.length += added
        state.of_request = 0 if ended else max(count, start)
        if ended == "finished" and not more:
            self._work_of(sequence, state).then = (Seal, state.length)
            # Nothing comes after it but another attempt.
            del self._sequences[sequence]
            if state.attempt:
                self._sequences[sequence] = _Sequence(state.attempt)

    def _check(self) -> None:
        if self._closed:
            raise ValueError("the recorder is closed")
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure

    def _work_of(self, sequence: str, state: _Sequence) -> _Work:
        """Where the next positions of a sequence go."""
        last = self._last.get(sequence)
        if (
            last is None
            or last.then is not None
            or last.policy_version != self._policy_version
            or last.first_position + last.positions != state.length
        ):
            reference = SequenceRef(sequence, state.attempt)
            last = self._last[sequence] = _Work(reference, state.length, self._policy_version)
            self._work.append(last)
        return last

    def _write(self) -> None:
        """Of the thread."""
        unsent: List[_Work] = []
        down_since: Optional[float] = None
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closed or self._flush_wanted and not unsent, self._interval)
                if self._closed:
                    return
                work, self._work, self._last, self._waiting = unsent + self._work, [], {}, 0
                flushing, self._flush_wanted = self._flush_wanted, False
                self._writing = bool(work) or flushing
                if not self._writing:
                    continue
                self._changed.notify_all()
            unsent = []
            failure: Optional[Exception] = None
            committed: Dict[SequenceRef, int] = {}
            try:
                if self._stream is None:
                    self._stream = self._open()
                failure = self._send(work)
                committed = self._stream.flush()
                down_since = None
                self._outage.succeeded("store")
            except Exception as error:  # Any: the caller's next call raises it.
                failure = failure or error
                if _is_down(error):
                    if self._stream is not None:
                        self._stream.abandon()
                        self._stream = None
                    down_since = down_since or time.monotonic()
                    if time.monotonic() - down_since < self._retry_timeout:
                        failure, unsent = None, work
                    elif not flushing:
                        failure = self._give_up(work, error)
            with self._changed:
                self._writing = False
                # A flush goes on until what is left is stored, or given up.
                self._flush_wanted = self._flush_wanted or flushing and bool(unsent)
                self._waiting += sum(item.positions for item in unsent)
                self._committed.update(committed)
                if not self._closed:
                    self._failure = self._failure or failure
                self._changed.notify_all()

    def _give_up(self, work: List[_Work], error: Exception) -> Optional[Exception]:
        """The warning, where such are errors."""
        lost = sum(item.positions for item in work)
        try:
            self._outage.lost("store", f"recorder: {lost} positions were not stored: {error}")
        except RuntimeWarning as warning:
            return warning
        return None

    def _open(self) -> AppendStream:
        return self._client.append(self._run, sampling=self._adapter.sampling, worker=self._worker)

    def _send(self, work: List[_Work]) -> Optional[Exception]:
        """In parts that stay in the processor's caches. Returns what is wrong with it."""
        failure: Optional[Exception] = None
        most = _PART_BYTES // (8 * (1 + self._run.config.top_k))
        part: List[_Work] = []
        positions = 0
        for item in work:
            part.append(item)
            positions += item.positions
            if positions >= most or item is work[-1]:
                found = self._send_part(part)
                failure = failure or found
                part, positions = [], 0
        return failure

    def _send_part(self, work: List[_Work]) -> Optional[Exception]:
        """All of it at once; if that fails, each by itself, so that one bad output costs nothing
        but itself. Returns what is wrong with it."""
        failure: Optional[Exception] = None
        try:
            self._send_together(work)
        except ValueError as error:
            failure = error
        if failure is not None and len(work) > 1:
            failures = [self._send_part([item]) for item in work]
            failure = next((error for error in failures if error is not None), None)
        return failure

    def _send_together(self, work: List[_Work]) -> None:
        # Of each item: the first and last position of its blocks, counted from its own first.
        parts: List[List[Tuple[int, int]]] = [[(0, item.positions)] if item.positions else [] for item in work]
        columns = None
        if any(parts):
            columns = self._adapter.columns([piece for item in work for piece in item.pieces])
            if columns.present is not None:
                ends = np.cumsum([item.positions for item in work])
                parts = [
                    stretches(columns.present[end - item.positions : end])
                    for item, end in zip(work, ends.tolist())
                ]
        lengths = [last - first for part in parts for first, last in part]
        # Where the server can read it if it shares memory.
        record: Sequence[np.ndarray] = ()
        if columns is not None:
            out = self._client.empty_top_k(self._run, sum(lengths))
            record = columns.record(self._run.config.top_k, out)
        blocks = self._blocks(record, lengths)
        entries: List[AppendEntry] = []
        for item, part in zip(work, parts):
            name, attempt = item.sequence
            for first, _ in part:
                *arrays, counts = next(blocks)
                position = item.first_position + first
                entries.append(Block(name, position, item.policy_version, *arrays, attempt, counts))
            if item.then is not None:
                entry, length = item.then
                entries.append(entry(name, length, attempt))
        assert self._stream is not None
        self._stream.append_many(entries)

    def _blocks(self, record: Sequence[np.ndarray], lengths: Sequence[int]) -> Iterator[Sequence[Any]]:
        """The arrays of blocks of so many rows, counts or None at last: what travels goes without what
        the run's mass leaves out, of all at once as each is short."""
        ends = list(itertools.accumulate(lengths))
        config = self._run.config
        if ragged.pays(config) and record and not self._client._shares(record[2]):
            for arrays in ragged.cut_each(record, ends, config.mass):
                yield arrays if len(arrays) == 5 else [*arrays, None]
            return
        for begin, end in zip([0, *ends], ends):
            yield [*(array[begin:end] for array in record), None]


def _is_down(error: Exception) -> bool:
    """Whether a server, or the only replica that was asked, gives no answer."""
    refused = error.refused if isinstance(error, errors.AppendError) else [error]
    return all(isinstance(one, (errors.Error, errors.Refusal)) and errors.is_unreachable(one) for one in refused)
