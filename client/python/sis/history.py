"""All draws of a run, those of older ones together."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Iterable, List, Mapping, Sequence, Tuple

from sis import corrections
from sis.corrections import CorrectionTotals
from sis.evaluation import Totals
from sis.records import MissingReason
from sis.v1 import ratio_service_pb2 as pb
from sis.wire import sums
from sis.wire.messages import read


@dataclass(frozen=True)
class Stretch:
    """Draws that were evaluated one after another, and the sums over them: rates and means are exact
    for their positions."""

    # In the order of evaluation: a trainer that resumed goes back to smaller ones.
    first_draw: int
    last_draw: int
    draws: int
    # Their first evaluation and their last, in seconds since 1970-01-01 00:00 UTC.
    begun_at: float
    ended_at: float
    totals: Totals
    # Step.sequences of each draw, added up.
    sequences: int
    # As of Step.
    missing: Mapping[MissingReason, int] = field(default_factory=dict)
    # "plain", "clipped" and "applied".
    corrections: Mapping[str, CorrectionTotals] = field(default_factory=dict)
    # As of Step.
    uncounted_positions: int = 0

    @staticmethod
    def from_proto(stretch: pb.GetHistoryResponse.Stretch) -> Stretch:
        return read(
            Stretch,
            stretch,
            totals=read(Totals, stretch.totals),
            missing={MissingReason(part.reason): part.positions for part in stretch.missing},
            corrections=corrections.from_proto(stretch.corrections),
        )


class History(List[Stretch]):
    """The one evaluated last is last. The draws of list_steps have a stretch each."""

    def __init__(self, stretches: Iterable[Stretch] = (), unanswered: Iterable[int] = ()) -> None:
        super().__init__(stretches)
        # As of Runs.
        self.unanswered: Tuple[int, ...] = tuple(unanswered)


def merged_histories(parts: Sequence[pb.GetHistoryResponse]) -> pb.GetHistoryResponse:
    """All that replicas counted, in the stretches of the one that has most: each thins its history by
    the draws that it has seen, so the bounds differ where one of them missed a draw. A stretch of
    another is added where its last draw lies; if it lies nowhere, it stands before the one that ended
    next."""
    most = max(parts, key=lambda part: len(part.stretches))
    together = [[stretch] for stretch in most.stretches]
    for part in parts:
        if part is not most:
            for stretch in part.stretches:
                _add(stretch, together)
    return pb.GetHistoryResponse(stretches=map(_summed, together))


def _add(
    part: pb.GetHistoryResponse.Stretch, together: List[List[pb.GetHistoryResponse.Stretch]]
) -> None:
    # The newest one: a draw may have been evaluated again.
    for stretches in reversed(together):
        if stretches[0].first_draw <= part.last_draw <= stretches[0].last_draw:
            stretches.append(part)
            return
    for place, stretches in enumerate(together):
        if max(stretch.ended_at for stretch in stretches) >= part.ended_at:
            together.insert(place, [part])
            return
    together.append([part])


def _summed(stretches: Sequence[pb.GetHistoryResponse.Stretch]) -> pb.GetHistoryResponse.Stretch:
    total = pb.GetHistoryResponse.Stretch()
    total.CopyFrom(sums.summed(stretches))
    total.begun_at = min(stretch.begun_at for stretch in stretches)
    total.ended_at = max(stretch.ended_at for stretch in stretches)
    return total
