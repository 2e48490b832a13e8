"""Converts an engine's log-prob columns to records."""

from __future__ import annotations

import sys
from typing import List, NamedTuple, Optional, Sequence, Tuple, Union

import numpy as np

from sis import _arrays
from sis._arrays import ArrayLike

# Index of the lower int32 in an int64.
_LOW = 0 if sys.byteorder == "little" else 1


class TopK(NamedTuple):
    """Valid records of T positions: `stream.block(..., **record._asdict())`.

    Attributes:
        sampled_ids: int32 [T].
        sampled_log_probs: float32 [T], nats.
        top_k_ids: int32 [T, K]; -1 in unused slots.
        top_k_log_probs: float32 [T, K], nats; -inf in unused slots.
    """

    sampled_ids: np.ndarray
    sampled_log_probs: np.ndarray
    top_k_ids: np.ndarray
    top_k_log_probs: np.ndarray

    @staticmethod
    def void(positions: int, top_k: int) -> TopK:
        """Returns positions without a usable log-prob: sampled id -1, sampled log-prob NaN, an empty set.

        Args:
            positions: T.
            top_k: K.

        Returns:
            The records.
        """
        return TopK(
            np.full(positions, -1, np.int32), np.full(positions, np.nan, np.float32),
            np.full((positions, top_k), -1, np.int32), np.full((positions, top_k), -np.inf, np.float32),
        )  # fmt: skip

    def part(self, rows: Union[slice, np.ndarray]) -> TopK:
        """Returns some of the positions.

        Args:
            rows: Their numbers, or a slice.

        Returns:
            The records.
        """
        return TopK(*(array[rows] for array in self))

    def split(self, lengths: Sequence[int]) -> List[TopK]:
        """Cuts the positions into parts.

        Args:
            lengths: Number of positions of each part.

        Returns:
            The parts.
        """
        return [self.part(slice(end - length, end)) for length, end in zip(lengths, np.cumsum(lengths))]

    def write(self, rows: Union[slice, np.ndarray], record: TopK) -> None:
        """Writes the positions of another record to some rows.

        Args:
            rows: Their numbers, or a slice.
            record: The other record.
        """
        for array, values in zip(self, record):
            array[rows] = values


def canonical(
    ids: ArrayLike,
    log_probs: ArrayLike,
    sampled_ids: ArrayLike,
    sampled_log_probs: ArrayLike,
    top_k: int,
    sampled_column: Optional[str] = None,
) -> TopK:
    """Sorts an engine's columns into the record of docs/numerics.md, section 2.

    If the sampled token is in V_K, its log-prob there is also returned as the sampled log-prob: the set must not depend
    on what was drawn.

    Args:
        ids: int [T, C]: per position, C tokens in any order, C above or below top_k. A negative id counts as empty.
        log_probs: float32 [T, C], nats; -inf counts as empty. If there are more than top_k tokens, the most probable
            stay; of equally probable tokens, smaller ids.
        sampled_ids: int [T].
        sampled_log_probs: float32 [T], nats.
        top_k: K.
        sampled_column: "first" or "last" if the engine puts the sampled token into a column of its own, next to its C -
            1 most probable tokens (vLLM: "first"), or "any" if that column must be searched (as TRL sorts vLLM's). That
            column does not count as one of the most probable: whether a token is in V_K must not depend on the draw. A
            sampled token that the other columns do not repeat belongs to V_K only if they leave a place empty, as when
            the engine lists every token once; then it takes that place. None: all C columns are the most probable
            tokens.

    Returns:
        The records.

    Raises:
        ValueError: A log-prob is NaN or +inf, an id stands twice, a sampled log-prob is not finite, or the sampled
            column holds another token. The message names field and position.
    """
    if top_k < 1:
        raise ValueError(f"top_k is {top_k}, must be at least 1")
    if sampled_column not in (None, "first", "last", "any"):
        raise ValueError(f"sampled_column is {sampled_column!r}, must be None, 'first', 'last' or 'any'")
    tokens = _arrays.int32("ids", ids, (None, None))
    rows, columns = tokens.shape
    values = _arrays.float32("log_probs", log_probs, (rows, columns))
    sampled = _arrays.int32("sampled_ids", sampled_ids, (rows,))
    sampled_values = _arrays.float32("sampled_log_probs", sampled_log_probs, (rows,)).copy()
    _refuse("log_probs", values, ~(values < np.inf))
    _refuse("sampled_log_probs", sampled_values, ~np.isfinite(sampled_values))

    if sampled_column is not None:
        if columns == 0:
            raise ValueError("ids has no columns, so no sampled one")
        own: Union[int, np.ndarray] = 0 if sampled_column == "first" else columns - 1
        if sampled_column == "any":
            is_sampled = tokens == sampled[:, None]
            _refuse("sampled_ids", sampled, ~is_sampled.any(axis=1), "is in no column of ids")
            own = is_sampled.argmax(axis=1)
        here = np.arange(rows), own
        _refuse("the sampled column of ids", tokens[here], tokens[here] != sampled)
    used = (tokens >= 0) & (values > -np.inf)
    if not used.all():
        if sampled_column is not None:
            others = used.copy()
            others[here] = False
            listed = (others & (tokens == sampled[:, None])).any(axis=1)
            room = others.sum(axis=1) < columns - 1
            used[here] &= ~listed & room
        tokens, values = np.where(used, tokens, -1), np.where(used, values, -np.inf)
    elif sampled_column in ("first", "last"):
        # No row has an empty slot for the column's token.
        others_only = slice(1, None) if sampled_column == "first" else slice(-1)
        tokens, values = tokens[:, others_only], values[:, others_only]
        columns -= 1
    elif sampled_column == "any":
        tokens, values = tokens.copy(), values.copy()
        tokens[here], values[here] = -1, -np.inf

    tokens, values = _sorted(tokens, values)
    by_id = np.sort(tokens, axis=1)
    same = by_id[:, 1:] == by_id[:, :-1]
    if same.any():
        _refuse("ids", by_id[:, 1:], same & (by_id[:, 1:] >= 0), "stands twice")

    kept = min(top_k, columns)
    tokens, values = tokens[:, :kept], values[:, :kept]
    hit = tokens == np.where(sampled >= 0, sampled, -2)[:, None]
    inside = hit.any(axis=1)
    sampled_values[inside] = values[hit]
    record = TopK.void(rows, top_k)
    record.sampled_ids[:], record.sampled_log_probs[:] = sampled, sampled_values
    record.top_k_ids[:, :kept], record.top_k_log_probs[:, :kept] = tokens, values
    return record


def _sorted(tokens: np.ndarray, values: np.ndarray) -> Tuple[np.ndarray, np.ndarray]:
    """Sorts each row by descending log-prob, then by ascending id. Empty columns (-1, -inf) are last.

    Uses one key per column, with log-prob and id as its halves, because the bits of floats of one sign have the
    order of the floats. That takes a twelfth of the time of sorting by two keys.
    """
    # Turns -0 into 0, which has other bits.
    bits = (values.astype(np.float32, copy=False) + np.float32(0)).view(np.int32)
    keys = np.empty((*tokens.shape, 2), np.int32)
    keys[..., _LOW], keys[..., 1 - _LOW] = tokens, ~(bits ^ (bits >> 31) & 0x7FFFFFFF)
    # The lower half compares as unsigned, so -1 is the largest id.
    keys.view(np.int64)[..., 0].sort(axis=1)
    rising = ~keys[..., 1 - _LOW]
    return keys[..., _LOW], (rising ^ (rising >> 31) & 0x7FFFFFFF).view(np.float32)


def _refuse(name: str, values: np.ndarray, wrong: np.ndarray, why: str = "is not allowed") -> None:
    if wrong.any():
        where = np.unravel_index(int(np.argmax(wrong)), wrong.shape)
        raise ValueError(f"{name}, position {where[0]}: {values[where]} {why}")
