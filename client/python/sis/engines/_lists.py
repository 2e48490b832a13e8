"""Lists of tokens, as engines return them, as arrays."""

from __future__ import annotations

import itertools
from typing import Iterable, List, Optional, Sequence, Tuple

import numpy as np

from sis import _ragged
from sis._arrays import ArrayLike
from sis.engines._adapter import NULL_LOG_PROB, Columns
from sis.engines.openai import Position


def nullable(log_probs: Sequence[Optional[float]]) -> np.ndarray:
    """float32, with NULL_LOG_PROB for null."""
    array = np.asarray(log_probs, np.float32)
    for place in np.flatnonzero(np.isnan(array)).tolist():
        if log_probs[place] is None:
            array[place] = NULL_LOG_PROB
    return array


def columns_of(positions: Sequence[Position], sampled_column: Optional[str], at_least: int = 1) -> Columns:
    """Returns the columns of positions that list tokens, as many as the longest list has, or `at_least`."""
    lists = [position.ids for position in positions]
    ids, log_probs = padded(lists, (position.log_probs for position in positions), list(map(len, lists)), at_least)
    sampled = np.fromiter((position.token for position in positions), np.int64, len(positions))
    return Columns(ids, log_probs, sampled, nullable([position.log_prob for position in positions]), sampled_column)


def padded(
    ids: Iterable[Iterable[int]], log_probs: Iterable[Iterable[Optional[float]]], counts: ArrayLike, at_least: int = 1
) -> Tuple[np.ndarray, np.ndarray]:
    """Returns the listed tokens of T positions as rows; -1 and -inf where there is none.

    Args:
        ids, log_probs: The tokens of all positions, in any number of lists.
        counts: int [T], the number of tokens of each position.
        at_least: Smallest number of columns.

    Returns:
        int64 and float32 [T, C]; C is the largest count, or `at_least`.

    Raises:
        ValueError: There are fewer ids, or another number of log-probs, than `counts` says.
    """
    sizes = np.asarray(counts, np.int64)
    total = int(sizes.sum())
    # Older numpy cuts what 32 bits do not hold, without a word.
    flat_ids = np.fromiter(itertools.chain.from_iterable(ids), np.int64, total)
    # null is NaN.
    flat_log_probs = np.asarray(list(itertools.chain.from_iterable(log_probs)), np.float32)
    if len(flat_log_probs) != total:
        raise ValueError(f"the lists hold {len(flat_log_probs)} log-probs for {total} tokens")
    return widened(flat_ids, flat_log_probs, sizes, max(at_least, int(sizes.max(initial=0))))


def widened(ids: np.ndarray, log_probs: np.ndarray, counts: np.ndarray, width: int) -> Tuple[np.ndarray, np.ndarray]:
    """Returns ids and log-probs [sum of counts] as rows of `width` columns; -1 and -inf fill the rest."""
    return _ragged.widened(ids, counts, width, -1), _ragged.widened(log_probs, counts, width, -np.inf)


def strictly_above(tokens: np.ndarray, values: np.ndarray, rank: int) -> Tuple[np.ndarray, np.ndarray]:
    """Returns the tokens that are more probable than the token of `rank`, counted from 1. NaN stays.

    Some lists hold the sampled token in place of their least probable token. The tokens above the last two don't
    depend on the draw, even if several are equally probable.
    """
    limit = -np.sort(-values, axis=1)[:, rank - 1 : rank]
    kept = ~(values <= limit)
    return np.where(kept, tokens, -1), np.where(kept, values, np.float32(-np.inf))


def ranges_of(mask: np.ndarray) -> List[Tuple[int, int]]:
    """Returns the ranges [first, last) where the mask is not 0."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], (mask != 0).astype(np.int8), [0]])))
    return list(zip(edges[::2].tolist(), edges[1::2].tolist()))
