"""How large the differences of two recordings are, in all, by sequence and by position, and what is known to make them
so large; and the positions that have none."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import List, Sequence

import numpy as np

from sis.diagnose.check import Moments
from sis.diagnose.compared import Compared

# Nats per token.
BEYOND_NOISE = 0.15

# Nats per token where a level ends, and what makes such differences. Measured values (docs/compare.md): float32 1e-6,
# bfloat16 0.014 to 0.038, weights of 4 bits 0.057 to 0.069. A level ends half-way to the next, on a logarithmic scale.
_LEVELS = (
    (1e-4, "float32 in another order of addition"),
    (0.047, "bfloat16 or float16 in weights or arithmetic"),
    (BEYOND_NOISE, "4-bit weights"),
    (math.inf, "more than numerical noise"),
)


@dataclass(frozen=True)
class DifferenceSize:
    """D per token, nats."""

    positions: int
    mean: float
    standard_error: float
    # Mean total variation of the lists, where both files have one; NaN if they never do.
    total_variation: float
    # Whether the differences are of the size of numerical noise, and of which; a sentence.
    meaning: str

    @property
    def is_noise(self) -> bool:
        """Returns True if both differences are as small as numerical noise, certainly or probably."""
        return self.positions > 0 and self.mean < BEYOND_NOISE and not self.total_variation >= BEYOND_NOISE


def measure(compared: Compared) -> DifferenceSize:
    d = Moments.of(compared.deviations)
    lists = Moments.of(compared.total_variations[compared.has_lists]).mean
    if d.number == 0:
        return DifferenceSize(0, 0.0, 0.0, lists, "No position has a ratio.")
    return DifferenceSize(d.number, d.mean, d.standard_error, lists, _meaning(d, lists))


def _meaning(d: Moments, lists: float) -> str:
    if d.mean == 0 and not lists >= BEYOND_NOISE:
        return "The log-probs are equal."
    low, level, high = (
        next(name for end, name in _LEVELS if d.mean + errors * d.standard_error < end) for errors in (-2, 0, 2)
    )
    meaning = f"D is {d.mean:.2g} nats per token, +- {d.standard_error:.1g}: the size that comes from {level}"
    if low != high:
        meaning += f" (with {d.number} positions it can't be told from that of {low if low != level else high})"
    if lists >= BEYOND_NOISE:
        meaning += f"; but the lists differ by {lists:.2g} (total variation)"
    return meaning + "."


@dataclass(frozen=True)
class Row:
    # "positions 4-7", of all sequences, or "sequence 3".
    where: str
    positions: int
    # Nats per token, of positions with a ratio, and total variation of the lists, where both files have one; NaN
    # without any.
    d: float
    total_variation: float


def profile_of(compared: Compared) -> List[Row]:
    """Returns ranges whose lengths double, from 4 positions on, because few sequences are long. Then the sequences with
    the largest D."""
    max_sequences = 8
    variations = np.where(compared.has_lists, compared.total_variations, np.nan)

    def row(where: str, at: np.ndarray) -> Row:
        d, lists = (Moments.of(values[at]).mean for values in (compared.deviations, variations))
        return Row(where, int(at.sum()), d, lists)

    rows, first, end = [], 0, 4
    while first <= compared.positions.max(initial=-1):
        at = (compared.positions >= first) & (compared.positions < end)
        rows.append(row(f"positions {first}-{end - 1}", at))
        first, end = end, 2 * end
    scored, index = compared.decisions.scored, np.repeat(np.arange(len(compared.counts)), compared.counts)
    sums = np.bincount(index[scored], compared.deviations[scored], minlength=len(compared.counts))
    numbers = np.bincount(index[scored], minlength=len(compared.counts))
    largest = np.argsort(-sums / np.maximum(1, numbers), kind="stable")
    for sequence in compared.numbers[largest[numbers[largest] > 0]][:max_sequences].tolist():
        rows.append(row(f"sequence {sequence}", compared.sequences == sequence))
    return rows


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
    parts = np.bincount(compared.sequences, compared.a.sampled != compared.b.sampled, minlength=len(rest)) > 0
    only_a, only_b = ~parts & (a.lengths > b.lengths), ~parts & (a.lengths <= b.lengths)

    missing = np.flatnonzero(~compared.decisions.scored)
    in_a = np.isfinite(compared.a.sampled_log_probs[missing])
    in_b = ~np.isnan(compared.b.log_probs_of(missing, compared.a.sampled[missing]))
    after = f"after a token that the files sampled differently (in {(rest[parts] > 0).sum()} of {len(rest)} sequences)"
    every = (
        LeftOut("parted", int(rest[parts].sum()), after),
        LeftOut("only_a", int(rest[only_a].sum()), "that only A has"),
        LeftOut("only_b", int(rest[only_b].sum()), "that only B has"),
        LeftOut("without_a", int((~in_a).sum()), "where A gives no log-prob of its own token"),
        LeftOut("without_b", int((in_a & ~in_b).sum()), "where B gives no log-prob of A's token"),
        LeftOut(
            "impossible", int((in_a & in_b).sum()), "where B's list and its own token's log-prob sum to more than 1"
        ),
    )
    return [part for part in every if part.positions > 0]


def describe_left_out(left_out: Sequence[LeftOut], scored: int) -> str:
    """Returns a sentence about them. `scored` positions have a ratio."""
    positions = sum(part.positions for part in left_out)
    reasons = "; ".join(f"{part.positions} {part.reason}" for part in left_out)
    return f"{positions} of {positions + scored} positions are left out: {reasons}."
