"""Does one side list what top-p, top-k or min-p left, renormalised?"""

from __future__ import annotations

from typing import NamedTuple, Tuple

import numpy as np

from sis.diagnose.check import Check
from sis.diagnose.compared import Compared, Part
from sis.diagnose.decisions import log_probs_of

_ENOUGH = 5


class _Share(NamedTuple):
    """Number of lists that leave something out by the other file, and how many of them sum to 1, as after a filter."""

    lists: int
    summing_to_1: int

    @property
    def value(self) -> float:
        return self.summing_to_1 / self.lists


def check_filter(part: Part) -> Check:
    check = Check(
        "filter",
        "Are both before, or both after, a filter (top-p, top-k, min-p)?",
        "of the lists whose tokens have less than 0.98 in the other file (0.997 if lists are shorter than others), the "
        "share whose probabilities sum to 1",
        0.5,
        "without a filter no list of some tokens sums to 1, with one all do",
        "top-p, top-k and min-p: record raw log-probs, or apply the same filter in the trainer",
    )
    a, b = _count_lists(part, "a"), _count_lists(part, "b")
    if a.lists < _ENOUGH and b.lists < _ENOUGH:
        return check.untested("too few positions where the lists leave something out")
    is_b = a.lists < _ENOUGH or b.lists >= _ENOUGH and b.value > a.value
    most, this, other = (b, "B", "A") if is_b else (a, "A", "B")
    return check.decide(
        most.value,
        f"The log-probs are of different kinds: those of {this} are processed, renormalised over what a filter (top-p, "
        f"top-k, min-p) left, those of {other} are not. {most.summing_to_1} of {most.lists} lists of {this} sum to 1 "
        "though they leave something out.",
    )


def _count_lists(part: Part, file: str) -> _Share:
    """A filter may leave more than the engine lists: lists that are shorter than asked for tell most, and only if there
    are too few of them all others count."""
    compared, at = part.compared, part.positions
    own, other = compared.cached(f"masses {file}", lambda: np.stack(_masses(compared, file)))[:, at]
    a_counts, b_counts = compared.a_lists.counts[at], compared.b_lists.counts[at]
    counts = a_counts if file == "a" else b_counts
    leaves_out = other <= 0.98
    if part.is_gathered and (a_counts == b_counts).all():
        # The record is rounded down, its length may be that of a mass target, and the other side is known of all its
        # tokens, however little they have to do with each other.
        proportional = compared.cached("proportional", lambda: _are_proportional(compared))[at]
        return _share(leaves_out, (own > 0.995) & proportional)
    sums_to_1 = own > 0.998
    # Nothing but a filter makes lists shorter, so that little left out is evidence: of top-p 0.99.
    shorter = _share((counts < counts.max(initial=0)) & (other <= 0.997), sums_to_1)
    return _share(leaves_out, sums_to_1) if shorter.lists < _ENOUGH else shorter


def _share(lists: np.ndarray, sums_to_1: np.ndarray) -> _Share:
    return _Share(int(lists.sum()), int((lists & sums_to_1).sum()))


def _masses(compared: Compared, file: str) -> Tuple[np.ndarray, np.ndarray]:
    """Returns each list's mass, and what the other file gives the same tokens; NaN if it does not tell of them all."""
    _, _, lists = compared.side(file)
    recording, at, others = compared.side("b" if file == "a" else "a")
    found = compared.a_in_b if file == "a" else compared.b_in_a
    known = log_probs_of(
        others, found, lists.rows, lists.ids, recording.sampled[at], recording.sampled_log_probs[at].astype(np.float64)
    )
    other = lists.sums(np.exp(known))
    return lists.sums(lists.probs), np.where(lists.counts > 0, other, np.nan)


def _are_proportional(compared: Compared) -> np.ndarray:
    """Returns which lists have the same probabilities in the other file, up to a factor."""
    noise = 0.3  # nats
    a, b = compared.centred
    differences = np.bincount(compared.common.rows, np.abs(a - b), minlength=len(compared))
    return differences <= noise * compared.in_common
