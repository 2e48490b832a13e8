"""The current policy's log-probs at the recorded ids."""

from __future__ import annotations

from typing import NamedTuple

import torch


class Gathered(NamedTuple):
    """`client.evaluate(..., **gathered._asdict())`. Both come from the same logits, so a sampled
    token has the same bits in its slot."""

    # float32 [N, K], nats; or [S], at TopKRecords.used_ids.
    log_probs: torch.Tensor
    # float32 [N], nats; NaN where nobody names the token.
    sampled_log_probs: torch.Tensor
