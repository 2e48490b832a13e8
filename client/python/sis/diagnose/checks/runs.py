"""Checks that need the tokens of a run."""

from __future__ import annotations

import numpy as np

from sis.diagnose.check import Check, Moments
from sis.diagnose.compared import Compared
from sis._evaluation import Decision
from sis.diagnose.difference import BEYOND_NOISE

_ENOUGH = 20


def check_coverage(compared: Compared) -> Check:
    """The recorded tokens leave out too much of what the policies give any weight."""
    check = Check(
        "coverage",
        "Do the recorded tokens hold most of the mass?",
        "mean residual mass, if the behaviour policy's own tokens leave out as much by half",
        0.2,
        "such a share of what the current policy wants can never be accepted",
        "top_k or the mass target of the run: record more tokens",
    )
    scored = compared.has_ratio
    count = int(scored.sum())
    if count < _ENOUGH:
        return check.untested("too few positions have a ratio")
    outside = int((compared.decisions.decisions[scored] == Decision.OUTSIDE_TOP_K).sum())
    top_k = int(compared.a_lists.counts[scored].max())
    residual = float(compared.decisions.residual_masses[scored].astype(np.float64).mean())
    masses = compared.a_lists.sums(compared.a_lists.probs)[scored]
    left_out = float(np.maximum(0.0, 1 - masses).mean())
    if left_out < residual / 2:
        return check.clear()
    return check.decide(
        residual,
        f"K is too small: {top_k} recorded tokens leave out {100 * left_out:.0f}% of the behaviour policy's mass and "
        f"{100 * residual:.0f}% of the current one's, and {100 * outside / count:.0f}% of the sampled tokens, which "
        "are never accepted.",
    )


def check_zeros(compared: Compared) -> Check:
    """Own log-probs of exactly 0, many in a row, where the current policy is not certain."""
    in_a_row = 8
    check = Check(
        "zeros",
        "Are the recorded log-probs of the sampled tokens log-probs?",
        "D per token in nats where at least 8 recorded log-probs in a row are exactly 0",
        0.1,
        "a policy that is certain of a token is so on both sides",
        "what writes the records: log-probs of 0.0 are often padding of tokens that were not sampled, or were "
        "tokenized again",
    )
    is_zero = compared.has_ratio & (compared.pair.a.given[compared.at_a] == 0)
    # Ranges of zeros, each within its sequence.
    before = np.concatenate([[False], is_zero[:-1]])
    before[compared.starts[compared.counts > 0]] = False
    begins = np.flatnonzero(is_zero & ~before)
    numbers = np.cumsum(is_zero & ~before) - 1
    lengths = np.bincount(numbers[is_zero], minlength=len(begins))
    long = np.flatnonzero(lengths >= in_a_row)
    if len(long) == 0:
        return check.clear()
    zeros = Moments.of(compared.deviations[is_zero & np.isin(numbers, long)])
    first = begins[long[0]]
    return check.decide(
        zeros.mean,
        f"{zeros.number} recorded log-probs in {len(long)} ranges are exactly 0, the first from position "
        f"{compared.positions[first]} of sequence {compared.sequences[first]} on; the current policy differs by "
        f"{zeros.mean:.2g} nats per token. They are padding, not log-probs.",
    )


def check_ahead(compared: Compared) -> Check:
    """Tokens are of versions newer than the run's."""
    check = Check(
        "ahead",
        "Are the tokens' versions at most the run's?",
        "share of tokens of a version newer than the run's",
        0.001,
        "a trainer advances the version before workers have its weights",
        "AdvanceVersion, which the trainer must call before it hands weights out, and how workers count versions",
    )
    staleness = compared.decisions.staleness[compared.has_ratio]
    count, ahead = len(staleness), int((staleness < 0).sum())
    if count < _ENOUGH:
        return check.untested("too few positions have a ratio")
    return check.decide(
        ahead / count,
        f"{ahead} of {count} tokens are of versions newer than the run's, by up to {max(0, -int(staleness.min()))}: "
        "their age is unknown, and max_staleness doesn't apply to them.",
    )


def check_staleness(compared: Compared) -> Check:
    """Tokens of the current version agree, those of versions before do not."""
    check = Check(
        "staleness",
        "Do tokens of older versions agree as fresh ones do?",
        "D per token behind the current version in nats, less two standard errors, if fresh tokens have half of it at "
        "most",
        BEYOND_NOISE,
        "what fresh tokens do not show is no fault of the engines, but age",
        "how often workers load new weights, updates per rollout, max_staleness",
    )
    behind = compared.decisions.staleness > 0
    fresh, stale = Moments.of(compared.deviations[~behind]), Moments.of(compared.deviations[behind])
    if min(fresh.number, stale.number) < _ENOUGH:
        which = "behind" if stale.number < _ENOUGH else "of"
        return check.untested(f"too few tokens are {which} the current version")
    if fresh.mean * 2 > stale.mean or fresh.mean >= BEYOND_NOISE:
        return check.clear()
    return check.decide(
        stale.mean - 2 * stale.standard_error,
        f"The tokens are too old: those of the current version have D = {fresh.mean:.2g} nats per token, those behind "
        f"it {stale.mean:.2g}.",
    )
