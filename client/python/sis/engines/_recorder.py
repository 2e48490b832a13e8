"""Streams what an engine generates into the service, while it generates."""

from __future__ import annotations

import bisect
import collections
import dataclasses
import itertools
import threading
import time
import warnings
from typing import Any, Dict, Iterable, List, NamedTuple, Optional, Sequence, Set, Tuple, Union

from sis import _errors
from sis._append import AppendStream
from sis._client import Client
from sis.engines._adapter import (
    Adapter, Fault, MalformedOutput, Piece, Told, entries_of, ranges_within, reasons_of, text_of,
)  # fmt: skip
from sis.engines._labels import ASK_AFTER, Labels, Work
from sis._entries import AppendEntry, Gap, Seal
from sis._outage import Outage
from sis._owner import ClosesItself, Owner
from sis._records import MissingReason, SequenceRef
from sis._run import Run
from sis._top_k import TopK

# A caller that is so many positions ahead of the server waits.
MAX_WAITING = 1 << 16
# Size of the records that are made at once, in bytes.
_PART_BYTES = 2 << 20
# An error names so many malformed outputs.
_MAX_NAMED = 20


@dataclasses.dataclass
class _Sequence:
    attempt: int = 0
    # The position that comes next.
    length: int = 0
    # How many positions of the present request were taken.
    of_request: int = 0
    # Whether an output had an unknown number of positions: those of later ones are then unknown.
    given_up: bool = False


class _Found(NamedTuple):
    """Something wrong with the output of an engine."""

    sequence: SequenceRef
    text: str
    # None: the output is malformed, or contradicts the caller.
    reason: Optional[MissingReason] = None


@dataclasses.dataclass
class _Outcome:
    """Counts of what one round of the writer sends, valid once it is stored."""

    unusable: collections.Counter[Tuple[SequenceRef, MissingReason]] = dataclasses.field(
        default_factory=collections.Counter
    )
    found: List[_Found] = dataclasses.field(default_factory=list)


class Recorder(ClosesItself):
    """Records the sequences that an engine generates. A context manager: leaving it sends and
    stores all that was added.

    `add` only notes an output; a thread of the recorder makes records of all that were noted, at
    once, every `interval` seconds, and sends them. So the committed lengths grow while requests
    run, and the engine's own thread or event loop pays next to nothing. Where the server
    has no room, `add` waits too once 65,536 positions are noted.

    Each position is recorded with the version of the weights that the engine names for it. A decimal
    number is that version. Other text is a label, which the trainer announces with
    Client.advance_version; positions wait for it `retry_timeout` seconds at most, and no more than
    32,768 positions wait. `policy_version` is for engines that name no weights. If an engine's name
    stands for another version, the output is malformed.

    A position of unknown weights, or without a usable log-prob, such as an engine's -9999, is sent as a gap:
    it is MISSING, with a reason. `unusable` counts such positions, and a RuntimeWarning
    names the first one of each reason. A malformed output affects no other: its positions are gaps, or, if
    their number is unknown, its sequence ends there and is not sealed. The next flush raises a MalformedOutput
    that names all of them. `add` raises neither these nor what the server refuses: flush and close do.

    An unreachable server is asked again for `retry_timeout` seconds. Then the recorder drops the positions that
    it has not stored: they are MISSING, and generation goes on. One RuntimeWarning is
    given until it answers again; a waiting flush raises the error instead.

    Threads: every method may be called from any thread; the outputs of one sequence in their order.

    Attributes:
        policy_version: Version of the weights of all outputs that are added without one; None: the engine names them.
            Set it when the engine has new weights.
    """

    def __init__(
        self,
        client: Client,
        run: Run,
        adapter: Adapter,
        *,
        policy_version: Optional[int] = None,
        worker: str = "",
        interval: float = 0.5,
        retry_timeout: float = 60.0,
        outage: Optional[Outage] = None,
    ) -> None:
        """Begins to record.

        Args:
            client: The client.
            run: The run.
            adapter: Reads the engine's outputs.
            policy_version: Version of the engine's weights. None: the engine names them.
            worker: As in Client.append.
            interval: Seconds between sending.
            retry_timeout: Seconds for which an unreachable server is asked again, and a label is waited for.
            outage: Of a caller that warns of outages itself, so that there is one warning.
        """
        self._client = client
        self._run = run
        self._adapter = adapter
        self._worker = worker
        self._interval = interval
        self._retry_timeout = retry_timeout
        self._outage = outage or Outage()
        self.policy_version = policy_version
        # Of the writer, until that has ended. None: to be opened.
        self._stream: Optional[AppendStream] = None
        # Of the writer, of what is being sent.
        self._outcome = _Outcome()
        # Used by the writer alone.
        self._labels = Labels(client, run, retry_timeout)
        self._owner = Owner()
        self._changed = threading.Condition()
        # All below is guarded by _changed.
        # Open sequences, and sequences with several attempts.
        self._sequences: Dict[str, _Sequence] = {}
        # In the order of sending, and the last work of each sequence.
        self._work: List[Work] = []
        self._last: Dict[str, Work] = {}
        self._waiting = 0
        self._writing = False
        self._flush_wanted = False
        self._committed: Dict[SequenceRef, int] = {}
        self._unusable: collections.Counter[MissingReason] = collections.Counter()
        self._warned: Set[MissingReason] = set()
        # Raised by the next flush.
        self._failure: Optional[Exception] = None
        self._malformed: List[str] = []
        self._malformed_unnamed = 0
        self._closed = False
        self._writer = threading.Thread(target=self._write, name="sis-recorder", daemon=True)
        self._writer.start()

    @property
    def must_wait(self) -> bool:
        """Whether `add` would wait for the server."""
        return self._waiting >= MAX_WAITING

    @property
    def unusable(self) -> collections.Counter[MissingReason]:
        """Number of positions that were sent as gaps, by reason: INVALID_LOG_PROB, NO_LOG_PROB,
        INFINITE_LOG_PROB or UNKNOWN_VERSION."""
        with self._changed:
            return self._unusable.copy()

    def add(self, sequence: str, output: Any, *, more: bool = False, policy_version: Optional[int] = None) -> None:
        """Adds the next output of the engine for a sequence.

        The last output of a request seals the sequence, unless `more`. After an aborted request it stays open: a
        further request whose prompt contains the generated tokens continues it; for one that begins again, call
        `retry`.

        Args:
            sequence: Id of the sequence.
            output: The output, in the form that the adapter takes.
            more: Whether another request follows a finished one, such as an agent's next turn after a tool (`skip`).
            policy_version: Version of the weights that generated this output; None: the recorder's.

        Raises:
            ValueError: The recorder is closed.
        """
        self._add([(sequence, output)], more, policy_version)

    def add_many(self, outputs: Iterable[Tuple[str, Any]], *, policy_version: Optional[int] = None) -> None:
        """Adds outputs of several sequences in less time than by `add`, such as all outputs of an engine's step.

        Args:
            outputs: Pairs of a sequence's id and an output.
            policy_version: As in `add`.

        Raises:
            ValueError: The recorder is closed.
        """
        self._add(list(outputs), False, policy_version)

    def _add(self, pairs: Sequence[Tuple[str, Any]], more: bool, policy_version: Optional[int]) -> None:
        told = [self._told(output) for _, output in pairs]
        with self._mine():
            self._admit()
            version = self.policy_version if policy_version is None else policy_version
            now = time.monotonic()
            for (sequence, output), of_output in zip(pairs, told):
                self._note(sequence, output, of_output, more, version, now)

    def _told(self, output: Any) -> Union[Told, Exception]:
        try:
            return self._adapter.told(output)
        except Exception as error:  # Any: engines return anything.
            return error

    def skip(self, sequence: str, positions: int) -> None:
        """Leaves positions without records: tokens that the policy did not generate, such as a tool's. The trainer's
        mask has a 0 there.

        Args:
            sequence: Id of the sequence.
            positions: Number of tokens. The next output is of the positions after them.

        Raises:
            ValueError: The recorder is closed.
        """
        with self._mine():
            self._check()
            state = self._sequences.setdefault(sequence, _Sequence())
            state.length, state.of_request = state.length + positions, 0

    def retry(self, sequence: str) -> SequenceRef:
        """Begins another attempt at a sequence. Records of earlier attempts stay.

        Args:
            sequence: Id of the sequence.

        Returns:
            The sequence and the number of the attempt, by which trainers fetch it.

        Raises:
            ValueError: The recorder is closed.
        """
        with self._mine():
            self._check()
            attempt = self._sequences.get(sequence, _Sequence()).attempt + 1
            self._sequences[sequence] = _Sequence(attempt)
            self._last.pop(sequence, None)
        return SequenceRef(sequence, attempt)

    def forget(self, sequence: str) -> None:
        """Frees the recorder's state of a sequence that no later call names, if it stays open or was tried again.
        Others are forgotten when they are sealed.

        Args:
            sequence: Id of the sequence.
        """
        with self._mine():
            self._sequences.pop(sequence, None)
            self._last.pop(sequence, None)

    def flush(self) -> Dict[SequenceRef, int]:
        """Sends all that was added, and waits until it is stored.

        Returns:
            The committed length, in positions, of every sequence that grew since the last call.

        Raises:
            sis.Error: Entries were refused since the last flush, or no server answers. All others are stored.
            MalformedOutput: Outputs were malformed since the last flush. All others are stored.
            ValueError: The recorder is closed.
        """
        with self._mine():
            self._check()
            self._flush_wanted = True
            self._changed.notify_all()
            while self._work or self._writing or self._flush_wanted:
                self._changed.wait()
                self._check()
            self._raise()
            committed, self._committed = self._committed, {}
        return committed

    def close(self) -> None:
        """Flushes, and ends the recorder. Raises what flush raises, and ends it even then. Idempotent."""
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

    def _mine(self) -> threading.Condition:
        """To be held by every call. In a process that was forked nobody writes, and the lock may be
        held for ever."""
        self._owner.check("recorder")
        return self._changed

    # Callers of the methods below hold _changed, except of _write and _send.

    def _admit(self) -> None:
        """Waits where the server has no room."""
        self._check()
        while self.must_wait:
            self._flush_wanted = True
            self._changed.notify_all()
            self._changed.wait()
            self._check()

    def _note(
        self, sequence: str, output: Any, told: Union[Told, Exception], more: bool, version: Optional[int], now: float
    ) -> None:
        state = self._sequences.get(sequence)
        if state is None:
            state = self._sequences[sequence] = _Sequence()
        if isinstance(told, Exception):
            if not state.given_up:
                state.given_up = True
                named = f"{_named(sequence, state.attempt)}, position {state.length}"
                self._note_malformed(f"{named}: the rest is not recorded, as an output is malformed: {text_of(told)}")
            return
        ended = told.ended
        if not state.given_up:
            # Positions of the request, and the first one of the output.
            start, base = state.of_request, 0 if self._adapter.cumulative else state.of_request
            count = base + told.length
            for label, begin, end in ranges_within(told.versions, start, count):
                work = self._work_of(sequence, state, (label, version), now)
                pieces = work.pieces
                if base == 0 < begin and pieces and pieces[-1].stop == begin:
                    # The later output holds what the earlier one does.
                    pieces[-1] = Piece(output, pieces[-1].start, end)
                else:
                    pieces.append(Piece(output, begin - base, end - base))
                work.positions += end - begin
                self._waiting += end - begin
                state.length += end - begin
            state.of_request = 0 if ended else max(count, start)
        if ended == "finished" and not more:
            if not state.given_up:
                self._work_of(sequence, state, None, now).sealed_length = state.length
            # Nothing comes after it but another attempt.
            del self._sequences[sequence]
            if state.attempt:
                self._sequences[sequence] = _Sequence(state.attempt)

    def _check(self) -> None:
        if self._closed:
            raise ValueError("the recorder is closed")

    def _raise(self) -> None:
        """Raises the errors of the outputs that were added."""
        failure, self._failure = self._failure, None
        named, self._malformed = self._malformed, []
        unnamed, self._malformed_unnamed = self._malformed_unnamed, 0
        malformed = None
        if named:
            more = f"; and {unnamed} more" if unnamed else ""
            malformed = MalformedOutput("; ".join(named) + more)
        if failure is not None and malformed is not None:
            raise failure from malformed
        wrong = failure or malformed
        if wrong is not None:
            raise wrong

    def _note_malformed(self, text: str) -> None:
        if len(self._malformed) < _MAX_NAMED:
            self._malformed.append(text)
        else:
            self._malformed_unnamed += 1

    def _work_of(
        self, sequence: str, state: _Sequence, weights: Optional[Tuple[Optional[str], Optional[int]]], now: float
    ) -> Work:
        """Returns the work that the next positions of a sequence are added to.

        Args:
            weights: The engine's label and the caller's version. None: for a seal.
        """
        last = self._last.get(sequence)
        if (
            last is None
            or last.sealed_length is not None
            or weights is not None
            and (last.label, last.by_hand) != weights
            or last.first_position + last.positions != state.length
        ):
            reference = SequenceRef(sequence, state.attempt)
            label, by_hand = weights or (None, None)
            last = self._last[sequence] = Work(reference, state.length, now, label, by_hand, resolved=weights is None)
            self._work.append(last)
        return last

    def _write(self) -> None:
        """The writer thread's loop."""
        unsent: List[Work] = []
        down_since: Optional[float] = None
        while True:
            with self._changed:
                pause = min(self._interval, ASK_AFTER) if unsent else self._interval
                self._changed.wait_for(lambda: self._closed or self._flush_wanted and not unsent, pause)
                if self._closed:
                    break
                work, self._work, self._last, self._waiting = unsent + self._work, [], {}, 0
                unsent = []
                flushing, self._flush_wanted = self._flush_wanted, False
                self._writing = bool(work) or flushing
                if not self._writing:
                    continue
                self._changed.notify_all()
            failure: Optional[Exception] = None
            lost: Optional[Exception] = None
            committed: Dict[SequenceRef, int] = {}
            away: List[Work] = []
            self._outcome = _Outcome()
            try:
                work, unsent = self._labels.resolve(work)
                self._stream = self._stream or self._open()
                if self._closed:
                    continue
                self._send(work)
                committed = self._stream.flush()
                down_since = None
                self._outage.succeeded("store")
            except Exception as error:  # Any: the next flush raises it.
                away, failure = _unanswered(error, work)
                if self._stream is not None and (away or not isinstance(error, _errors.AppendError)):
                    self._stream.abandon()
                    self._stream = None
                down_since = (down_since or time.monotonic()) if away else None
                if down_since is not None:
                    if time.monotonic() - down_since < self._retry_timeout:
                        unsent = away + unsent
                    elif flushing:
                        failure = error
                    else:
                        lost = error
            try:
                if lost is not None:
                    positions = sum(item.positions for item in away)
                    self._outage.lost("store", f"recorder: {positions} positions were not stored: {lost}")
                self._take_outcome({item.sequence for item in away})
            except RuntimeWarning as warning:  # The program has made warnings errors.
                failure = failure or warning
            with self._changed:
                self._writing = False
                # A flush goes on until what is left is stored, or given up.
                self._flush_wanted = self._flush_wanted or flushing and bool(unsent)
                self._waiting += sum(item.positions for item in unsent)
                self._committed.update(committed)
                if not self._closed:
                    self._failure = self._failure or failure
                self._changed.notify_all()
        if self._stream is not None:
            self._stream.abandon()

    def _open(self) -> AppendStream:
        return self._client.append(self._run, sampling=self._adapter.sampling, worker=self._worker)

    def _take_outcome(self, away: Set[SequenceRef]) -> None:
        """Counts and names what the writer found, except in the sequences `away`, which are not stored."""
        outcome, self._outcome = self._outcome, _Outcome()
        named: Dict[MissingReason, str] = {}
        with self._changed:
            for (sequence, kind), positions in outcome.unusable.items():
                if sequence not in away:
                    self._unusable[kind] += positions
            for sequence, text, reason in outcome.found:
                if sequence in away:
                    continue
                if reason is None:
                    self._note_malformed(text)
                elif reason not in self._warned:
                    self._warned.add(reason)
                    named[reason] = text
        for reason, text in named.items():
            warnings.warn(
                f"recorder: {text}. It is MISSING ({reason.name}) to trainers, as are others of the kind, which "
                "Recorder.unusable counts",
                RuntimeWarning,
                stacklevel=2,
            )

    def _send(self, work: List[Work]) -> None:
        """In parts that stay in the processor's caches."""
        most = _PART_BYTES // (8 * (1 + self._run.config.top_k))
        part: List[Work] = []
        positions = 0
        for item in work:
            part.append(item)
            positions += item.positions
            if positions >= most or item is work[-1]:
                self._send_part(part)
                part, positions = [], 0

    def _send_part(self, work: List[Work]) -> None:
        config = self._run.config
        readable = [item for item in work if item.policy_version is not None]
        pieces = [piece for item in readable for piece in item.pieces]
        record, faults = self._adapter.read(pieces, config.top_k, config.vocabulary_size)
        begins = list(itertools.accumulate((item.positions for item in readable), initial=0))
        self._outcome.found += [_found(fault, record, readable, begins) for fault in faults]
        entries: List[AppendEntry] = []
        begin = 0
        for item in work:
            name, attempt = item.sequence
            if item.policy_version is not None:
                rows = slice(begin, begin + item.positions)
                begin = rows.stop
                entries += entries_of(name, item.first_position, item.policy_version, record.part(rows), attempt)
            elif item.positions:
                unknown = MissingReason.UNKNOWN_VERSION
                entries.append(Gap(name, item.first_position, item.positions, unknown, attempt))
            if item.wrong is not None:
                where = f"{_named(*item.sequence)}, position {item.first_position}"
                self._outcome.found.append(_Found(item.sequence, f"{where}: {item.wrong}", item.reason))
            if item.sealed_length is not None:
                entries.append(Seal(name, item.sealed_length, attempt))
        for entry in entries:
            if isinstance(entry, Gap):
                self._outcome.unusable[SequenceRef(entry.sequence, entry.attempt), entry.reason] += entry.length
        if entries:
            self._append(entries)

    def _append(self, entries: List[AppendEntry]) -> None:
        """All at once. If one of them is wrong, each by itself, so that it costs nothing but itself."""
        assert self._stream is not None
        try:
            self._stream.append_many(entries)
        except (TypeError, ValueError) as error:
            if len(entries) == 1:
                sequence = SequenceRef(entries[0].sequence, entries[0].attempt)
                self._outcome.found.append(_Found(sequence, f"{_named(*sequence)}: {text_of(error)}"))
                return
            for entry in entries:
                self._append([entry])


def _named(sequence: str, attempt: int) -> str:
    return f"sequence {sequence!r}" + (f", attempt {attempt}" if attempt else "")


def _found(fault: Fault, record: TopK, work: List[Work], begins: Sequence[int]) -> _Found:
    """begins: of each item, its first row."""
    index = bisect.bisect_right(begins, fault.row) - 1
    item = work[index]
    position = item.first_position + fault.row - begins[index]
    named = _named(*item.sequence)
    if fault.error is None:
        (reason,) = reasons_of(record.sampled_log_probs[fault.row : fault.row + 1]).tolist()
        return _Found(item.sequence, f"{named}, position {position}: {fault.why}", MissingReason(reason))
    where = f"position {position}" if fault.rows == 1 else f"positions [{position}, {position + fault.rows})"
    return _Found(item.sequence, f"{named}, {where}: {fault.why}")


def _unanswered(error: Exception, work: List[Work]) -> Tuple[List[Work], Optional[Exception]]:
    """Returns the work for which no server answered, and the error of the rest."""
    if not isinstance(error, _errors.AppendError):
        return (work, None) if isinstance(error, _errors.Error) and _errors.is_away(error) else ([], error)
    away = {(one.sequence, one.attempt) for one in error.refused if _errors.is_away(one)}
    refused = [one for one in error.refused if not _errors.is_away(one)]
    return [item for item in work if item.sequence in away], _errors.AppendError(refused) if refused else None
