"""Values of a run's columns, on their way to the wire and back."""

from __future__ import annotations

import math
from typing import Dict, List, Mapping, Sequence, Tuple, Union

import numpy as np

from sis import arrays
from sis.arrays import ArrayLike
from sis.run import Column, RunConfig


def _column(config: RunConfig, name: str) -> Tuple[int, Column]:
    for index, column in enumerate(config.columns):
        if column.name == name:
            return index, column
    known = ", ".join(column.name for column in config.columns) or "none"
    raise ValueError(f"column {name!r} is none of the run's: {known}")


def named(config: RunConfig, names: Sequence[str]) -> List[Column]:
    """Those of these names. ValueError if the run has none of one."""
    return [_column(config, name)[1] for name in names]


def _bytes(column: Column, top_k: int, values: ArrayLike, rows: int) -> np.ndarray:
    """uint8 [rows, width], contiguous. ValueError if shape or type are wrong."""
    array = np.ascontiguousarray(arrays.to_numpy(values))
    slots = [top_k] if column.per_slot else []
    width = column.bytes * math.prod(slots)
    wanted = f"column {column.name!r} has shape {list(array.shape)} of {array.dtype}, must be "
    if array.dtype.hasobject or list(array.shape[: 1 + len(slots)]) != [rows, *slots] or array.nbytes != rows * width:
        raise ValueError(f"{wanted}{[rows, *slots]} of {column.bytes} bytes")
    return array.reshape(-1).view(np.uint8).reshape(rows, width)


def of_block(
    config: RunConfig, given: Mapping[str, ArrayLike], rows: int
) -> List[Union[bytes, np.ndarray]]:
    """A block's columns by the run's order, up to the last that is given; b"" for those that
    aren't."""
    found: Dict[int, np.ndarray] = {}
    for name, values in given.items():
        index, column = _column(config, name)
        found[index] = _bytes(column, config.top_k, values, rows)
    return [found.get(index, b"") for index in range(max(found, default=-1) + 1)]


def of_name(config: RunConfig, name: str, values: ArrayLike) -> np.ndarray:
    """The values of one column, of at least one position."""
    rows = len(values) if np.ndim(values) else 0
    if rows == 0:
        raise ValueError("values are empty, must be of at least one position")
    return _bytes(_column(config, name)[1], config.top_k, values, rows)
