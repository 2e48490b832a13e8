"""The current policy's log-probs at the recorded ids, and sampling replay: the same under the rollout's truncation.

With top-p, top-k or min-p the rollout's tokens came from a truncated distribution, and q was renormalised. The
trainer's ratios p(y)/q(y) are right only if p is truncated in the same way. Otherwise each ratio is too small by the
mass that p has outside the kept tokens.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from sis import _ragged
from sis._records import TopKRecords

# Tolerance of the sum of a complete set's probabilities, which rounding to fixed16 or float32 changes.
_MISSING_MASS = 1e-2
_ROUNDING = 1e-5


class Gathered(NamedTuple):
    """Log-probs for evaluate: `client.evaluate(..., **gathered._asdict())`.

    Both come from the same logits, so a sampled token has the same bits in its slot.

    Attributes:
        log_probs: float32 [N, K], nats; or [S], at TopKRecords.used_ids.
        sampled_log_probs: float32 [N], nats; NaN where the token is unknown.
    """

    log_probs: torch.Tensor
    sampled_log_probs: torch.Tensor


def of_all_slots(records: TopKRecords, gathered: Gathered) -> Gathered:
    """Returns log_probs [N, K], -inf in unused slots. Gradients pass.

    Args:
        records: Result of fetch_top_k.
        gathered: With log_probs [N, K], or [S].

    Returns:
        The same log-probs, one per slot.

    Raises:
        ValueError: There are not as many log_probs as used slots.
    """
    if gathered.log_probs.dim() == 2:
        return gathered
    if len(gathered.log_probs) != records.offsets[-1]:
        raise ValueError(
            f"log_probs have {len(gathered.log_probs)} values, the records {records.offsets[-1]} used slots"
        )
    used = torch.from_numpy(_ragged.used(records.counts, records.top_k)).to(gathered.log_probs.device)
    wide = gathered.log_probs.new_full(used.shape, -torch.inf)
    return gathered._replace(log_probs=wide.masked_scatter(used, gathered.log_probs))


class Replayed(NamedTuple):
    """Result of replayed.

    Attributes:
        current: Log-probs renormalised over the recorded set where the set is complete, with gradients. The sampled
            tokens' log-probs are current.sampled_log_probs.
        kept_mass: [N], the current policy's mass on the recorded set, without gradients. Where `complete`, plain ratios
            are too small by this factor.
        complete: bool [N], whether the recorded set has all tokens that the rollout could sample.
    """

    current: Gathered
    kept_mass: torch.Tensor
    complete: torch.Tensor


def is_complete(records: TopKRecords) -> torch.Tensor:
    """Returns which recorded sets have all tokens that the rollout could sample.

    A set is complete if it has unused slots and its probabilities sum to at least 0.99, or if they sum to 1 within
    float32's precision. The log-probs must be those of the draw, Sampling("processed"), which the service requires
    with a filter. K should exceed the number of kept tokens; a full set is known to be complete only if the run's
    log-probs are float32. In a run with a mass target (records.mass) sets end early, so only the sum of 1 counts:
    record such rollouts without a mass target.

    Args:
        records: Result of fetch_top_k, with log-probs.

    Returns:
        bool [N], on the CPU. Missing positions are False.
    """
    mass = torch.from_numpy(records.log_probs).double().exp().sum(dim=1)
    whole = mass >= 1 - _ROUNDING
    if 0 < records.mass < 1:
        return whole
    unused = torch.from_numpy(records.ids).lt(0).any(dim=1)
    return whole | unused & (mass >= 1 - _MISSING_MASS)


def replayed(records: TopKRecords, current: Gathered) -> Replayed:
    """Returns the current policy's log-probs under the rollout's truncation.

    Values stay unchanged where the set is not complete, or the current policy excludes all of it.

    Args:
        records: Result of fetch_top_k, with log-probs.
        current: Result of sis.torch.log_probs_at, or of any gather.

    Returns:
        The renormalised log-probs, and where they are.
    """
    current = of_all_slots(records, current)
    device = current.log_probs.device
    complete = is_complete(records).to(device)
    unused = torch.from_numpy(records.ids).lt(0).to(device)
    current = current._replace(log_probs=current.log_probs.masked_fill(unused, -torch.inf))
    # Rows that are not renormalised need values without NaN gradients.
    as_they_are = ~complete | torch.isneginf(current.log_probs).all(dim=1)
    kept = current.log_probs.masked_fill(as_they_are[:, None], 0.0).logsumexp(dim=1)
    kept = kept.masked_fill(as_they_are, 0.0)
    return Replayed(
        current._replace(
            log_probs=current.log_probs - kept[:, None], sampled_log_probs=current.sampled_log_probs - kept
        ),
        current.log_probs.detach().exp().sum(dim=1),
        complete,
    )
