"""All draws of a run, those of older ones together."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Iterable, List, Mapping, Tuple

from sis import corrections
from sis.corrections import CorrectionTotals
from sis.evaluation import Totals
from sis.records import MissingReason
from sis.v1 import ratio_service_pb2 as pb
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
            missing={MissingReason(part.reason): part.positions for part in stretch.missing},
            corrections=corrections.from_proto(stretch.corrections),
        )


class History(List[Stretch]):
    """The one evaluated last is last. The draws of list_steps have a stretch each."""

    def __init__(self, stretches: Iterable[Stretch] = (), unanswered: Iterable[int] = ()) -> None:
        super().__init__(stretches)
        # As of Runs.
        self.unanswered: Tuple[int, ...] = tuple(unanswered)
