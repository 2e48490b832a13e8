"""Does a file give the sampled token a log-prob that its list contradicts?"""

from __future__ import annotations

import functools

import numpy as np

from sis.diagnose.check import Check
from sis.diagnose.compared import Part
from sis.diagnose.lists import spans
from sis.diagnose.recordings import Recording


def check_sampled_column(part: Part) -> Check:
    enough, fewest = 5, 3
    check = Check(
        "sampled_column",
        "Is the sampled token's log-prob the one of its list?",
        "share of positions where the two differ by more than 0.05 nats, or the list leaves out a token more probable "
        "than its last, in the file that has more",
        0.05,
        "engines write the same number twice",
        "which column the sampled token's log-prob is taken from, and whether both are raw or both processed",
    )
    largest = -1.0
    pair = part.compared.pair
    for name, recording in (("A", pair.a), ("B", pair.b)):
        flags = part.compared.cached(f"contradictions {name}", functools.partial(_contradictions, recording))
        at = spans(recording.starts[part.sequences], recording.lengths[part.sequences])
        comparable, listed, contradicts, most_probable = flags[:, at]
        if name == "B" and part.is_gathered:
            # Tokens outside such a list may be more probable than those in it.
            comparable = comparable & listed
        contradicts = contradicts & comparable
        count, of = int(contradicts.sum()), int(comparable.sum())
        if of < enough:
            continue
        share = 0.0 if count < fewest else count / of
        if share <= largest:
            continue
        largest = share
        is_column = int((most_probable & contradicts).sum()) * 2 > count
        check.decide(
            share,
            f"In {name} the sampled token's log-prob is not the one that its list gives it or leaves for it, at "
            f"{count} of {of} positions"
            + (
                ", but that of the most probable token: the wrong column was taken of a list sorted by rank."
                if is_column
                else ": does the list belong to another position, or is one raw and the other processed?"
            ),
        )
    if largest < 0:
        check.untested("the files give the sampled token's log-prob only once")
    return check


def _contradictions(recording: Recording) -> np.ndarray:
    """Returns, bool [4, N], whether a position can tell, whether it lists its token, whether it contradicts itself, and
    whether its log-prob is the most probable token's."""
    # Above what float16 rounds away.
    same = 0.05
    lists = recording.lists
    given = recording.given.astype(np.float64)
    of_token = lists.log_probs_at(lists.find(np.arange(len(lists)), recording.sampled))
    listed = ~np.isnan(of_token)
    comparable = (lists.counts > 0) & np.isfinite(given)
    with np.errstate(invalid="ignore"):
        # Tokens outside a list are at most as probable as its last token.
        agrees = np.where(listed, np.abs(given - of_token) <= same, given <= lists.last(0.0) + same)
        most_probable = np.abs(given - lists.first(0.0)) <= same
    return np.stack([comparable, listed, comparable & ~agrees, most_probable])
