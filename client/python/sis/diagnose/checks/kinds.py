"""Are the log-probs of both sides of one kind, or does one side filter, temper, bias or punish tokens?"""

from __future__ import annotations

import math
from typing import List, NamedTuple, Sequence, Tuple

import numpy as np

from sis.diagnose.check import Check, Moments
from sis.diagnose.compared import Compared, Part
from sis.diagnose.decisions import log_probs_of

_ENOUGH_LISTS = 5


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
    if a.lists < _ENOUGH_LISTS and b.lists < _ENOUGH_LISTS:
        return check.untested("too few positions where the lists leave something out")
    is_b = a.lists < _ENOUGH_LISTS or b.lists >= _ENOUGH_LISTS and b.value > a.value
    most, this, other = (b, "B", "A") if is_b else (a, "A", "B")
    return check.decide(
        most.value,
        f"The log-probs are of different kinds: those of {this} are processed, renormalised over what a filter (top-p, "
        f"top-k, min-p) left, those of {other} are not. {most.summing_to_1} of {most.lists} lists of {this} sum to 1 "
        "though they leave something out.",
    )


def _count_lists(part: Part, file: str) -> _Share:
    """A filter may leave more than the engine lists: lists that are shorter than the longest tell most, and only if there
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
    return _share(leaves_out, sums_to_1) if shorter.lists < _ENOUGH_LISTS else shorter


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


class TemperatureFit(NamedTuple):
    """The temperature at which one recording looks most like the other."""

    # With at least three tokens in common.
    positions: int
    # The log-probs of B are about `slope` times those of A, up to what normalises them: B is A at temperature
    # 1 / slope. 1 if there are no positions, or the log-probs hardly correlate.
    slope: float = 1.0
    correlates: bool = False
    # Share of the squared differences that the slope explains, in [0, 1].
    explained: float = 0.0


def fit_temperature(part: Part) -> TemperatureFit:
    # Below it the lists hardly have to do with each other: another context, with more spread or less.
    least_correlation = 0.7
    compared = part.compared
    squares = compared.cached("products", lambda: _products(compared))[:, part.positions]
    aa, bb, ab, counted = squares.sum(axis=1).tolist()
    if not (aa > 0 and bb > 0 and ab > least_correlation * math.sqrt(aa * bb)):
        return TemperatureFit(int(counted))
    # Both sides have noise: the slope that treats them alike.
    slope = math.sqrt(bb / aa)
    without = aa + bb - 2 * ab
    with_it = (bb + slope * slope * aa - 2 * slope * ab) / slope
    # Differences of the size of float32's rounding tell nothing.
    explained = max(0.0, 1 - with_it / without) if without > 1e-9 * aa else 0.0
    return TemperatureFit(int(counted), slope, True, explained)


def _products(compared: Compared) -> np.ndarray:
    """Returns, [4, C], sums of squares and products of centred log-probs, and whether a position counts."""
    a, b = compared.centred
    counts = compared.in_common >= 3
    rows, size = compared.common.rows, len(compared)
    sums = [np.where(counts, np.bincount(rows, product, minlength=size), 0.0) for product in (a * a, b * b, a * b)]
    return np.stack([*sums, counts.astype(np.float64)])


def check_temperature(part: Part) -> Check:
    # Noise as large as that of 4-bit weights gives less than 0.02.
    enough, least = 5, 0.03
    check = Check(
        "temperature",
        "Is the same temperature applied?",
        "share of the squared differences of log-probs that one temperature explains, if it is 3% from 1",
        0.2,
        "numerical noise gives 0.06 and less, a temperature of 0.95 gives 0.3",
        "the temperature: divide the trainer's logits by that of sampling, or record raw log-probs",
    )
    fit = fit_temperature(part)
    if fit.positions < enough:
        return check.untested("too few positions with tokens in common")
    if not fit.correlates:
        return check.untested("the lists hardly have to do with each other")
    near_1 = abs(math.log(fit.slope)) < least
    return check.decide(
        0.0 if near_1 else fit.explained,
        f"The temperature is applied on one side only: B looks like A at temperature {1 / fit.slope:.2f} (A like B at "
        f"{fit.slope:.2f}), which explains {100 * fit.explained:.0f}% of the squared differences.",
    )


_MAX_TOKENS = 8
# Positions with a token.
_ENOUGH_POSITIONS = 6
# Nats, standard errors.
_LEAST_MOVE = 0.2
_ERRORS = 5
_NEARLY_ALL = 0.95


def check_bias(part: Part) -> Tuple[Check, List[int]]:
    """Returns the check, and the tokens that have a bias."""
    check = Check(
        "bias",
        "Are no single tokens made more or less probable on one side?",
        "share of the squared differences of log-probs that a constant for each of at most 8 tokens explains",
        0.2,
        "numerical noise gives 0: no token is moved by 0.2 nats wherever it is listed",
        "logit_bias, bad_words, allowed tokens and grammars in the request: none, or the same in the trainer",
    )
    ids, seen, differences = _beyond_temperature(part)
    if len(ids) < 50:
        return check.untested("too few tokens are listed by both files"), []
    tokens, numbers = np.unique(ids, return_inverse=True)
    every = _moves(numbers, differences, len(tokens))
    # The check of penalties looks at repetitions.
    unseen = _moves(numbers[~seen], differences[~seen], len(tokens))
    total = float((differences * differences).sum())
    found = np.flatnonzero(unseen.are_biased)
    by_share = np.lexsort((tokens[found], every.explained[found]))[::-1]
    found = found[by_share][:_MAX_TOKENS]
    explained = float(every.explained[found].sum())
    share = explained / total if total > 0 else 0.0
    moved = ", ".join(f"{tokens[i]} by {every.means[i]:+.2f}" for i in found)
    check.decide(
        share,
        "The log-probs are of different kinds: on one side a constant is added to the logits of some tokens. B gives "
        f"more, or less, nats than A to: {moved}. That explains {100 * share:.0f}% of the squared differences.",
    )
    return check, tokens[found].tolist() if check.fault else []


def _beyond_temperature(part: Part) -> Tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns ids, whether the text has the token already, and how much B's log-prob is above A's, beyond what
    normalisers and temperature explain: nats, less the median of the position's tokens.

    Skips positions with fewer than three common tokens. A token that only one file lists counts, if it would have had
    to be in the other list by `surely_missed`, with the least difference that it must have.
    """
    surely_missed = 0.3  # nats
    compared = part.compared
    slope = fit_temperature(part).slope
    common = [column[part.tokens(compared.common.rows)] for column in compared.common]
    rows, ids, seen, a, b = common
    differences = b - slope * a
    medians = np.full(len(compared), np.nan)
    order = np.lexsort((differences, rows))
    first = np.flatnonzero(np.diff(rows, prepend=-1))
    counts = np.diff(first, append=len(rows))
    enough = counts >= 3
    medians[rows[first[enough]]] = differences[order][(first + counts // 2)[enough]]
    kept = ~np.isnan(medians[rows])
    parts = [(ids[kept], seen[kept], differences[kept] - medians[rows[kept]])]

    least_a = compared.cached("least a", lambda: compared.a_lists.last(0.0))
    least_b = compared.cached("least b", lambda: compared.b_lists.last(0.0))
    rows, ids, seen, a, _ = (column[part.tokens(compared.only_a.rows)] for column in compared.only_a)
    # Comparisons with NaN are false.
    kept = slope * a + medians[rows] > least_b[rows] + surely_missed
    parts.append((ids[kept], seen[kept], (least_b[rows] - slope * a - medians[rows])[kept]))
    rows, ids, seen, _, b = (column[part.tokens(compared.only_b.rows)] for column in compared.only_b)
    kept = b - medians[rows] > slope * least_a[rows] + surely_missed
    parts.append((ids[kept], seen[kept], (b - slope * least_a[rows] - medians[rows])[kept]))
    ids, seen, differences = (np.concatenate(columns) for columns in zip(*parts))
    return ids, seen, differences


class _Moves(NamedTuple):
    """How much each token is moved, over the positions that have it."""

    counts: np.ndarray
    sums: np.ndarray
    squares: np.ndarray
    # How often it is moved by _LEAST_MOVE or more.
    up: np.ndarray
    down: np.ndarray

    @property
    def means(self) -> np.ndarray:
        return self.sums / np.maximum(1, self.counts)

    @property
    def explained(self) -> np.ndarray:
        return self.sums * self.means

    @property
    def are_biased(self) -> np.ndarray:
        """Whether each token is biased. Differences of tokens that one list leaves out are bounds of one sign."""
        counts = np.maximum(1, self.counts)
        errors = np.sqrt(np.maximum(0.0, self.squares / counts - self.means**2) / counts)
        by_mean = np.abs(self.means) >= np.maximum(_LEAST_MOVE, _ERRORS * errors)
        return (self.counts >= _ENOUGH_POSITIONS) & (by_mean | (np.maximum(self.up, self.down) >= _NEARLY_ALL * self.counts))


def _moves(numbers: np.ndarray, differences: np.ndarray, size: int) -> _Moves:
    columns = (np.ones(len(differences)), differences, differences**2, differences >= _LEAST_MOVE, differences <= -_LEAST_MOVE)
    return _Moves(*(np.bincount(numbers, column, minlength=size) for column in columns))


def check_penalty(part: Part, biased: Sequence[int]) -> Check:
    """Tokens of `biased` tell nothing."""
    enough = 20
    check = Check(
        "penalty",
        "Are repetitions punished on one side only?",
        "how far tokens that the text has already are moved against others, in nats, less four standard errors",
        0.1,
        "numerical noise gives less than 0, a presence penalty of 0.4 gives 0.3",
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
    if moved.number < enough:
        return check.untested("too few positions list tokens that the text has already")
    # `weight` times the square of a shift is the part of `all_squares` that this shift explains.
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
