"""Score centering (Marek and Ryabinin, arXiv:2609.20807): off-policy, the mean of the score grad log
p over the sampler's draws is not 0, and a policy gradient drifts towards the sampler by as much as
the expected advantage at a prefix. The record holds what is needed to subtract that mean.
"""

from __future__ import annotations

from typing import Any, Callable, Optional

import torch

from sis.gathered import Gathered, of_all_slots
from sis.records import TopKRecords

# In the place of smaller weights where something is divided by them.
_SMALLEST_WEIGHT = 1e-30


def score_center(
    records: TopKRecords,
    current: Gathered,
    weight: Optional[Callable[[torch.Tensor], torch.Tensor]] = None,
    smallest_tail: float = 1e-6,
) -> torch.Tensor:
    """[N]: what to subtract from weight(ratio) * log p of the sampled token, before the advantage:

        center = sis.torch.score_center(records, current, weight)
        objective = advantages * (weight(ratio).detach() * current.sampled_log_probs - center)

    Its gradient is the sampler's mean of weight * grad log p. current: of sis.torch.log_probs_at.
    weight: of a tensor of ratios p/q, the correction that the objective has, `lambda ratio:
    ratio.clamp(max=2)` for TIS; None: 1, no correction.

    Outside of the recorded set the sampler is taken to be proportional to the current policy, with the
    mass that it has there: exact if the set is complete, or K is the vocabulary. A tail lighter than
    `smallest_tail` is taken to be empty. Tokens that the current policy excludes (-inf) have no score,
    and are left out. 0 at missing positions. Needs the arrays "ids" and "log_probs".
    """
    current = of_all_slots(records, current)
    with torch.no_grad():
        log_p = current.log_probs
        log_q = torch.from_numpy(records.log_probs).to(log_p)
        used = torch.isfinite(log_q)
        scored = used & ~torch.isneginf(log_p)
        p, q = log_p.exp().masked_fill(~used, 0.0), log_q.exp()
        # Of both policies, outside the set.
        p_tail, q_tail = 1 - p.sum(dim=1), 1 - q.sum(dim=1)
        there = (p_tail > smallest_tail) & (q_tail > smallest_tail)
        # The mean of the tail's scores under p is minus that of the set's: so only the set is left.
        scale = torch.where(there, q_tail / p_tail.clamp(min=smallest_tail), torch.zeros_like(q_tail))
        if weight is None:
            of_set, of_tail = q, scale
        else:
            ratio = (log_p - log_q).masked_fill(~scored, 0.0).exp()
            of_set = q * weight(ratio)
            of_tail = scale * weight(1 / scale.masked_fill(~there, 1.0))
        coefficients = of_set - of_tail[:, None] * p
    return (coefficients * current.log_probs.masked_fill(~scored, 0.0)).masked_fill(~scored, 0.0).sum(dim=1)


def selective_weight(
    records: TopKRecords, current: Gathered, limit: float, expected: bool = False
) -> Callable[[torch.Tensor], torch.Tensor]:
    """For score_center: what a token of ratio w weighs on average over the decisions of SIS, a + (1 - a) w,
    where no weight is above `limit`, at least 1. Tokens outside of the recorded set are never accepted.

    expected: the weights that are limited are these means (SisConfig(weight="expected")), not those of
    accepted and rejected tokens.
    """
    log_p = of_all_slots(records, current).log_probs.detach()
    log_q = torch.from_numpy(records.log_probs).to(log_p)
    # [N, 1].
    envelope = (log_p - log_q).masked_fill(~torch.isfinite(log_q), -torch.inf).amax(dim=1, keepdim=True).exp()

    def weight(ratio: torch.Tensor) -> torch.Tensor:
        limited = ratio.clamp(max=limit)
        if ratio.dim() == 1:
            return limited
        # Unused slots, and missing positions, come to anything finite.
        a = (ratio / envelope.clamp(min=1e-30)).clamp(max=1.0)
        return (a + (1 - a) * ratio).clamp(max=limit) if expected else a + (1 - a) * limited

    return weight


def centering(log_probs: torch.Tensor, old_log_probs: torch.Tensor, center: torch.Tensor, limit: float) -> torch.Tensor:
    """What to add to the log-probs that a loss gets whose gradient is that of weight * log_probs, for it to have
    that of weight * log_probs - center: 0, with the gradient of -center / weight. The weight is exp(log_probs -
    old_log_probs), up to `limit`. All of one shape."""
    weight = (log_probs - old_log_probs).detach().exp().clamp(_SMALLEST_WEIGHT, limit)
    return (center.detach() - center) / weight


def check_product(*settings: tuple[str, Any, Any]) -> None:
    """ValueError unless the loss is weight times log-prob. Of each setting its name, what it is, and what it
    must be."""
    for name, value, needed in settings:
        if value != needed:
            raise ValueError(
                f"{name} is {value!r}, but score_centering subtracts the mean of weight times score, so the loss "
                f"must be their product: set it to {needed!r}"
            )
