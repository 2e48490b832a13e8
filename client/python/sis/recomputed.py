"""Records the trainer's own sets while it recomputes old log-probs, instead of the engine's.

    sets = sis.recomputed.sets(batch, tokens, logits, run.config.top_k)       # in a run of their own
    sis.append_many(client, run, sets.entries, sampling=sampling)
"""

from __future__ import annotations

from typing import Callable, List, NamedTuple

import torch

from sis import _entries
from sis.engines._lists import ranges_of
from sis._gathered import Gathered
from sis._records import Slice, TopKRecords
from sis._top_k import TopK, canonical
from sis.torch import PaddedBatch, gather

# Number of positions whose logits are in memory at a time.
_ROWS = 256


@torch.no_grad()
def record(
    positions: torch.Tensor,
    logits: Callable[[torch.Tensor], torch.Tensor],
    gathered: Callable[[TopKRecords], Gathered],
    tokens: torch.Tensor,
    top_k: int,
) -> TopK:
    """Makes records of the policy's own K most probable tokens at N positions.

    The log-probs are those that `gathered` finds, as it does at the updates, so that equal policies have ratios of 1.

    Args:
        positions: [N, ...].
        logits: Function from some rows of `positions` to their logits [n, V].
        gathered: Function from records to log-probs at their ids.
        tokens: int [N], the sampled tokens.
        top_k: K.

    Returns:
        The records.
    """
    found = [rows.topk(min(top_k, rows.shape[1])).indices for rows in map(logits, positions.split(_ROWS))]
    ids, sampled = (values.int().cpu().numpy() for values in (torch.cat(found), tokens))
    own = gathered(TopKRecords.of_rows([Slice("own", length=len(ids))], ids, sampled))
    log_probs = own.log_probs.view(ids.shape).cpu()
    return canonical(ids, log_probs, sampled, own.sampled_log_probs.cpu(), top_k)


class Sets(NamedTuple):
    """Result of sets.

    Attributes:
        entries: For sis.append_many, sealed.
        sampled_log_probs: float32 [N], on the CPU, nats: the policy's log-probs of the sampled tokens, and 0 where the
            mask is false.
    """

    entries: List[_entries.AppendEntry]
    sampled_log_probs: torch.Tensor


@torch.no_grad()
def sets(batch: PaddedBatch, tokens: torch.Tensor, logits: torch.Tensor, top_k: int, policy_version: int = 0) -> Sets:
    """Makes entries of the policy's own K most probable tokens, as if it were the behaviour policy.

    For a policy with the weights that generated, and an engine whose own log-probs are not recorded, or in another run.

    Args:
        batch: Where the positions are.
        tokens: int [B, T].
        logits: [B, T, V]: of these tokens, not of the next ones, divided by the temperature of the rollouts.
        top_k: K.
        policy_version: Version of these weights.

    Returns:
        Entries, and the log-probs of the sampled tokens.
    """
    flat, every = batch.flat(tokens).cpu(), logits.flatten(0, 1)
    own = torch.zeros(len(batch))
    made: List[_entries.AppendEntry] = []
    begin = 0
    for part in batch.slices:
        for first, last in ranges_of(batch.mask[begin : begin + part.length].numpy()):
            here = slice(begin + first, begin + last)
            rows = batch.rows[here].to(every.device)
            found = record(
                rows, every.__getitem__, lambda records: gather(records, every, rows=rows), flat[here], top_k
            )
            own[here] = torch.from_numpy(found.sampled_log_probs)
            made.append(_entries.Block(part.sequence, first, policy_version, **found._asdict(), attempt=part.attempt))
        made.append(_entries.Seal(part.sequence, part.length, part.attempt))
        begin += part.length
    return Sets(made, own)
