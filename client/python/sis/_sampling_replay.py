"""Sampling replay: with top-p, top-k or min-p the rollout's tokens came from a truncated
distribution, and the trainer's ratios are right only if it truncates its own in the same way.

Without it every ratio p(y)/q(y) is too small, by the mass that the trainer's policy has outside of
what was kept: q was renormalised, p was not.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from sis._gathered import Gathered, of_all_slots
from sis._records import TopKRecords

# Probabilities of a complete set sum to 1 but for rounding: one-sided by fixed16, or of float32.
_MISSING_MASS = 1e-2
_ROUNDING = 1e-5


class Replayed(NamedTuple):
    # Renormalised over the recorded set where that is complete, with gradients:
    # current.sampled_log_probs are those of the sampled tokens.
    current: Gathered
    # [N]: the current policy's mass on the recorded set, without gradients. What plain ratios are
    # too small by where `complete`.
    kept_mass: torch.Tensor
    # bool [N].
    complete: torch.Tensor


def is_complete(records: TopKRecords) -> torch.Tensor:
    """bool [N], on the CPU: whether a position's recorded set is all that the rollout, with top-p,
    top-k or min-p, could sample.

    It is if slots are unused and the probabilities sum to 1, but for 1% at most, or if they
    sum to 1 as nearly as float32 can. The log-probs must be those of the draw: Sampling("processed"),
    which the service demands with a filter. So K should be above the number of tokens that are kept;
    where it is not, a set of K is not known to be complete unless the run's log-probs are float32. In a
    run with a mass target (records.mass) unused slots tell nothing, as sets end where they reach it: only
    the sum of 1 counts, so record such rollouts without one. False for missing positions. Needs the
    arrays "ids" and "log_probs".
    """
    mass = torch.from_numpy(records.log_probs).double().exp().sum(dim=1)
    whole = mass >= 1 - _ROUNDING
    if 0 < records.mass < 1:
        return whole
    unused = torch.from_numpy(records.ids).lt(0).any(dim=1)
    return whole | unused & (mass >= 1 - _MISSING_MASS)


def replayed(records: TopKRecords, current: Gathered) -> Replayed:
    """The current policy's log-probs under the rollout's truncation.

    current: of sis.torch.log_probs_at, or of any gather. Where the set is not complete, or the current policy
    excludes all of it, they are as they were.
    """
    current = of_all_slots(records, current)
    device = current.log_probs.device
    complete = is_complete(records).to(device)
    unused = torch.from_numpy(records.ids).lt(0).to(device)
    current = current._replace(log_probs=current.log_probs.masked_fill(unused, -torch.inf))
    # Rows that are not renormalised need numbers whose gradient is no NaN.
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
