"""Values that several kinds of totals compute from their sums."""

from __future__ import annotations

import math
from typing import Any


def per_scored(name: str) -> Any:
    """Returns a property: the mean of a sum over the scored positions."""
    return property(lambda totals: getattr(totals, name) / totals.scored if totals.scored else math.nan)


class Scored:
    """Totals over scored positions. Rates and means are NaN without positions."""

    accepted: int
    rejected: int
    outside_top_k: int

    @property
    def scored(self) -> int:
        """Positions that are accepted, rejected or outside V_k."""
        return self.accepted + self.rejected + self.outside_top_k

    accept_rate = per_scored("accepted")
    mean_d = per_scored("d")
    mean_d_sis = per_scored("d_sis")


class Weighed:
    """Totals of weights."""

    weight: float
    weight_squared: float

    @property
    def effective_sample_size(self) -> float:
        """(sum of weights)^2 / (sum of squares), in positions; NaN if all weights are 0."""
        return self.weight**2 / self.weight_squared if self.weight_squared else math.nan
