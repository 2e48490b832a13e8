"""Are the log-probs of both sides of one kind, or does one side filter, temper, bias or punish tokens?"""

from __future__ import annotations

import math
from typing import NamedTuple, Tuple

import numpy as np

from sis.diagnose.check import Answer, Measured, Moments, question
from sis.diagnose.compared import Compared
from sis.diagnose.recordings import Recording


_ENOUGH_LISTS = 5


# Without a filter no list of some tokens sums to 1, with one all do.
@question(
    "Are both before, or both after, a filter (top-p, top-k, min-p)?",
    "of the lists whose tokens have less than 0.98 in the other file (0.997 if lists are shorter than others), the "
    "share whose probabilities sum to 1",
    0.5,
    "top-p, top-k and min-p: record raw log-probs, or apply the same filter in the trainer",
)
def check_filter(compared: Compared) -> Answer:
    answers = []
    for this, own, other in (("A", compared.a, compared.b), ("B", compared.b, compared.a)):
        lists, summing = _count_lists(compared, own, other)
        finding = (
            f"The log-probs are of different kinds: those of {this} are processed, renormalised over what a filter "
            f"(top-p, top-k, min-p) left, those of {'B' if this == 'A' else 'A'} are not. {summing} of {lists} lists "
            f"of {this} sum to 1 though they leave something out."
        )
        if lists >= _ENOUGH_LISTS:
            answers.append(Measured(summing / lists, finding))
    return max(answers, key=lambda one: one.value, default="too few positions where the lists leave something out")


def _count_lists(compared: Compared, own: Recording, other: Recording) -> Tuple[int, int]:
    """Returns how many lists leave something out by the other file, and how many of these sum to 1, as after a filter.

    A filter may leave more than the engine lists: lists that are shorter than the longest tell most, and only if there
    are too few of them all others count.
    """
    lists, counts = own.lists, own.lists.counts
    mass = lists.sums(lists.probs)
    # Probability of the same tokens by the other file; NaN if that lacks one of them.
    there = lists.sums(np.exp(other.log_probs_of(lists.rows, lists.ids)))
    leaves_out = (counts > 0) & (there <= 0.98)
    sums_to_1 = mass > 0.998
    if compared.is_gathered and (counts == other.lists.counts).all():
        # The record is rounded down, its length may be that of a mass target, and the other side is known of all its
        # tokens, however little they have to do with each other.
        sums_to_1 = (mass > 0.995) & _are_proportional(compared)
    else:
        # Nothing but a filter makes lists shorter, so that little left out is evidence: of top-p 0.99.
        shorter = (counts > 0) & (counts < counts.max(initial=0)) & (there <= 0.997)
        if shorter.sum() >= _ENOUGH_LISTS:
            leaves_out = shorter
    return int(leaves_out.sum()), int((leaves_out & sums_to_1).sum())


def _are_proportional(compared: Compared) -> np.ndarray:
    """Returns which lists have the same probabilities in the other file, up to a factor."""
    noise = 0.3  # nats
    a, b = compared.centred
    differences = np.bincount(compared.common[0], np.abs(a - b), minlength=len(compared))
    return differences <= noise * compared.in_common


class _TemperatureFit(NamedTuple):
    """The temperature at which one recording looks most like the other."""

    # With at least three tokens in common.
    positions: int
    # The log-probs of B are about `slope` times those of A, up to what normalises them: B is A at temperature
    # 1 / slope. 1 if there are no positions, or the log-probs hardly correlate.
    slope: float = 1.0
    # Share of the squared differences that the slope explains, in [0, 1]; NaN if the log-probs hardly correlate.
    explained: float = math.nan


def _fit_temperature(compared: Compared) -> _TemperatureFit:
    # Below it the lists hardly have to do with each other: another context, with more spread or less.
    least_correlation = 0.7
    enough = compared.in_common >= 3
    a, b = (x[enough[compared.common[0]]] for x in compared.centred)
    aa, bb, ab = float((a * a).sum()), float((b * b).sum()), float((a * b).sum())
    positions = int(enough.sum())
    if not (aa > 0 and bb > 0 and ab > least_correlation * math.sqrt(aa * bb)):
        return _TemperatureFit(positions)
    # Both sides have noise: the slope that treats them alike.
    slope = math.sqrt(bb / aa)
    without = aa + bb - 2 * ab
    with_it = (bb + slope * slope * aa - 2 * slope * ab) / slope
    # Differences of the size of float32's rounding tell nothing.
    return _TemperatureFit(positions, slope, max(0.0, 1 - with_it / without) if without > 1e-9 * aa else 0.0)


# Numerical noise gives 0.06 and less, a temperature of 0.95 gives 0.3.
@question(
    "Is the same temperature applied?",
    "share of the squared differences of log-probs that one temperature explains, if it is 3% from 1",
    0.2,
    "the temperature: divide the trainer's logits by that of sampling, or record raw log-probs",
)
def check_temperature(compared: Compared) -> Answer:
    # Noise as large as that of 4-bit weights gives less than 0.02.
    enough, least = 5, 0.03
    fit = _fit_temperature(compared)
    if fit.positions < enough:
        return "too few positions with tokens in common"
    if math.isnan(fit.explained):
        return "the lists hardly have to do with each other"
    return Measured(
        fit.explained if abs(math.log(fit.slope)) >= least else 0.0,
        f"The temperature is applied on one side only: B looks like A at temperature {1 / fit.slope:.2f} (A like B at "
        f"{fit.slope:.2f}), which explains {100 * fit.explained:.0f}% of the squared differences.",
    )


_ENOUGH_EXPLAINED = 0.2


class _Bias(NamedTuple):
    """The tokens that one side seems to make more or less probable, those that explain most first."""

    ids: np.ndarray
    # Nats.
    means: np.ndarray
    # Share of the squared differences that they explain; NaN if too few tokens tell it.
    explained: float


# Numerical noise gives 0: no token is moved by 0.2 nats wherever it is listed.
@question(
    "Are no single tokens made more or less probable on one side?",
    "share of the squared differences of log-probs that a constant for each of at most 8 tokens explains",
    _ENOUGH_EXPLAINED,
    "logit_bias, bad_words, allowed tokens and grammars in the request: none, or the same in the trainer",
)
def check_bias(compared: Compared) -> Answer:
    bias = _find_bias(compared)
    if math.isnan(bias.explained):
        return "too few tokens are listed by both files"
    moved = ", ".join(f"{token} by {mean:+.2f}" for token, mean in zip(bias.ids.tolist(), bias.means.tolist()))
    return Measured(
        bias.explained,
        "The log-probs are of different kinds: on one side a constant is added to the logits of some tokens. B gives "
        f"more, or less, nats than A to: {moved}. That explains {100 * bias.explained:.0f}% of the squared "
        "differences.",
    )


def _find_bias(compared: Compared) -> _Bias:
    enough, max_tokens = 50, 8
    rows, ids, differences = _beyond_temperature(compared)
    tokens, numbers = np.unique(ids, return_inverse=True)
    means, explained, _ = _moves(numbers, differences, len(tokens))
    # The check of penalties looks at repetitions.
    unseen = ~compared.seen(rows, ids)
    *_, are_biased = _moves(numbers[unseen], differences[unseen], len(tokens))
    found = np.flatnonzero(are_biased)
    found = found[np.lexsort((tokens[found], explained[found]))[::-1]][:max_tokens]
    total = float((differences * differences).sum())
    share = float(explained[found].sum()) / total if total > 0 else 0.0
    return _Bias(tokens[found], means[found], share if len(ids) >= enough else math.nan)


def _beyond_temperature(compared: Compared) -> Tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns rows, ids, and how much B's log-prob is above A's, beyond what normalisers and temperature explain: nats,
    less the median of the position's tokens.

    Skips positions with fewer than three common tokens. A token that only one file lists counts, if it would have had
    to be in the other list by `surely_missed`, with the least difference that it must have.
    """
    surely_missed = 0.3  # nats
    slope = _fit_temperature(compared).slope
    rows, _, a, b = compared.common
    differences = b - slope * a
    ascending = np.append(differences[np.lexsort((differences, rows))], np.nan)
    first = np.cumsum(compared.in_common) - compared.in_common
    medians = np.where(compared.in_common >= 3, ascending[first + compared.in_common // 2], np.nan)

    # The last token of a list is the bound of those that it leaves out.
    a_lists, b_lists, only_a = compared.a.lists, compared.b.lists, np.isnan(compared.b_of_a)
    rest = b_lists.only(compared.only_b)
    a_last, b_last = a_lists.last(a_lists.log_probs, 0.0), b_lists.last(b_lists.log_probs, 0.0)
    rows, ids = np.append(a_lists.rows, rest.rows), np.append(a_lists.ids, rest.ids)
    a = np.append(a_lists.log_probs, a_last[rest.rows])
    b = np.append(np.where(only_a, b_last[a_lists.rows], compared.b_of_a), rest.log_probs)
    differences = b - slope * a - medians[rows]
    sign_if_missed = np.append(np.where(only_a, -1, 0), np.ones(len(rest.ids)))
    kept = ~np.isnan(differences) & ((sign_if_missed == 0) | (differences * sign_if_missed > surely_missed))
    return rows[kept], ids[kept], differences[kept]


def _moves(numbers: np.ndarray, differences: np.ndarray, size: int) -> Tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns how much each of `size` tokens is moved on average, how much that explains of its squared differences,
    and whether it is biased."""
    # Positions with the token, nats, standard errors.
    enough, least, errors, nearly_all = 6, 0.2, 5, 0.95

    def sums(values: np.ndarray) -> np.ndarray:
        return np.bincount(numbers, values, minlength=size)

    number = np.bincount(numbers, minlength=size)
    counts = np.maximum(1, number)
    total = sums(differences)
    means = total / counts
    error = np.sqrt(np.maximum(0.0, sums(differences**2) / counts - means**2) / counts)
    by_mean = np.abs(means) >= np.maximum(least, errors * error)
    # Differences of tokens that one list leaves out are bounds of one sign.
    alike = np.maximum(sums(differences >= least), sums(differences <= -least)) >= nearly_all * number
    return means, total * means, (number >= enough) & (by_mean | alike)


# Numerical noise gives less than 0, a presence penalty of 0.4 gives 0.3.
@question(
    "Are repetitions punished on one side only?",
    "how far tokens that the text has already are moved against others, in nats, less four standard errors",
    0.1,
    "repetition, presence and frequency penalties: 0 (1 for repetition), or the same in the trainer",
)
def check_penalty(compared: Compared) -> Answer:
    enough, size = 20, len(compared)
    rows, ids, *_ = compared.common
    a, b = compared.centred
    differences = b - _fit_temperature(compared).slope * a
    seen = compared.seen(rows, ids)
    bias = _find_bias(compared)
    if bias.explained >= _ENOUGH_EXPLAINED:
        kept = ~np.isin(ids, bias.ids)
        rows, differences, seen = rows[kept], differences[kept], seen[kept]
    values = np.ones(len(rows)), seen, differences, differences * seen, differences**2
    sums_of = np.asarray([np.bincount(rows, value, minlength=size) for value in values])
    count, seen_count, sums, seen_sums, squares = sums_of[:, (sums_of[1] >= 1) & (sums_of[0] - sums_of[1] >= 2)]
    # At one position, how much higher B is than A on tokens that the text has, beyond what it is on others.
    others = count - seen_count
    moved = Moments.of(seen_sums / seen_count - (sums - seen_sums) / others)
    if moved.number < enough:
        return "too few positions list tokens that the text has already"
    # `weight` times the square of a shift is the part of `all_squares` that this shift explains.
    weight = float((seen_count * others / count).sum())
    all_squares = float((squares - sums**2 / count).sum())
    mean = moved.mean
    # A penalty moves them alike; other weights or another context now here, now there.
    alike = mean * mean * weight >= 0.15 * all_squares
    this, other = ("B", "A") if mean < 0 else ("A", "B")
    return Measured(
        abs(mean) - 4 * moved.standard_error if alike else 0.0,
        f"The log-probs are of different kinds: {this} gives tokens that the text has already {abs(mean):.2f} nats "
        f"less than {other} does. A repetition, presence or frequency penalty is applied on one side only.",
    )
