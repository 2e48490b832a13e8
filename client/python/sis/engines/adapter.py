"""What a recorder needs to know of an engine."""

from __future__ import annotations

import abc
from typing import Any, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from sis.run import Sampling
from sis.top_k import TopK, canonical


class Piece(NamedTuple):
    """The positions [start, stop) of those that an output of the engine tells of."""

    output: Any
    start: int
    stop: int


class Columns(NamedTuple):
    """What an engine tells of T positions, as sis.canonical takes it."""

    # int32 [T, C], float32 [T, C] (nats); -1 and -inf where there is nothing.
    ids: np.ndarray
    log_probs: np.ndarray
    # int32 [T], float32 [T].
    sampled_ids: np.ndarray
    sampled_log_probs: np.ndarray
    # Of sis.canonical.
    sampled_column: Optional[str]
    # bool [T], if the engine leaves positions out: the others' rows mean nothing.
    present: Optional[np.ndarray] = None

    def record(self, top_k: int, out: Optional[TopK] = None, at: Optional[np.ndarray] = None) -> TopK:
        """Of the positions that are present; out and at are as in sis.canonical."""
        arrays = self[:4] if self.present is None else [array[self.present] for array in self[:4]]
        return canonical(*arrays, top_k, self.sampled_column, out=out, at=at)


# Of an output: how many positions it tells of, and whether it is its request's last.
Told = Tuple[int, Optional[str]]


class Adapter(abc.ABC):
    """Reads the outputs of one engine that were made with one set of sampling parameters."""

    # How the log-probs were made, from the settings of engine and request.
    sampling: Sampling
    # Whether an output of a request repeats the positions of those before it.
    cumulative: bool

    @abc.abstractmethod
    def length(self, output: Any) -> int:
        """How many positions an output tells of."""

    @abc.abstractmethod
    def ended(self, output: Any) -> Optional[str]:
        """Whether it is the request's last: "finished", "aborted", or None."""

    def told(self, outputs: Sequence[Any]) -> Sequence[Told]:
        """`length` and `ended` of each."""
        return [(self.length(output), self.ended(output)) for output in outputs]

    @abc.abstractmethod
    def columns(self, pieces: Sequence[Piece]) -> Columns:
        """The positions of all pieces, one after the other."""

    def record(self, output: Any, top_k: int) -> TopK:
        """The record of all positions of an output: what AppendStream.block takes."""
        return self.columns([Piece(output, 0, self.length(output))]).record(top_k)
