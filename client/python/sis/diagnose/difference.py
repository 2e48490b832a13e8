"""How large the differences of two recordings are, in all, by sequence and by position, and what is known to make them so
large; and the positions that have none."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import List, NamedTuple, Sequence, Tuple

import numpy as np

from sis.diagnose.check import Moments
from sis.diagnose.compared import Compared, Part

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
    if d.number == 0:
        return DifferenceSize(0, 0.0, 0.0, lists, "", "No position has a ratio.")
    level = "equal" if d.mean == 0 else _level_of(d.mean).level
    return DifferenceSize(d.number, d.mean, d.standard_error, lists, level, _meaning(d, lists))


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
        meaning += f" (with {d.number} positions it can't be told from that of {other.name})"
    if lists >= BEYOND_NOISE:
        meaning += f"; but the lists differ by {lists:.2g} (total variation)"
    return meaning + "."


_FIRST_RANGE = 4


@dataclass(frozen=True)
class Row:
    # A sequence, or the first position of a range and its last one.
    first: int
    last: int
    positions: int
    # Nats per token, of positions with a ratio, and total variation of the lists, where both files have one; NaN
    # without any.
    d: float
    total_variation: float


@dataclass(frozen=True)
class Profile:
    sequences: Tuple[Row, ...]
    # Ranges whose lengths double, from 4 positions on, because few sequences are long.
    positions: Tuple[Row, ...]


def profile_of(part: Part) -> Profile:
    sequences = [_row(part, sequence, sequence, np.arange(at.start, at.stop)) for sequence, at in part.by_sequence]
    positions: List[Row] = []
    at = part.positions
    of_at = part.compared.positions[at]
    first, last = 0, _FIRST_RANGE
    # [0, 4), [4, 8), [8, 16), [16, 32), ...
    while first <= of_at.max(initial=-1):
        positions.append(_row(part, first, last - 1, at[(of_at >= first) & (of_at < last)]))
        first, last = last, 2 * last
    return Profile(tuple(sequences), tuple(positions))


def _row(part: Part, first: int, last: int, at: np.ndarray) -> Row:
    compared = part.compared
    d = Moments.of(compared.deviations[at]).mean
    lists = Moments.of(compared.total_variations[at[compared.has_lists[at]]]).mean
    return Row(first, last, len(at), d, lists)


@dataclass(frozen=True)
class LeftOut:
    # For programs; does not change.
    name: str
    positions: int
    # Completes "240 of 960 positions ...".
    reason: str


def count_left_out(compared: Compared) -> List[LeftOut]:
    """Returns, of the positions that either file has, all without a ratio."""
    a, b = compared.pair.a, compared.pair.b
    rest = np.maximum(a.lengths, b.lengths) - compared.counts
    last = compared.starts + compared.counts - 1
    parts = np.zeros(len(rest), bool)
    there = compared.counts > 0
    parts[there] = a.sampled[compared.at_a[last[there]]] != b.sampled[compared.at_b[last[there]]]
    longer_a = ~parts & (a.lengths > b.lengths)

    missing = np.flatnonzero(~compared.has_ratio)
    in_a = np.isfinite(a.sampled_log_probs[compared.at_a[missing]])
    at_b, tokens = compared.at_b[missing], compared.a_sampled[missing]
    in_b = (b.sampled[at_b] == tokens) & np.isfinite(b.sampled_log_probs[at_b])
    in_b |= compared.b_lists.find(missing, tokens) >= 0
    parted = int((rest[parts] > 0).sum())
    every = [
        LeftOut(
            "parted", int(rest[parts].sum()),
            f"after a token that the files sampled differently (in {parted} of {len(rest)} sequences)",
        ),
        LeftOut("only_a", int(rest[longer_a].sum()), "that only A has"),
        LeftOut("only_b", int(rest[~parts & ~longer_a].sum()), "that only B has"),
        LeftOut("without_a", int((~in_a).sum()), "where A gives no log-prob of its own token"),
        LeftOut("without_b", int((in_a & ~in_b).sum()), "where B gives no log-prob of A's token"),
        LeftOut(
            "impossible", int((in_a & in_b).sum()), "where B's list and its own token's log-prob sum to more than 1"
        ),
    ]  # fmt: skip
    return [part for part in every if part.positions > 0]


def describe_left_out(left_out: Sequence[LeftOut], scored: int) -> str:
    """Returns a sentence about them. `scored` positions have a ratio."""
    positions = sum(part.positions for part in left_out)
    reasons = "; ".join(f"{part.positions} {part.reason}" for part in left_out)
    return f"{positions} of {positions + scored} positions are left out: {reasons}."
