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
    """Records the policy's own K most probable tokens at N positions.

    Their log-probs come from `gathered`, as they do at the updates, so that equal policies have ratios of exactly 1.

    Args:
        positions: [N, ...]. `logits` turns some of its rows into [n, V].
        tokens: int [N], the sampled tokens.
    """
    found = [rows.topk(min(top_k, rows.shape[1])).indices for rows in map(logits, positions.split(_ROWS))]
    ids, sampled = (values.int().cpu().numpy() for values in (torch.cat(found), tokens))
    own = gathered(TopKRecords.of_rows([Slice("own", length=len(ids))], ids, sampled))
    log_probs = own.log_probs.view(ids.shape).cpu()
    return canonical(ids, log_probs, sampled, own.sampled_log_probs.cpu(), top_k)


class Sets(NamedTuple):
    # For sis.append_many, sealed.
    entries: List[_entries.AppendEntry]
    # float32 [N], on the CPU, nats: the policy's log-probs of the sampled tokens, and 0 where the mask is false.
    sampled_log_probs: torch.Tensor


@torch.no_grad()
def sets(batch: PaddedBatch, tokens: torch.Tensor, logits: torch.Tensor, top_k: int, policy_version: int = 0) -> Sets:
    """Returns the policy's own K most probable tokens as records of the behaviour policy.

    The policy must have the weights that generated the tokens. Log-probs of the engine must not be recorded in the
    same run.

    Args:
        tokens: int [B, T].
        logits: [B, T, V], which predict these tokens, not the next ones, divided by the rollouts' temperature.
        policy_version: The version of these weights.
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
            made.append(_entries.Block(part.sequence, first, policy_version, *found, part.attempt))
        made.append(_entries.Seal(part.sequence, part.length, part.attempt))
        begin += part.length
    return Sets(made, own)
