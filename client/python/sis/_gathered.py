"""The current policy's log-probs at the recorded ids."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch

from sis._records import TopKRecords


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
    used = torch.from_numpy(np.arange(records.top_k) < records.counts[:, None]).to(gathered.log_probs.device)
    wide = gathered.log_probs.new_full(used.shape, -torch.inf)
    return gathered._replace(log_probs=wide.masked_scatter(used, gathered.log_probs))
