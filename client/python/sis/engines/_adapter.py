"""Adapters tell a recorder about an engine. One check reads the log-probs of all adapters."""

from __future__ import annotations

import abc
from typing import Any, Callable, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Tuple, Union

import numpy as np

from sis import _arrays
from sis._entries import Block, Gap
from sis._records import MissingReason
from sis._run import Sampling
from sis._top_k import TopK, canonical

# Nats. Lower values are an engine's word for -inf: -9999 (vLLM), -3.4e38 (SGLang, llama.cpp). In float32
# their exponential is 0, as is that of all values below -104.
LOWEST_LOG_PROB = -1000.0
# In place of a log-prob that is null.
NULL_LOG_PROB = float(np.float32(-1e38))
# The limits of numerics.md, section 2. The sum has a margin for rounding.
_HIGHEST_LOG_PROB = 2.0**-6
_MAX_MASS = 1 + 2.0**-6 - 2.0**-15


class MalformedOutput(ValueError):
    """An output whose log-probs can't be assigned to its tokens: none of its positions is recorded."""


class NothingListed(ValueError):
    """A position without the most probable tokens."""


class Piece(NamedTuple):
    """Some consecutive positions of an engine's output.

    Attributes:
        output: The output, in the form that the adapter takes.
        start: The first position.
        stop: One past the last position.
    """

    output: Any
    start: int
    stop: int


class VersionRange(NamedTuple):
    """Positions of a request, counted from the first token that it generated, and the weights that generated them.

    Attributes:
        version: The engine's name of the weights.
        start: The first position.
        stop: One past the last position; None: all later positions.
    """

    version: str
    start: int = 0
    stop: Optional[int] = None


def version_ranges(told: Mapping[str, Any]) -> List[VersionRange]:
    """Returns the ranges in an engine's JSON: objects of version, start and end in `weight_versions`, or
    `weight_version` for the whole. Empty if it has neither."""
    ranges = told.get("weight_versions")
    if ranges:
        return [VersionRange(str(each["version"]), int(each["start"]), int(each["end"])) for each in ranges]
    version = told.get("weight_version")
    return [] if version is None else [VersionRange(str(version))]


def ranges_within(versions: Sequence[VersionRange], start: int, stop: int) -> Iterator[Tuple[Optional[str], int, int]]:
    """Yields the ranges of [start, stop), each with the engine's name of its weights, or None."""
    for version, first, last in versions:
        for label, end in ((None, first), (version, stop if last is None else last)):
            end = min(end, stop)
            if end > start:
                yield label, start, end
                start = end
    if start < stop:
        yield None, start, stop


class Fault(NamedTuple):
    """Rows of a record that are not usable."""

    # The first unusable row, and how many rows one cause made unusable.
    row: int
    rows: int
    why: str
    # None if the output has the right form, and only a value is not a log-prob.
    error: Optional[Exception] = None


# bool [T], the sampled log-prob that the record has where it is true, and the text about one such row.
_Cause = Tuple[np.ndarray, Union[float, np.ndarray], Callable[[int], str]]


def reasons_of(sampled_log_probs: np.ndarray) -> np.ndarray:
    """Returns why sampled log-probs are unusable, each as a MissingReason, and 0 where they are usable: uint8 [T].

    -inf is INFINITE_LOG_PROB, another value below -1000 NO_LOG_PROB, and NaN or a value above 2^-6 INVALID_LOG_PROB.

    Args:
        sampled_log_probs: float32 [T], nats.
    """
    own = sampled_log_probs
    reasons = np.zeros(len(own), np.uint8)
    # NaN is in no range.
    if not (own.min(initial=0) >= LOWEST_LOG_PROB and own.max(initial=0) <= _HIGHEST_LOG_PROB):
        reasons[~(own <= _HIGHEST_LOG_PROB)] = MissingReason.INVALID_LOG_PROB
        reasons[own < LOWEST_LOG_PROB] = MissingReason.NO_LOG_PROB
        reasons[np.isneginf(own)] = MissingReason.INFINITE_LOG_PROB
    return reasons


class Columns(NamedTuple):
    """An engine's log-probs of T positions, as sis.canonical takes them.

    Attributes:
        ids: int [T, C], the listed tokens; -1 in empty columns.
        log_probs: float32 [T, C], nats; -inf in empty columns.
        sampled_ids: int [T].
        sampled_log_probs: float32 [T], nats.
        sampled_column: The column of the sampled token, as in sis.canonical.
    """

    ids: np.ndarray
    log_probs: np.ndarray
    sampled_ids: np.ndarray
    sampled_log_probs: np.ndarray
    sampled_column: Optional[str]

    def record(self, top_k: int, vocabulary_size: Optional[int] = None) -> TopK:
        """Returns the record of all T positions.

        Args:
            top_k, vocabulary_size: As in `read`.

        Returns:
            The record, with unusable positions as `read` makes them.

        Raises:
            ValueError: As `read`.
        """
        return self.read(top_k, vocabulary_size).record

    def read(self, top_k: int, vocabulary_size: Optional[int] = None) -> Read:
        """Returns the record of all T positions, and which of them are unusable.

        A position is unusable for one of these reasons:
        - INVALID_LOG_PROB: Its sampled token, or a listed one, is not in [0, vocabulary_size). Or its
          sampled log-prob, or a listed one, is NaN or above 2^-6, or the listed probabilities sum to more
          than 1 + 2^-6.
        - NO_LOG_PROB: The engine has a column for its sampled token, which is not there. Or its sampled
          log-prob is null or below -1000, or exactly 0 where nothing is listed, which is padding.
        - INFINITE_LOG_PROB: Its sampled log-prob is -inf.
        In the record its set is empty, and its sampled log-prob shows the reason: entries_of makes a gap of it. Listed
        tokens with log-probs below -1000 are left out.

        Args:
            top_k: K, the number of tokens per position of the record.
            vocabulary_size: Number of tokens of the model's head; None: unknown.

        Returns:
            The record, and one fault that names the first unusable position and counts all of them.

        Raises:
            ValueError: A shape is wrong, or as in sis.canonical.
        """
        ids = _arrays.int32("ids", self.ids, (None, None))
        log_probs = _arrays.float32("log_probs", self.log_probs, ids.shape)
        sampled = _arrays.int32("sampled_ids", self.sampled_ids, (len(ids),))
        own = _arrays.float32("sampled_log_probs", self.sampled_log_probs, (len(ids),))
        largest = np.iinfo(np.int32).max if vocabulary_size is None else vocabulary_size - 1
        bound = f"must be in [0, {largest}]"

        def outside(values: np.ndarray) -> np.ndarray:
            return np.logical_or(values < 0, values > largest)

        causes: List[_Cause] = [(outside(sampled), np.nan, lambda row: f"sampled token {sampled[row]}, {bound}")]
        # The columns that may hold the sampled token.
        own_column = {"first": slice(1), "last": slice(-1, None)}.get(self.sampled_column or "", slice(None))
        if self.sampled_column is not None:
            here = (ids[:, own_column] == sampled[:, None]).any(axis=1)
            causes.append((~here, NULL_LOG_PROB, lambda row: f"sampled token {sampled[row]} is not listed"))
        value_of = lambda row: f"the sampled log-prob is {'null' if own[row] == NULL_LOG_PROB else own[row]}"
        causes.append((reasons_of(own) != 0, own, value_of))
        if ids.size and not (
            log_probs.min() >= LOWEST_LOG_PROB
            and log_probs.max() <= _HIGHEST_LOG_PROB
            and ids.min() >= 0
            and ids.max() <= largest
        ):
            empty = (ids == -1) | (log_probs < LOWEST_LOG_PROB)
            log_probs = np.where(empty, np.float32(-np.inf), log_probs)
            wrong_ids = ~empty & outside(ids)
            wrong_values = ~(log_probs <= _HIGHEST_LOG_PROB)
            causes += [
                (
                    np.any(wrong_ids, axis=1),
                    np.nan,
                    lambda row: f"listed token {ids[row, wrong_ids[row].argmax()]}, {bound}",
                ),
                (
                    np.any(wrong_values, axis=1),
                    np.nan,
                    lambda row: f"a listed log-prob is {log_probs[row, wrong_values[row].argmax()]}",
                ),
            ]

        unusable = np.logical_or.reduce([wrong for wrong, *_ in causes])
        if unusable.any():
            out = TopK.void(len(ids), top_k)
            out.sampled_ids[:] = sampled
            kept = ~unusable
            columns = (ids[kept], log_probs[kept], sampled[kept], own[kept])
            out.write(kept, canonical(*columns, top_k, self.sampled_column))
        else:
            out = canonical(ids, log_probs, sampled, own, top_k, self.sampled_column)
        masses = np.exp(out.top_k_log_probs).sum(axis=1)
        causes += [
            (
                (out.sampled_log_probs == 0) & (out.top_k_ids[:, 0] < 0),
                NULL_LOG_PROB,
                lambda row: "the sampled log-prob is 0 and nothing is listed: padding",
            ),
            (masses > _MAX_MASS, np.nan, lambda row: f"the listed probabilities sum to {masses[row]}"),
        ]
        unusable = np.logical_or.reduce([wrong for wrong, *_ in causes])
        if not unusable.any():
            return Read(out, [])
        out.write(unusable, TopK(sampled[unusable], *TopK.void(1, top_k)[1:]))
        for wrong, value, _ in reversed(causes):
            np.copyto(out.sampled_log_probs, value, where=wrong)
        row = int(unusable.argmax())
        why = next(why(row) for wrong, _, why in causes if wrong[row])
        return Read(out, [Fault(row, int(unusable.sum()), why)])


class Read(NamedTuple):
    """A record of T positions, and what is wrong with some of them.

    Attributes:
        record: The record.
        faults: Ranges of its rows that are not usable.
    """

    record: TopK
    faults: List[Fault]


def text_of(error: Exception) -> str:
    """Returns the message of an error, with its type if Python itself raised it."""
    own = type(error) in (ValueError, MalformedOutput, NothingListed)
    return str(error) if own else f"{type(error).__name__}: {error}"


def entries_of(
    sequence: str, first_position: int, policy_version: int, record: TopK, attempt: int = 0
) -> List[Union[Block, Gap]]:
    """Returns the blocks and gaps of a record of T consecutive positions of a sequence.

    Args:
        sequence: Id of the sequence.
        first_position: Position of the record's first row.
        policy_version: Version of the weights that generated all of them.
        record: Record of an Adapter or of Columns.
        attempt: Number of the attempt.

    Returns:
        Entries for sis.append_many, by position: a gap with its reason where the sampled log-prob is unusable.
    """
    made: List[Union[Block, Gap]] = []
    reasons = reasons_of(record.sampled_log_probs)
    edges = [0, *(np.flatnonzero(reasons[1:] != reasons[:-1]) + 1).tolist(), len(reasons)]
    for first, last in zip(edges, edges[1:]):
        position = first_position + first
        if first < last and not reasons[first]:
            part = record.part(slice(first, last))
            made.append(Block(sequence, position, policy_version, *part, attempt=attempt))
        elif first < last:
            made.append(Gap(sequence, position, last - first, MissingReason(int(reasons[first])), attempt))
    return made


class Told(NamedTuple):
    """The facts that an engine gives with an output, except its log-probs.

    Attributes:
        length: Number of positions.
        ended: "finished" or "aborted" if the output is its request's last; None if the request goes on.
        versions: The engine's names of the weights that generated the request. Ranges by ascending position, which may
            go beyond the output; empty if the engine names no weights.
    """

    length: int
    ended: Optional[str] = None
    versions: Sequence[VersionRange] = ()


class Adapter(abc.ABC):
    """Reads the outputs of one engine that were made with one set of sampling parameters.

    Attributes:
        sampling: How the log-probs were made, from the settings of engine and request.
        cumulative: Whether an output repeats the positions of the request's earlier outputs.
    """

    sampling: Sampling
    cumulative: bool

    @abc.abstractmethod
    def told(self, output: Any) -> Told:
        """Returns the facts that the engine gives with an output, except its log-probs.

        Args:
            output: The output.

        Returns:
            Length, end and weight versions.

        Raises:
            Exception: The length is unknown.
        """

    @abc.abstractmethod
    def columns(self, pieces: Sequence[Piece]) -> Columns:
        """Returns the positions of all pieces, one after the other, as the engine listed them.

        Args:
            pieces: The pieces. Other positions of their outputs may be unreadable.

        Returns:
            The columns of all positions.

        Raises:
            MalformedOutput: Lengths or ids of an output disagree.
            Exception: A position can't be read.
        """

    def read(self, pieces: Sequence[Piece], top_k: int, vocabulary_size: Optional[int] = None) -> Read:
        """Returns the record of all positions of all pieces. Never raises for what an engine returned.

        An unreadable position affects no other, and a MalformedOutput affects its piece only. There the record's
        sampled id is -1 and its set is empty.

        Args:
            pieces: The pieces.
            top_k, vocabulary_size: As in Columns.read.

        Returns:
            The record, one row per position, and its faults.
        """
        return _Reader(self, top_k, vocabulary_size).read(pieces)

    def record(self, output: Any, top_k: int, vocabulary_size: Optional[int] = None) -> TopK:
        """Returns the record of all positions of an output, for entries_of.

        Args:
            output: The output.
            top_k, vocabulary_size: As in Columns.read.

        Returns:
            The record.

        Raises:
            MalformedOutput: The output's log-probs can't be assigned to its tokens.
        """
        read = self.read([Piece(output, 0, self.told(output).length)], top_k, vocabulary_size)
        for fault in read.faults:
            if isinstance(fault.error, MalformedOutput):
                raise fault.error
        return read.record


class _Reader:
    """One call of Adapter.read: everything at once, or, if that fails, smaller parts."""

    def __init__(self, adapter: Adapter, top_k: int, vocabulary_size: Optional[int]) -> None:
        self._adapter = adapter
        self._top_k = top_k
        self._vocabulary_size = vocabulary_size

    def read(self, pieces: Sequence[Piece]) -> Read:
        pieces = [piece for piece in pieces if piece.start < piece.stop]
        rows = sum(piece.stop - piece.start for piece in pieces)
        self._out = TopK.void(rows, self._top_k)
        faults = self._of_pieces(pieces, 0) if pieces else []
        return Read(self._out, faults)

    def _of_pieces(self, pieces: Sequence[Piece], first: int) -> List[Fault]:
        """Writes the rows from `first` on."""
        try:
            return self._at_once(pieces, first)
        except Exception:  # Any: engines return anything.
            if len(pieces) > 1:
                half = len(pieces) // 2
                rows = sum(piece.stop - piece.start for piece in pieces[:half])
                return self._of_pieces(pieces[:half], first) + self._of_pieces(pieces[half:], first + rows)
        (piece,) = pieces
        try:
            return _merged(self._of_positions(piece, first))
        except MalformedOutput as error:
            rows = piece.stop - piece.start
            self._out.write(slice(first, first + rows), TopK.void(rows, self._top_k))
            return [Fault(first, rows, str(error), error)]

    def _of_positions(self, piece: Piece, first: int) -> List[Fault]:
        """Does the same for one piece. Raises MalformedOutput."""
        output, start, stop = piece
        try:
            return self._at_once([piece], first)
        except MalformedOutput:
            raise
        except Exception as error:  # Any: see above.
            if stop - start == 1:
                if isinstance(error, NothingListed):
                    self._out.sampled_log_probs[first] = NULL_LOG_PROB
                return [Fault(first, 1, text_of(error), error)]
        half = (start + stop) // 2
        parts = Piece(output, start, half), Piece(output, half, stop)
        return self._of_positions(parts[0], first) + self._of_positions(parts[1], first + half - start)

    def _at_once(self, pieces: Sequence[Piece], first: int) -> List[Fault]:
        record, faults = self._adapter.columns(pieces).read(self._top_k, self._vocabulary_size)
        self._out.write(slice(first, first + len(record.sampled_ids)), record)
        return [fault._replace(row=first + fault.row) for fault in faults]


def _merged(faults: Sequence[Fault]) -> List[Fault]:
    """Makes one fault of neighbours that have the same text."""
    merged: List[Fault] = []
    for fault in faults:
        last = merged[-1] if merged else None
        if last is not None and last.error is not None and last.row + last.rows == fault.row and last.why == fault.why:
            merged[-1] = last._replace(rows=last.rows + fault.rows)
        else:
            merged.append(fault)
    return merged
