"""On-policy distillation: a teacher's most probable tokens at every position of the student's own
responses, appended, leased and fetched like any other record.
"""

from __future__ import annotations

import math
from typing import NamedTuple, Tuple

import torch

from sis.gathered import Gathered, of_all_slots
from sis.records import TopKRecords

# The least mass that a tail is taken to have, where the other policy's is larger.
_SMALLEST_TAIL = 1e-6


class Divergence(NamedTuple):
    # [N], nats per position, with gradients to the student; 0 at missing positions.
    values: torch.Tensor
    # [N], without gradients: the masses outside the recorded set. 0 at missing positions.
    teacher_tail: torch.Tensor
    student_tail: torch.Tensor


def forward_kl(records: TopKRecords, student: Gathered, smallest_tail: float = _SMALLEST_TAIL) -> Divergence:
    """KL(teacher || student) of the records' teacher.

    student: of sis.torch.log_probs_at. All tokens outside the recorded set count as one. So the value
    is exact if K is the vocabulary, and else never above the divergence over all tokens: what the
    two policies do differently among the others is not seen, how much mass they give them is. A tail
    is taken to have `smallest_tail` at least, and so is a recorded token that the student excludes
    (-inf), where the divergence has no bound. Needs the arrays "ids" and "log_probs".
    """
    student = of_all_slots(records, student)
    log_q, log_p, used = _set(records, student)
    q_tail, p_tail = _tails(log_q, log_p, smallest_tail)
    log_p = torch.where(torch.isneginf(student.log_probs), log_q.clamp(max=math.log(smallest_tail)), log_p)
    of_set = (log_q.exp() * (log_q - log_p)).sum(dim=1)
    return _divergence(of_set + q_tail * (q_tail / p_tail).log(), q_tail, p_tail, used)


def reverse_kl(records: TopKRecords, student: Gathered, smallest_tail: float = _SMALLEST_TAIL) -> Divergence:
    """KL(student || teacher), of the same and in the same way as forward_kl. Its gradient is the exact
    one of that value, not an estimate from the sampled tokens. Recorded tokens that the student excludes
    (-inf) add 0, the limit."""
    log_q, log_p, used = _set(records, of_all_slots(records, student))
    q_tail, p_tail = _tails(log_q, log_p, smallest_tail)
    of_set = (log_p.exp() * (log_p - log_q)).sum(dim=1)
    return _divergence(of_set + p_tail * (p_tail / q_tail).log(), q_tail, p_tail, used)


def jensen_shannon(
    records: TopKRecords, student: Gathered, beta: float = 0.5, smallest_tail: float = _SMALLEST_TAIL
) -> Divergence:
    """beta KL(teacher || m) + (1 - beta) KL(student || m) with m = beta teacher + (1 - beta) student: the
    generalised Jensen-Shannon divergence of GKD (arXiv:2306.13649). Of the same and in the same way as
    forward_kl, but bounded: tokens that the student excludes (-inf) add what they do in the limit.

    beta: above 0 and below 1, where it is 0, whatever the two policies are; ValueError otherwise.
    """
    if not 0 < beta < 1:
        raise ValueError(f"beta is {beta}, must be above 0 and below 1")
    log_q, log_p, used = _set(records, of_all_slots(records, student))
    tails = _tails(log_q, log_p, smallest_tail)
    log_q, log_p = (torch.cat([of_set, tail.log()[:, None]], dim=1) for of_set, tail in zip((log_q, log_p), tails))
    log_m = torch.logaddexp(log_q + math.log(beta), log_p + math.log1p(-beta))
    each = beta * log_q.exp() * (log_q - log_m) + (1 - beta) * log_p.exp() * (log_p - log_m)
    return _divergence(each.sum(dim=1), *tails, used)


def _set(records: TopKRecords, student: Gathered) -> Tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """[N, K] log-probs of teacher and student, so low where a slot is unused, or the student excludes its
    token, that they add nothing, with gradients that are no NaN; and bool [N]: whether there is a
    record."""
    log_p = student.log_probs
    log_q = torch.from_numpy(records.log_probs).to(log_p)
    used = torch.isfinite(log_q)
    nothing = -1e4
    none = ~used | torch.isneginf(log_p)
    return log_q.masked_fill(~used, nothing), log_p.masked_fill(none, nothing), used.any(dim=1)


def _tails(log_q: torch.Tensor, log_p: torch.Tensor, smallest: float) -> Tuple[torch.Tensor, torch.Tensor]:
    return tuple((1 - values.exp().sum(dim=1)).clamp(min=smallest) for values in (log_q, log_p))  # type: ignore


def _divergence(
    values: torch.Tensor, q_tail: torch.Tensor, p_tail: torch.Tensor, present: torch.Tensor
) -> Divergence:
    return Divergence(*(array.masked_fill(~present, 0.0) for array in (values, q_tail.detach(), p_tail.detach())))
