"""From the current policy's log-probs to what evaluate takes."""

from __future__ import annotations

from typing import Any, Optional, Tuple

import numpy as np

from sis import _arrays, _ragged
from sis._arrays import ArrayLike
from sis._records import TopKRecords

# flush of numerics.md, section 5: log-envelopes nearer to 0 than this are 0.
_FLUSHED_BELOW = 2.0**-100


def gather(records: TopKRecords, log_softmax: ArrayLike, sampled_ids: Optional[ArrayLike] = None) -> Tuple[Any, Any]:
    """Returns the current policy's log-probs at the recorded ids.

    Args:
        records: Result of fetch_top_k.
        log_softmax: [N, vocabulary], nats, of the distributions that drew records.sampled_ids (with the sampling
            settings of the rollout).
        sampled_ids: int [N], the trainer's own tokens, used where no token is recorded.

    Returns:
        log_probs [N, K] and sampled_log_probs [N], float32, of the input's kind and on its device, without gradients.
        In log_probs, unused slots and missing positions hold the value of token 0, which the service ignores.
        sampled_log_probs is NaN where there is no token (-1, or no `sampled_ids`). The service ignores that too, unless
        options.own_log_probs ask for the ratios of missing positions: then it refuses NaN, as any other number would
        make a wrong ratio.

    Raises:
        ValueError: A shape is wrong, or a token is not in the vocabulary.
    """
    shape = tuple(np.shape(log_softmax))
    if len(shape) != 2 or shape[0] != len(records):
        raise ValueError(f"log_softmax has shape {list(shape)}, must be [{len(records)}, vocabulary]")
    ids, tokens = records.ids, records.sampled_ids
    if sampled_ids is not None:
        own = _arrays.int32("sampled_ids", sampled_ids, (len(records),))
        tokens = np.where(tokens < 0, own, tokens)
    for name, given in (("sampled_ids", tokens), ("records.ids", ids)):
        outside = given >= shape[1]
        if outside.any():
            row = np.argwhere(outside)[0][0]
            raise ValueError(f"{name}, row {row}: {given[outside][0]} is not in [0, {shape[1]})")
    if _arrays.is_tensor(log_softmax):
        import torch

        source = log_softmax.detach()

        def values_at(columns: np.ndarray) -> Any:
            places = torch.from_numpy(columns).to(source.device).clamp(min=0).long()
            return source.gather(1, places).float()

    else:
        array = np.asarray(log_softmax)

        def values_at(columns: np.ndarray) -> Any:
            places = np.maximum(columns, 0).astype(np.int64)
            return np.take_along_axis(array, places, axis=1).astype(np.float32)

    sampled = values_at(tokens[:, None])[:, 0]
    sampled[tokens < 0] = np.nan
    return values_at(ids), sampled


def reduce(records: TopKRecords, log_probs: ArrayLike, top_k: int = 0) -> Tuple[np.ndarray, np.ndarray]:
    """Reduces log-probs to the REDUCED form, which evaluate accepts instead of log_probs, with the same top_k.

    The log-envelopes have the bits that the service computes from these log-probs (docs/numerics.md, section 5), so the
    decisions are the same; the covered masses, which decide nothing, agree to rounding.

    Args:
        records: Result of fetch_top_k, with log-probs.
        log_probs: [N, K], nats, at records.ids, where unused slots may hold anything; or [S] at records.used_ids.
        top_k: Use only the k most probable slots; 0: all K.

    Returns:
        Log-envelopes [N] (nats) and covered masses [N], float32.

    Raises:
        ValueError: A shape is wrong, or top_k is larger than K.
    """
    total, slots = records.log_probs.shape
    if not 0 <= top_k <= slots:
        raise ValueError(f"top_k is {top_k}, must be in [0, {slots}]")
    if np.ndim(log_probs) == 1:
        used = _arrays.float32("log_probs", log_probs, (int(records.offsets[-1]),))
        current = _ragged.widened(used, records.counts, slots, -np.inf)
    else:
        current = _arrays.float32("log_probs", log_probs, (total, slots))
    k = top_k or slots
    behaviour, current = records.log_probs[:, :k], current[:, :k]
    in_use = ~np.isneginf(behaviour)
    with np.errstate(invalid="ignore", over="ignore"):
        # Selection, not arithmetic: an unused slot may hold NaN.
        envelopes = np.where(in_use, current - behaviour, np.float32(-np.inf)).max(axis=1)
        masses = np.where(in_use, np.exp(current), np.float32(0)).sum(axis=1)
    return np.where(np.abs(envelopes) < _FLUSHED_BELOW, np.float32(0), envelopes), masses
