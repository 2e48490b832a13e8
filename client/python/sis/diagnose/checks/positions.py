"""Do the positions of two recordings correspond, and the values of each position?"""

from __future__ import annotations

from typing import Callable, List, Tuple

import numpy as np

from sis.diagnose.check import AT_MOST, Answer, Measured, question
from sis.diagnose.compared import Compared, equal_tokens, total_variations
from sis.diagnose.recordings import Recording

_SHIFTS = (1, -1, 2, -2, 3, -3)


# Without a shift it is below 1, except for texts that repeat one token.
@question(
    "Do both start with the same token?",
    "tokens that agree from the start if one file skips some, per token that agrees without",
    4,
    "where the prompt ends: a beginning-of-sequence token, or the prompt's last token counted as generated",
)
def check_tokens_shifted(compared: Compared) -> Answer:
    """One file has some tokens more at its start."""
    enough = 8
    equal = {shift: int(equal_tokens(compared.pair, shift).sum()) for shift in (0, *_SHIFTS)}
    best = max(_SHIFTS, key=equal.__getitem__)
    if max(equal.values()) < enough:
        return "the texts have too little in common"
    # As if one more agreed, so that nothing is divided by 0.
    ratio = equal[best] / (equal[0] + 1)
    return Measured(
        ratio if equal[best] >= enough else min(ratio, 1.0),
        f"The files are shifted by {_tokens(best)}: {'B' if best > 0 else 'A'} has {_tokens(best)} more at the start "
        "of its sequences.",
    )


# Engines that differ numerically have 3 and more, shifted lists below 0.05.
@question(
    "Do lists stand at the positions of their tokens?",
    "total variation of the lists (of tokens in both, if a file holds the other's tokens) with the best shift, over "
    "that without",
    0.5,
    "the slice of the logits: those of position t - 1 give the probabilities of token t",
    AT_MOST,
)
def check_lists_shifted(compared: Compared) -> Answer:
    """The same tokens, but the lists belong to positions further on or back."""
    b, gathered = compared.b.lists, compared.is_gathered

    def distances(here: np.ndarray, there: np.ndarray) -> Tuple[np.ndarray, np.ndarray]:
        a = compared.a.lists.take(here)
        if not gathered:
            listed = (a.counts > 0) & (b.counts[there] > 0)
            return total_variations(a, b, there)[listed], np.ones(int(listed.sum()))
        q = b.probs_of(there[a.rows], a.ids)
        largest = a.sums(np.where(q > 0, np.maximum(a.probs, q), 0.0))
        return a.sums(np.where(q > 0, np.abs(a.probs - q), 0.0))[largest > 0], largest[largest > 0]

    def contradictions(file: Recording, here: np.ndarray, there: np.ndarray) -> np.ndarray:
        """Sampled tokens are mostly in their lists."""
        unlisted = np.isnan(file.lists.log_probs_of(there, file.sampled[here]))
        return unlisted[file.lists.counts[there] > 0]

    return _best_shift(compared, 5, "The lists", gathered, distances, contradictions)


# Engines that differ numerically have 4 and more, shifted log-probs below 0.05.
@question(
    "Do log-probs stand at the positions of their tokens?",
    "mean difference of the sampled tokens' log-probs with the best shift, over that without",
    0.33,
    "the slice of the log-probs: those of token t come from the logits of position t - 1",
    AT_MOST,
)
def check_sampled_shifted(compared: Compared) -> Answer:
    """Checks the same of the log-probs of the sampled tokens."""

    def distances(here: np.ndarray, there: np.ndarray) -> Tuple[np.ndarray, np.ndarray]:
        found = _differences(compared.a.given[here], compared.b.given[there])
        return found, np.ones(len(found))

    def contradictions(file: Recording, here: np.ndarray, there: np.ndarray) -> np.ndarray:
        """The list of a position has the token too."""
        listed = file.lists.counts[here] > 0
        return _differences(file.sampled_log_probs[here[listed]], file.given[there[listed]])

    return _best_shift(compared, 10, "The log-probs of the sampled tokens", False, distances, contradictions)


def _differences(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Returns those that are finite."""
    with np.errstate(invalid="ignore"):
        differences = np.abs(a.astype(np.float64) - b)
    return differences[np.isfinite(differences)]


def _best_shift(
    compared: Compared,
    enough: int,
    what: str,
    gathered: bool,
    distances: Callable[[np.ndarray, np.ndarray], Tuple[np.ndarray, np.ndarray]],
    contradictions: Callable[[Recording, np.ndarray, np.ndarray], np.ndarray],
) -> Answer:
    """Returns the answer of the shift with the smallest distance, among shifts with at least `enough` positions.

    Args:
        gathered: Whether B has values of the tokens that A lists. A shift then moves B's values.
        distances: Returns the distance of A at some positions from B at others, and the distance that counts as 1.
        contradictions: Returns how much the tokens of a file at some positions contradict its values at others.
    """
    least_distance = 0.3
    means = {}
    for shift in (0, *_SHIFTS):
        distance, of = distances(*compared.shifted(shift))
        if len(distance) >= enough:
            means[shift] = float(distance.sum()) / float(of.sum())
    if means.get(0) == 0:
        return None
    if 0 not in means or len(means) < 2:
        return "too few positions in common"
    best = min((shift for shift in means if shift), key=means.__getitem__)
    ratio = means[best] / means[0]
    if means[0] < least_distance:
        return Measured(ratio, "")

    def mended(file: Recording, shift: int) -> float:
        """How much less a file contradicts itself with the shift: about 0 in the file that is right or can't tell."""
        now, then = (contradictions(file, *compared.shifted(by)) for by in (0, shift))
        return (float(now.mean()) if len(now) else 0.0) - (float(then.mean()) if len(then) else 0.0)

    a, b = mended(compared.a, -best), mended(compared.b, best)
    is_a = a > b and not gathered
    file = "A" if is_a else "A or B" if a == b and not gathered else "B"
    this, other = ("B", "A") if is_a else ("A", "B")
    later = best < 0 if is_a else best > 0  # than they should be
    by = _tokens(best)
    return Measured(
        ratio,
        f"{what} of {file} belong {by} {'further back' if later else 'further on'}: those of {this} at a position "
        f"are those of {other} {by} {'later' if later else 'earlier'}."
        + ("" if later else " Were logits taken at the position of the token, instead of the one before it?"),
    )


def _tokens(count: int) -> str:
    return "one token" if abs(count) == 1 else f"{abs(count)} tokens"


# Engines write the same number twice.
@question(
    "Is the sampled token's log-prob the one of its list?",
    "share of positions where the two differ by more than 0.05 nats, or the list leaves out a token more probable than "
    "its last, in the file that has more",
    0.05,
    "which column the sampled token's log-prob is taken from, and whether both are raw or both processed",
)
def check_sampled_column(compared: Compared) -> Answer:
    # Nats, above what float16 rounds away.
    same, enough, fewest = 0.05, 5, 3
    answers: List[Measured] = []
    for name, recording in (("A", compared.pair.a), ("B", compared.pair.b)):
        lists, given = recording.lists, recording.given.astype(np.float64)
        of_token = lists.log_probs_of(np.arange(len(lists)), recording.sampled)
        comparable = (lists.counts > 0) & np.isfinite(given)
        if name == "B" and compared.is_gathered:
            # Tokens outside such a list may be more probable than those in it.
            comparable &= ~np.isnan(of_token)
        # Tokens outside a list are at most as probable as its last token.
        bound = lists.last(lists.log_probs, 0.0)
        with np.errstate(invalid="ignore"):
            agrees = np.where(np.isnan(of_token), given <= bound + same, np.abs(given - of_token) <= same)
            is_first = np.abs(given - lists.first(lists.log_probs, 0.0)) <= same
        wrong = comparable & ~agrees
        count, of = int(wrong.sum()), int(comparable.sum())
        if of < enough:
            continue
        why = (
            ", but that of the most probable token: the wrong column was taken of a list sorted by rank."
            if int((wrong & is_first).sum()) * 2 > count
            else ": does the list belong to another position, or is one raw and the other processed?"
        )
        finding = f"In {name} the sampled token's log-prob is not the one that its list gives it or leaves for it, at "
        answers.append(Measured(count / of if count >= fewest else 0.0, f"{finding}{count} of {of} positions{why}"))
    return max(answers, key=lambda one: one.value, default="the files give the sampled token's log-prob only once")
