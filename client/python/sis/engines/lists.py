"""Lists of tokens, as engines return them, as arrays."""

from __future__ import annotations

import itertools
from typing import Iterable, List, Tuple

import numpy as np

# What the JSON of vLLM says instead of -inf.
JSON_MINUS_INFINITY = -9999.0


def padded(
    ids: Iterable[Iterable[int]], log_probs: Iterable[Iterable[float]], counts: np.ndarray, width: int
) -> Tuple[np.ndarray, np.ndarray]:
    """int32 and float32 [T, width] of `counts` [T] tokens per position, which stand one after the
    other in the lists, one after the other. -1 and -inf where there is none."""
    total = int(counts.sum())
    flat_ids = np.fromiter(itertools.chain.from_iterable(ids), np.int32, total)
    flat_log_probs = np.fromiter(itertools.chain.from_iterable(log_probs), np.float32, total)
    if (counts == width).all():
        return flat_ids.reshape(-1, width), flat_log_probs.reshape(-1, width)
    tokens = np.full((len(counts), width), -1, np.int32)
    values = np.full((len(counts), width), -np.inf, np.float32)
    used = np.arange(width) < counts[:, None]
    tokens[used] = flat_ids
    values[used] = flat_log_probs
    return tokens, values


def strictly_above(tokens: np.ndarray, values: np.ndarray, rank: int) -> Tuple[np.ndarray, np.ndarray]:
    """Only the tokens that are more probable than the one of `rank` (from 1).

    For lists that hold the sampled token in the place of their least probable one: what is above
    the one before that does not depend on which token was drawn, not even where several are equally
    probable.
    """
    limit = -np.sort(-values, axis=1)[:, rank - 1 : rank]
    kept = values > limit
    return np.where(kept, tokens, -1), np.where(kept, values, np.float32(-np.inf))


def stretches(mask: np.ndarray) -> List[Tuple[int, int]]:
    """The ranges [first, last) where the mask is not 0."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], (mask != 0).astype(np.int8), [0]])))
    return list(zip(edges[::2].tolist(), edges[1::2].tolist()))
