"""Does one side add a constant to some tokens' logits?"""

from __future__ import annotations

from typing import List, NamedTuple, Tuple

import numpy as np

from sis.diagnose.check import Check
from sis.diagnose.checks.temperature import fit_temperature
from sis.diagnose.compared import Part

_MOST_TOKENS = 8
# Positions with a token.
_ENOUGH = 6
# Nats, standard errors.
_LEAST = 0.2
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
    ids, seen, differences = _differences(part)
    if len(ids) < 50:
        return check.untested("too few tokens are listed by both files"), []
    tokens, numbers = np.unique(ids, return_inverse=True)
    every = _moves(numbers, differences, len(tokens))
    # The check of penalties looks at repetitions.
    unseen = _moves(numbers[~seen], differences[~seen], len(tokens))
    total = float((differences * differences).sum())
    found = np.flatnonzero(unseen.are_biased)
    by_share = np.lexsort((tokens[found], every.explained[found]))[::-1]
    found = found[by_share][:_MOST_TOKENS]
    explained = float(every.explained[found].sum())
    share = explained / total if total > 0 else 0.0
    moved = ", ".join(f"{tokens[i]} by {every.means[i]:+.2f}" for i in found)
    check.decide(
        share,
        "The log-probs are of different kinds: on one side a constant is added to the logits of some tokens. B gives "
        f"more, or less, nats than A to: {moved}. That explains {100 * share:.0f}% of the squared differences.",
    )
    return check, tokens[found].tolist() if check.fault else []


def _differences(part: Part) -> Tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns ids, whether the text has the token already, and how much B's log-prob is above A's, beyond what
    normalisers and temperature explain: nats, less the median of the position's tokens.

    Nothing of positions without three tokens in common. A token that only one file lists counts, if it would have had
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
    # How often it is moved by _LEAST or more.
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
        by_mean = np.abs(self.means) >= np.maximum(_LEAST, _ERRORS * errors)
        return (self.counts >= _ENOUGH) & (by_mean | (np.maximum(self.up, self.down) >= _NEARLY_ALL * self.counts))


def _moves(numbers: np.ndarray, differences: np.ndarray, size: int) -> _Moves:
    columns = (np.ones(len(differences)), differences, differences**2, differences >= _LEAST, differences <= -_LEAST)
    return _Moves(*(np.bincount(numbers, column, minlength=size) for column in columns))
