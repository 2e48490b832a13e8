"""Does one side punish tokens that the text has already?"""

from __future__ import annotations

from typing import Sequence

import numpy as np

from sis.diagnose.check import Check
from sis.diagnose.checks.temperature import fit_temperature
from sis.diagnose.compared import Part
from sis.diagnose.moments import Moments


def check_penalty(part: Part, biased: Sequence[int]) -> Check:
    """Tokens of `biased` tell nothing."""
    enough = 20
    check = Check(
        "penalty",
        "Are repetitions punished on one side only?",
        "how far tokens that the text has already are moved against others, in nats, less four standard errors",
        0.1,
        "numerical noise gives less than 0, a presence penalty of 0.4 0.3",
        "repetition, presence and frequency penalties: 0 (1 for repetition), or the same in the trainer",
    )
    compared = part.compared
    slope = fit_temperature(part).slope
    kept = part.tokens(compared.common.rows)
    if len(biased):
        kept = kept[~np.isin(compared.common.ids[kept], biased)]
    rows, seen = compared.common.rows[kept], compared.common.seen[kept]
    a, b = compared.centred
    differences = b[kept] - slope * a[kept]
    # Positions, numbered from 0.
    rows = np.cumsum(np.diff(rows, prepend=rows[:1]) != 0)
    seen_count, count = np.bincount(rows, seen), np.bincount(rows)
    seen_sum, sums = np.bincount(rows, differences * seen), np.bincount(rows, differences)
    squares = np.bincount(rows, differences**2)
    tells = (seen_count >= 1) & (count - seen_count >= 2)
    seen_count, count, seen_sum, sums, squares = (
        column[tells] for column in (seen_count, count, seen_sum, sums, squares)
    )
    # At one position, how much higher B is than A on tokens that the text has, beyond what it is on others.
    others = count - seen_count
    moved = Moments.of(seen_sum / seen_count - (sums - seen_sum) / others)
    if moved.count < enough:
        return check.untested("too few positions list tokens that the text has already")
    # Times a constant squared: what it would explain of the squares of all tokens' differences, less their mean.
    weight = float((seen_count * others / count).sum())
    all_squares = float((squares - sums**2 / count).sum())
    mean = moved.mean
    # A penalty moves them alike; other weights or another context now here, now there.
    alike = mean * mean * weight >= 0.15 * all_squares
    this, other = ("B", "A") if mean < 0 else ("A", "B")
    return check.decide(
        abs(mean) - 4 * moved.standard_error if alike else 0.0,
        f"The log-probs are of different kinds: {this} gives tokens that the text has already {abs(mean):.2f} nats "
        f"less than {other} does. A repetition, presence or frequency penalty is applied on one side only.",
    )
