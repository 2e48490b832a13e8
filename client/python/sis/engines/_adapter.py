"""What a recorder needs to know of an engine, and the one check that every adapter's answers pass."""

from __future__ import annotations

import abc
from typing import Any, Callable, List, NamedTuple, Optional, Sequence, Tuple, Union

import numpy as np

from sis import _arrays
from sis._entries import Block, Gap
from sis._run import Sampling
from sis._top_k import TopK, canonical

# Nats. Lower values are an engine's word for -inf: -9999 (vLLM), -3.4e38 (SGLang, llama.cpp). In float32
# their exponential is 0, as is that of all values below -104.
LOWEST_LOG_PROB = -1000.0
# The limits of numerics.md, section 2. The sum has a margin for rounding.
_HIGHEST_LOG_PROB = 2.0**-6
_MOST_MASS = 1 + 2.0**-6 - 2.0**-15


class MalformedOutput(ValueError):
    """An output whose log-probs can't be assigned to its tokens: none of its positions is recorded."""


class Piece(NamedTuple):
    """The positions [start, stop) of an engine's output."""

    output: Any
    start: int
    stop: int


class Fault(NamedTuple):
    """Rows of a record that are not usable."""

    # Of the first unusable row, and how many rows one cause made unusable.
    row: int
    rows: int
    why: str
    # None: the output has the right form, but a value that is no log-prob.
    error: Optional[Exception] = None


# bool [T], and what is wrong with a row where it is true.
_Cause = Tuple[np.ndarray, Callable[[int], str]]


class Columns(NamedTuple):
    """What an engine tells of T positions, as sis.canonical takes it."""

    # int [T, C], float32 [T, C] (nats); -1 and -inf where there is nothing.
    ids: np.ndarray
    log_probs: np.ndarray
    # int [T], float32 [T].
    sampled_ids: np.ndarray
    sampled_log_probs: np.ndarray
    # Of sis.canonical.
    sampled_column: Optional[str]

    def record(
        self,
        top_k: int,
        vocabulary_size: Optional[int] = None,
        found: Callable[[Fault], Any] = lambda fault: None,
    ) -> TopK:
        """Returns the record of all T positions.

        A position is unusable if
        - its sampled token, or a listed one, is not in [0, vocabulary_size);
        - the engine has a column for its sampled token, which is not there;
        - its sampled log-prob is NaN, above 2^-6 or below -1000;
        - a listed log-prob is NaN or above 2^-6, or the listed probabilities sum to more than 1 + 2^-6;
        - its sampled log-prob is exactly 0 and nothing is listed, which is padding.
        In the record its sampled log-prob is NaN, and its set is empty. Listed tokens with log-probs below
        -1000 are left out.

        found: called with the first unusable position. ValueError as in sis.canonical.
        """
        ids = _arrays.int32("ids", self.ids, [None, None])
        log_probs = _arrays.float32("log_probs", self.log_probs, ids.shape)
        sampled = _arrays.int32("sampled_ids", self.sampled_ids, [len(ids)])
        own = _arrays.float32("sampled_log_probs", self.sampled_log_probs, [len(ids)])
        largest = np.iinfo(np.int32).max if vocabulary_size is None else vocabulary_size - 1
        bound = f"must be in [0, {largest}]"
        # NaN is in no range.
        causes: List[_Cause] = [
            ((sampled < 0) | (sampled > largest), lambda row: f"sampled token {sampled[row]}, {bound}"),
            (
                ~((own >= LOWEST_LOG_PROB) & (own <= _HIGHEST_LOG_PROB)),
                lambda row: f"the sampled log-prob is {own[row]}",
            ),
        ]
        # Where the engine lists the sampled token.
        own_column = {"first": slice(1), "last": slice(-1, None)}.get(self.sampled_column or "", slice(None))
        if self.sampled_column is not None:
            here = (ids[:, own_column] == sampled[:, None]).any(axis=1)
            causes.append((~here, lambda row: f"sampled token {sampled[row]} is not listed"))
        if ids.size and not (
            log_probs.min() >= LOWEST_LOG_PROB
            and log_probs.max() <= _HIGHEST_LOG_PROB
            and ids.min() >= 0
            and ids.max() <= largest
        ):
            empty = (ids == -1) | (log_probs < LOWEST_LOG_PROB)
            log_probs = np.where(empty, np.float32(-np.inf), log_probs)
            wrong_ids = ~empty & ((ids < 0) | (ids > largest))
            wrong_values = ~(log_probs <= _HIGHEST_LOG_PROB)
            causes += [
                (wrong_ids.any(axis=1), lambda row: f"listed token {ids[row, wrong_ids[row].argmax()]}, {bound}"),
                (
                    wrong_values.any(axis=1),
                    lambda row: f"a listed log-prob is {log_probs[row, wrong_values[row].argmax()]}",
                ),
            ]

        columns = (ids, log_probs, sampled, own)
        unusable = np.logical_or.reduce([wrong for wrong, _ in causes])
        if unusable.any():
            out = TopK.void(len(ids), top_k)
            out.sampled_ids[:] = sampled
            out.write(~unusable, canonical(*(part[~unusable] for part in columns), top_k, self.sampled_column))
        else:
            out = canonical(*columns, top_k, self.sampled_column)
        masses = np.exp(out.top_k_log_probs).sum(axis=1)
        causes += [
            (
                (out.sampled_log_probs == 0) & (out.top_k_ids[:, 0] < 0),
                lambda row: "the sampled log-prob is 0 and nothing is listed: padding",
            ),
            (masses > _MOST_MASS, lambda row: f"the listed probabilities sum to {masses[row]}"),
        ]
        unusable = np.logical_or.reduce([wrong for wrong, _ in causes])
        if unusable.any():
            out.write(unusable, TopK(sampled[unusable], *TopK.void(1, top_k)[1:]))
            row = int(unusable.argmax())
            found(Fault(row, int(unusable.sum()), next(why(row) for wrong, why in causes if wrong[row])))
        return out


def text_of(error: Exception) -> str:
    """Returns what an error says; one that Python itself raises names its type too."""
    own = type(error) in (ValueError, MalformedOutput)
    return str(error) if own else f"{type(error).__name__}: {error}"


def entries_of(
    sequence: str, first_position: int, policy_version: int, record: TopK, attempt: int = 0
) -> List[Union[Block, Gap]]:
    """Returns the blocks and gaps of a record of consecutive positions: a gap where the sampled log-prob
    is NaN."""
    made: List[Union[Block, Gap]] = []
    usable_rows = ~np.isnan(record.sampled_log_probs)
    edges = [0, *(np.flatnonzero(usable_rows[1:] != usable_rows[:-1]) + 1).tolist(), len(usable_rows)]
    for first, last in zip(edges, edges[1:]):
        position = first_position + first
        if first < last and usable_rows[first]:
            part = record.part(slice(first, last))
            made.append(Block(sequence, position, policy_version, *part, attempt=attempt))
        elif first < last:
            made.append(Gap(sequence, position, last - first, attempt=attempt))
    return made


# Of an output: how many positions it tells of, and whether it is its request's last.
Told = Tuple[int, Optional[str]]


class Read(NamedTuple):
    """Record of all positions of several pieces, and what is wrong with them."""

    record: TopK
    faults: List[Fault]


class Adapter(abc.ABC):
    """Reads the outputs of one engine that were made with one set of sampling parameters."""

    # How the log-probs were made, from the settings of engine and request.
    sampling: Sampling
    # Whether an output of a request repeats the positions of those before it.
    cumulative: bool

    @abc.abstractmethod
    def length(self, output: Any) -> int:
        """Returns how many positions an output tells of. Raises if that can't be known."""

    @abc.abstractmethod
    def ended(self, output: Any) -> Optional[str]:
        """Whether it is the request's last: "finished", "aborted", or None."""

    def told(self, outputs: Sequence[Any]) -> Sequence[Told]:
        """`length` and `ended` of each."""
        return [(self.length(output), self.ended(output)) for output in outputs]

    @abc.abstractmethod
    def columns(self, pieces: Sequence[Piece]) -> Columns:
        """Returns the positions of all pieces, one after the other, as the engine listed them.

        Raises MalformedOutput if lengths or ids of an output disagree, and anything else if a position
        can't be read. It looks at the pieces' own positions only: others may be unreadable.
        """

    def read(
        self,
        pieces: Sequence[Piece],
        top_k: int,
        vocabulary_size: Optional[int] = None,
    ) -> Read:
        """Returns the record of all positions of all pieces.

        What can't be read costs itself only: a position, or, if it is a MalformedOutput, a piece. There the
        record's sampled id is -1 and its sampled log-prob NaN. Never raises for what an engine returned.
        """
        return _Reader(self, top_k, vocabulary_size).read(pieces)

    def record(self, output: Any, top_k: int, vocabulary_size: Optional[int] = None) -> TopK:
        """Returns the record of all positions of an output, for entries_of. Raises MalformedOutput."""
        read = self.read([Piece(output, 0, self.length(output))], top_k, vocabulary_size)
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
        except Exception as error:  # Any: engines return anything.
            failed = error
        if len(pieces) > 1:
            half = len(pieces) // 2
            rows = sum(piece.stop - piece.start for piece in pieces[:half])
            return self._of_pieces(pieces[:half], first) + self._of_pieces(pieces[half:], first + rows)
        (piece,) = pieces
        try:
            if isinstance(failed, MalformedOutput):
                raise failed
            return _merged(self._of_positions(piece, first, failed))
        except MalformedOutput as error:
            rows = piece.stop - piece.start
            self._out.write(slice(first, first + rows), TopK.void(rows, self._top_k))
            return [Fault(first, rows, str(error), error)]

    def _of_positions(self, piece: Piece, first: int, failed: Exception) -> List[Fault]:
        """Does the same for a piece that failed. Raises MalformedOutput."""
        output, start, stop = piece
        if stop - start == 1:
            return [Fault(first, 1, text_of(failed), failed)]
        half = (start + stop) // 2
        faults = []
        for part in (Piece(output, start, half), Piece(output, half, stop)):
            begin = first + part.start - start
            try:
                faults += self._at_once([part], begin)
            except MalformedOutput:
                raise
            except Exception as error:  # Any: see above.
                faults += self._of_positions(part, begin, error)
        return faults

    def _at_once(self, pieces: Sequence[Piece], first: int) -> List[Fault]:
        faults: List[Fault] = []
        record = self._adapter.columns(pieces).record(self._top_k, self._vocabulary_size, faults.append)
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
