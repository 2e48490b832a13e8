"""How large the differences of two recordings are, and what is known to make them so large."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

from sis.diagnose.compared import Part
from sis.diagnose.moments import Moments

# Nats per token.
BEYOND_NOISE = 0.15


class _Level(NamedTuple):
    # Nats per token.
    end: float
    level: str
    name: str


# Measured values (docs/compare.md): float32 1e-6, bfloat16 0.014 to 0.038, weights of 4 bits 0.057 to 0.069. A level
# ends half-way to the next, on a logarithmic scale.
_LEVELS = (
    _Level(1e-4, "float32", "float32 in another order of addition"),
    _Level(0.047, "bfloat16", "bfloat16 or float16 in weights or arithmetic"),
    _Level(BEYOND_NOISE, "4_bit", "4-bit weights"),
    _Level(math.inf, "beyond_noise", "more than numerical noise"),
)


@dataclass(frozen=True)
class DifferenceSize:
    """D per token, nats."""

    positions: int
    mean: float
    standard_error: float
    # Mean total variation of the lists, where both files have one; NaN if they never do.
    total_variation: float
    # For programs; does not change.
    level: str
    # Whether the differences are of the size of numerical noise, and of which; a sentence.
    meaning: str

    @property
    def is_noise(self) -> bool:
        """Returns True if both differences are as small as numerical noise, certainly or probably."""
        return self.positions > 0 and self.mean < BEYOND_NOISE and not self.total_variation >= BEYOND_NOISE


def measure(part: Part) -> DifferenceSize:
    compared, at = part.compared, part.positions
    d = Moments.of(compared.deviations[at])
    lists = Moments.of(compared.total_variations[at[compared.has_lists[at]]]).mean
    if d.count == 0:
        return DifferenceSize(0, 0.0, 0.0, lists, "", "No position has a ratio.")
    level = "equal" if d.mean == 0 else _level_of(d.mean).level
    return DifferenceSize(d.count, d.mean, d.standard_error, lists, level, _meaning(d, lists))


def _level_of(mean: float) -> _Level:
    return next((level for level in _LEVELS if mean < level.end), _LEVELS[-1])


def _meaning(d: Moments, lists: float) -> str:
    if d.mean == 0 and not lists >= BEYOND_NOISE:
        return "The log-probs are equal."
    level = _level_of(d.mean)
    meaning = f"D is {d.mean:.2g} nats per token, +- {d.standard_error:.1g}: the size that comes from {level.name}"
    low = _level_of(max(0.0, d.mean - 2 * d.standard_error))
    high = _level_of(d.mean + 2 * d.standard_error)
    if low != high:
        other = low if low != level else high
        meaning += f" (with {d.count} positions it can't be told from that of {other.name})"
    if lists >= BEYOND_NOISE:
        meaning += f"; but the lists differ by {lists:.2g} (total variation)"
    return meaning + "."
