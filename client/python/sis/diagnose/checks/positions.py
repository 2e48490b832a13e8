"""Do the positions of two recordings correspond, and the values of each position?"""

from __future__ import annotations

import functools
import math
from typing import Callable, NamedTuple, Tuple

import numpy as np

from sis import _ragged
from sis.diagnose.check import AT_MOST, Check
from sis.diagnose.compared import Compared, Part, equal_tokens
from sis.diagnose.recordings import Recording

_SHIFTS = (1, -1, 2, -2, 3, -3)
# How far a file is from another at each position, as a share of what counts as 1 there; NaN if nothing tells.
_Distances = Tuple[np.ndarray, np.ndarray]


class _Mean(NamedTuple):
    # NaN of no positions.
    value: float
    number: int


class _Shifted(NamedTuple):
    """Values that may stand at other positions than their tokens."""

    name: str
    what: str
    # B's are those of whatever A lists, so that B's are of another position.
    gathered: bool
    # Distances of A at each position and B `shift` positions further on.
    distances: Callable[[Compared, int], _Distances]
    # How much the token of a file ("a" or "b") at each position contradicts the values `shift` positions further on.
    contradictions: Callable[[Compared, str, int], np.ndarray]


def check_tokens_shifted(part: Part) -> Check:
    """One file has some tokens more at its start."""
    enough = 8
    check = Check(
        "tokens_shifted",
        "Do both start with the same token?",
        "tokens that agree from the start if one file skips some, per token that agrees without",
        4,
        "without a shift it is below 1, but for texts that repeat one token",
        "where the prompt ends: a beginning-of-sequence token, or the prompt's last token counted as generated",
    )
    pair = part.compared.pair

    def equal(shift: int) -> int:
        counts = part.compared.cached(f"equal_tokens {shift}", lambda: equal_tokens(pair.a, pair.b, shift))
        return int(counts[part.sequences].sum())

    unshifted = equal(0)
    best, best_equal = 0, 0
    for shift in _SHIFTS:
        found = equal(shift)
        if found > best_equal:
            best, best_equal = shift, found
    if max(unshifted, best_equal) < enough:
        return check.untested("the texts have too little in common")
    # As if one more agreed, so that nothing is divided by 0.
    ratio = best_equal / (unshifted + 1)
    return check.decide(
        min(ratio, 1.0) if best_equal < enough else ratio,
        f"The files are shifted by {_tokens(best)}: {'B' if best > 0 else 'A'} has {_tokens(best)} more at the start "
        "of its sequences.",
    )


def check_lists_shifted(part: Part) -> Check:
    """The same tokens, but the lists belong to positions further on or back."""
    check = Check(
        "lists_shifted",
        "Do lists stand at the positions of their tokens?",
        "total variation of the lists (of tokens in both, if a file holds the other's tokens) with the best shift, "
        "over that without",
        0.5,
        "engines that differ numerically have 3 and more, shifted lists below 0.05",
        "the slice of the logits: those of position t - 1 give the probabilities of token t",
        AT_MOST,
    )
    distances = _distances_in_common if part.is_gathered else _total_variations
    return _check_shift(
        check, part, 5, _Shifted("lists", "The lists", part.is_gathered, distances, _token_is_not_listed)
    )


def check_sampled_shifted(part: Part) -> Check:
    """Checks the same of the log-probs of the sampled tokens."""
    check = Check(
        "sampled_shifted",
        "Do log-probs stand at the positions of their tokens?",
        "mean difference of the sampled tokens' log-probs with the best shift, over that without",
        0.33,
        "engines that differ numerically have 4 and more, shifted ones below 0.05",
        "the slice of the log-probs: those of token t come from the logits of position t - 1",
        AT_MOST,
    )
    what = "The log-probs of the sampled tokens"
    return _check_shift(check, part, 10, _Shifted("sampled", what, False, _own_differences, _own_is_not_as_listed))


def _check_shift(check: Check, part: Part, enough: int, shifted: _Shifted) -> Check:
    """Says what the best shift gives, of at least `enough` positions."""
    least_distance = 0.3
    means = {shift: _mean(part, shifted, shift) for shift in (0, *_SHIFTS)}
    unshifted = means[0]
    if unshifted.number >= enough and unshifted.value == 0:
        return check.clear()
    best, best_ratio = 0, math.inf
    for shift in _SHIFTS:
        if min(means[shift].number, unshifted.number) < enough:
            continue
        ratio = means[shift].value / unshifted.value
        if ratio < best_ratio:
            best, best_ratio = shift, ratio
    if best == 0:
        return check.untested("too few positions in common")
    if unshifted.value < least_distance:
        check.value = best_ratio
        return check.clear()
    finding = _finding(part, best, shifted) if best_ratio <= check.limit else ""
    return check.decide(best_ratio, finding)


def _mean(part: Part, shifted: _Shifted, shift: int) -> _Mean:
    compared = part.compared
    key = f"{shifted.name} {shifted.gathered} {shift}"
    distances = compared.cached(key, lambda: np.stack(shifted.distances(compared, shift)))
    distance, of = distances[:, part.positions]
    there = ~np.isnan(distance)
    value = float(distance[there].sum()) / float(of[there].sum()) if there.any() else math.nan
    return _Mean(value, int(there.sum()))


def _finding(part: Part, shift: int, shifted: _Shifted) -> str:
    """Says what is found where values of A at a position are those of B `shift` positions further on."""
    a, b = _mended(part, "a", -shift, shifted), _mended(part, "b", shift, shifted)
    is_a = a > b and not shifted.gathered
    file = "A" if is_a else "A or B" if a == b and not shifted.gathered else "B"
    this, other = ("B", "A") if is_a else ("A", "B")
    later = shift < 0 if is_a else shift > 0  # than they should be
    distance = _tokens(shift)
    return (
        f"{shifted.what} of {file} belong {distance} {'further back' if later else 'further on'}: those of {this} at a "
        f"position are those of {other} {distance} {'later' if later else 'earlier'}."
        + ("" if later else " Were logits taken at the position of the token, instead of the one before it?")
    )


def _mended(part: Part, file: str, shift: int, shifted: _Shifted) -> float:
    """How much worse a file contradicts itself as it is than with the values `shift` positions further on: about 0 in
    the file that is right or can't tell."""

    def mean(by: int) -> float:
        found = shifted.contradictions(part.compared, file, by)[part.positions]
        there = ~np.isnan(found)
        return float(found[there].mean()) if there.any() else 0.0

    return mean(0) - mean(shift)


def _tokens(count: int) -> str:
    return "one token" if abs(count) == 1 else f"{abs(count)} tokens"


def _total_variations(compared: Compared, shift: int) -> _Distances:
    distance = np.full(len(compared), np.nan)
    if shift == 0:
        distance[compared.has_lists] = compared.total_variations[compared.has_lists]
    else:
        here, there = compared.shifted(shift)
        listed = (compared.a_lists.counts[here] > 0) & (compared.b_lists.counts[there] > 0)
        here, there = here[listed], there[listed]
        a, q = compared.a_lists, _shifted_probs(compared, here, there)
        mass = compared.cached("mass b", lambda: compared.b_lists.sums(compared.b_lists.probs))[there]
        distance[here] = (a.sums(np.abs(a.probs - q))[here] + np.maximum(0.0, mass - a.sums(q)[here])) / 2
    return distance, np.ones(len(compared))


def _distances_in_common(compared: Compared, shift: int) -> _Distances:
    """Compares the probabilities of tokens in both lists only."""
    a, q = compared.a_lists, _shifted_probs(compared, *compared.shifted(shift))
    listed = q > 0
    largest = a.sums(np.where(listed, np.maximum(a.probs, q), 0.0))
    return np.where(largest > 0, a.sums(np.where(listed, np.abs(a.probs - q), 0.0)), np.nan), largest


def _shifted_probs(compared: Compared, here: np.ndarray, there: np.ndarray) -> np.ndarray:
    """Returns, for A's tokens at the positions `here`, their probabilities in B's lists `there`; 0 if not listed."""
    moved = np.full(len(compared), -1)
    moved[here] = there
    lists = compared.a_lists
    return compared.b_lists.probs_at(compared.b_lists.find(moved[lists.rows], lists.ids))


def _own_differences(compared: Compared, shift: int) -> _Distances:
    here, there = compared.shifted(shift)
    a = compared.pair.a.given[compared.at_a[here]].astype(np.float64)
    difference = _finite_difference(a, compared.pair.b.given[compared.at_b[there]])
    return _placed(compared, here, difference), np.ones(len(compared))


def _placed(compared: Compared, here: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Returns, for all positions, values of those at `here`, and NaN elsewhere."""
    placed = np.full(len(compared), np.nan)
    placed[here] = values
    return placed


def _finite_difference(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    with np.errstate(invalid="ignore"):
        difference = np.abs(a - b)
    return np.where(np.isfinite(difference), difference, np.nan)


def _token_is_not_listed(compared: Compared, file: str, shift: int) -> np.ndarray:
    """Sampled tokens are mostly in their lists."""
    here, there = compared.shifted(shift)
    recording, at, lists = compared.side(file)
    unlisted = lists.find(there, recording.sampled[at[here]]) < 0
    return _placed(compared, here, np.where(lists.counts[there] > 0, unlisted, np.nan))


def _own_is_not_as_listed(compared: Compared, file: str, shift: int) -> np.ndarray:
    here, there = compared.shifted(shift)
    recording, at, lists = compared.side(file)
    difference = _finite_difference(
        recording.sampled_log_probs[at[here]].astype(np.float64), recording.given[at[there]]
    )
    return _placed(compared, here, np.where(lists.counts[here] > 0, difference, np.nan))


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
        at = _ragged.places(recording.starts[part.sequences], recording.lengths[part.sequences])
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
