"""Totals of a step by the age of its tokens."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Optional

from sis.v1 import ratio_service_pb2 as pb
from sis._wire.messages import read


def per_scored(name: str) -> Any:
    """Returns a property: the mean of a sum over the scored positions."""
    return property(lambda totals: getattr(totals, name) / totals.scored if totals.scored else math.nan)


@dataclass(frozen=True)
class AgeTotals:
    """Sums over the scored positions whose records were [from_, to] policy versions behind the current one when they
    were evaluated. Rates and means are NaN without positions."""

    from_: int = 0
    # None: no bound.
    to: Optional[int] = None
    # Whether the positions are of versions newer than the current one; then from_ and to are 0.
    ahead: bool = False
    accepted: int = 0
    rejected: int = 0
    outside_top_k: int = 0
    # D and D_SIS, nats.
    d: float = 0.0
    d_sis: float = 0.0
    # Sums of the modified ratio and of its square.
    weight: float = 0.0
    weight_squared: float = 0.0

    @staticmethod
    def from_proto(totals: pb.AgeTotals) -> AgeTotals:
        return read(AgeTotals, totals, from_=getattr(totals, "from"))

    @property
    def name(self) -> str:
        """The class as metrics name it: "0", "4-7", "16+" or "ahead"."""
        if self.ahead:
            return "ahead"
        if self.to is None:
            return f"{self.from_}+"
        return str(self.to) if self.from_ == self.to else f"{self.from_}-{self.to}"

    @property
    def scored(self) -> int:
        return self.accepted + self.rejected + self.outside_top_k

    accept_rate = per_scored("accepted")
    mean_d = per_scored("d")
    mean_d_sis = per_scored("d_sis")

    @property
    def effective_sample_size(self) -> float:
        """(sum of modified ratios)^2 / (sum of squares), in positions; NaN if all are 0."""
        return self.weight**2 / self.weight_squared if self.weight_squared else math.nan
