"""Checks that need the tokens of a run."""

from __future__ import annotations

import numpy as np

from sis._evaluation import Decision
from sis.diagnose.check import Answer, Measured, Moments, question
from sis.diagnose.compared import Compared
from sis.diagnose.difference import BEYOND_NOISE

_ENOUGH = 20


# Such a share of what the current policy wants can never be accepted.
@question(
    "Do the recorded tokens hold most of the mass?",
    "mean residual mass, if the behaviour policy's own tokens leave out as much by half",
    0.2,
    "top_k or the mass target of the run: record more tokens",
)
def check_coverage(compared: Compared) -> Answer:
    """The recorded tokens leave out too much of what the policies give any weight."""
    decided, lists = compared.decisions, compared.a.lists
    scored = decided.scored
    count = int(scored.sum())
    if count < _ENOUGH:
        return "too few positions have a ratio"
    outside = int((decided.decisions[scored] == Decision.OUTSIDE_TOP_K).sum())
    residual = float(decided.residual_masses[scored].astype(np.float64).mean())
    left_out = float(np.maximum(0.0, 1 - lists.sums(lists.probs)[scored]).mean())
    if left_out < residual / 2:
        return None
    return Measured(
        residual,
        f"K is too small: {lists.counts[scored].max()} recorded tokens leave out {100 * left_out:.0f}% of the "
        f"behaviour policy's mass and {100 * residual:.0f}% of the current one's, and {100 * outside / count:.0f}% of "
        "the sampled tokens, which are never accepted.",
    )


# A policy that is certain of a token is so on both sides.
@question(
    "Are the recorded log-probs of the sampled tokens log-probs?",
    "D per token in nats where at least 8 recorded log-probs in a row are exactly 0",
    0.1,
    "what writes the records: log-probs of 0.0 are often padding of tokens that were not sampled, or were tokenized "
    "again",
)
def check_zeros(compared: Compared) -> Answer:
    """Own log-probs of exactly 0, many in a row, where the current policy is not certain."""
    in_a_row = 8
    is_zero = compared.decisions.scored & (compared.a.given == 0)
    # Ranges of zeros, each within its sequence.
    begins = is_zero & ~(np.append(False, is_zero[:-1])[: len(is_zero)] & (compared.positions > 0))
    numbers = np.cumsum(begins) - 1
    long = np.flatnonzero(np.bincount(numbers[is_zero]) >= in_a_row)
    if len(long) == 0:
        return None
    zeros = Moments.of(compared.deviations[is_zero & np.isin(numbers, long)])
    first = np.flatnonzero(begins)[long[0]]
    return Measured(
        zeros.mean,
        f"{zeros.number} recorded log-probs in {len(long)} ranges are exactly 0, the first from position "
        f"{compared.positions[first]} of sequence {compared.sequences[first]} on; the current policy differs by "
        f"{zeros.mean:.2g} nats per token. They are padding, not log-probs.",
    )


# A trainer advances the version before workers have its weights.
@question(
    "Are the tokens' versions at most the run's?",
    "share of tokens of a version newer than the run's",
    0.001,
    "AdvanceVersion, which the trainer must call before it hands weights out, and how workers count versions",
)
def check_ahead(compared: Compared) -> Answer:
    """Tokens are of versions newer than the run's."""
    staleness = compared.decisions.staleness[compared.decisions.scored]
    count, ahead = len(staleness), int((staleness < 0).sum())
    if count < _ENOUGH:
        return "too few positions have a ratio"
    return Measured(
        ahead / count,
        f"{ahead} of {count} tokens are of versions newer than the run's, by up to {max(0, -int(staleness.min()))}: "
        "their age is unknown, and max_staleness doesn't apply to them.",
    )


# The differences that fresh tokens do not show are no fault of the engines.
@question(
    "Do tokens of older versions agree as fresh ones do?",
    "D per token behind the current version in nats, less two standard errors, if fresh tokens have half of it at most",
    BEYOND_NOISE,
    "how often workers load new weights, updates per rollout, max_staleness",
)
def check_staleness(compared: Compared) -> Answer:
    """Tokens of the current version agree, those of versions before do not."""
    behind = compared.decisions.staleness > 0
    fresh, stale = Moments.of(compared.deviations[~behind]), Moments.of(compared.deviations[behind])
    if min(fresh.number, stale.number) < _ENOUGH:
        return f"too few tokens are {'behind' if stale.number < _ENOUGH else 'of'} the current version"
    if fresh.mean * 2 > stale.mean or fresh.mean >= BEYOND_NOISE:
        return None
    return Measured(
        stale.mean - 2 * stale.standard_error,
        f"The tokens are too old: those of the current version have D = {fresh.mean:.2g} nats per token, those behind "
        f"it {stale.mean:.2g}.",
    )
