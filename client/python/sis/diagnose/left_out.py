"""Positions of two recordings without a ratio."""

from __future__ import annotations

from dataclasses import dataclass
from typing import List, Sequence

import numpy as np

from sis.diagnose.compared import Compared


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
