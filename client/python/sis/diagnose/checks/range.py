"""Do the files agree except for a range of positions, which are of another context?"""

from __future__ import annotations

import numpy as np

from sis.diagnose.check import Check
from sis.diagnose.compared import Part
from sis.diagnose.moments import Moments


def check_range(part: Part) -> Check:
    # Numerical noise gives a position 0.05, another context 0.6 and more.
    apart_from, enough = 0.25, 8
    check = Check(
        "range",
        "Do the files differ at all positions alike?",
        "total variation of the lists in the range of positions where it is largest, less that elsewhere",
        0.4,
        "numerical noise gives below 0.15, what differs everywhere below 0.3",
        "prefix caching and how long prompts are cut, at the start; sliding windows, the longest context and the "
        "scaling of positions, at the end",
    )
    compared, at = part.compared, part.positions
    # How far the files are apart at each position, from 0 to 1.
    apart = np.where(compared.has_lists[at], compared.total_variations[at], np.abs(compared.decisions.log_ratios[at]))
    there = ~np.isnan(apart)
    positions, apart = compared.positions[at[there]], np.minimum(apart[there], 1.0)
    if len(apart) < 2 * enough:
        return check.untested("too few positions in common")
    counts = np.bincount(positions)
    excess = np.bincount(positions, apart) - apart_from * counts
    # The range whose excess is largest: from where the sum before it was last the least.
    sums = np.concatenate([[0.0], np.cumsum(excess)])
    gains = sums[1:] - np.minimum.accumulate(sums[:-1])
    end = int(gains.argmax()) + 1 if gains.max() > 0 else 0
    begin = end - 1 - int(sums[:end][::-1].argmin()) if end else 0
    inside = (positions >= begin) & (positions < end)
    within, outside = Moments.of(apart[inside]), Moments.of(apart[~inside])
    if within.count < enough or outside.count < enough:
        return check.clear()
    if begin == 0:
        why = "The context was another one at first: a prompt that was cut, or values cached of another prompt."
    elif end == len(counts):
        why = "From there on the context is another one: it was cut or grew too long for one side."
    else:
        why = "What generated or scored them had another context."
    return check.decide(
        within.mean - outside.mean,
        f"The files differ at positions {begin} to {end - 1} alone: there the lists' total variation is "
        f"{within.mean:.2g}, elsewhere {outside.mean:.2g}. {why}",
    )
