"""The C++ base algorithms, called from Python."""

import ctypes
from typing import Optional

import numpy as np

from tests.reference.algorithms import Batch

LIBRARY = ctypes.CDLL("tests/algorithms/libalgorithms_c.so")
MASKED, ON_POLICY, OFF_POLICY = range(3)


def pointer(array: Optional[np.ndarray]) -> ctypes.c_void_p:
    return ctypes.c_void_p(None if array is None else array.ctypes.data)


def apply(name: str, parameters: tuple[float, ...], batch: Batch) -> tuple[np.ndarray, np.ndarray]:
    """Surrogates and coefficients, float32 [N]. Values are rounded to float32 on the way in."""
    floats = [
        None if array is None else np.ascontiguousarray(array, np.float32)
        for array in (
            batch.log_ratios,
            batch.log_corrections,
            batch.current_log_probs,
            batch.reference_log_probs,
            batch.total_variations,
            batch.log_importance_ratios,
            batch.acceptance_probabilities,
            batch.advantages,
        )
    ]
    states = np.select([batch.masked, batch.accepted], [MASKED, ON_POLICY], OFF_POLICY).astype(np.uint8)
    count = len(states)
    outputs = [np.full(count, np.nan, np.float32) for _ in range(2)]
    keys = np.array(batch.keys, np.uint64)
    firsts, counts = (np.array(a, np.uint32) for a in (batch.first_positions, batch.counts))
    values = np.array(list(parameters) + [0.0], np.float32)
    failed = LIBRARY.sis_apply_algorithm(
        name.encode(),
        pointer(values),
        ctypes.c_uint64(len(keys)),
        *(pointer(array) for array in (keys, firsts, counts, states, *floats)),
        ctypes.c_uint64(batch.draw),
        *(pointer(array) for array in outputs),
    )
    if failed:
        raise ValueError(f"{name}: refused")
    return outputs[0], outputs[1]
