"""Conversions of arrays for messages. Accepts PyTorch tensors on any device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Optional, Sequence, Tuple, Union

import numpy as np

if TYPE_CHECKING:
    from typing import TypeGuard

# A numpy array, nested sequences of numbers, or a torch.Tensor on any device.
ArrayLike = Union[np.ndarray, Sequence[Any], Any]


def is_tensor(values: object) -> TypeGuard[Any]:
    """Returns True if `values` is a torch.Tensor, without importing torch."""
    return hasattr(values, "detach") and hasattr(values, "cpu")


def to_numpy(values: ArrayLike) -> np.ndarray:
    """Returns a view if possible."""
    if type(values) is np.ndarray:
        return values
    return np.asarray(values.detach().cpu().numpy() if is_tensor(values) else values)


_INT32, _FLOAT32 = np.dtype("<i4"), np.dtype("<f4")
_LIMITS = np.iinfo(_INT32)


def _checked(name: str, array: np.ndarray, dtype: np.dtype, shape: Tuple[Optional[int], ...]) -> np.ndarray:
    got = array.shape
    if got != shape and (len(got) != len(shape) or any(want not in (None, size) for want, size in zip(shape, got))):
        sizes = ", ".join("any" if want is None else str(want) for want in shape)
        raise ValueError(f"{name} has shape {list(got)}, must be [{sizes}]")
    return np.ascontiguousarray(array, dtype)


# In the functions below, None in `shape` means any length. Another shape or type raises ValueError.


def int32(name: str, values: ArrayLike, shape: Tuple[Optional[int], ...]) -> np.ndarray:
    """Returns `values` as little-endian int32."""
    array = to_numpy(values)
    if array.dtype != _INT32 and array.size:
        if array.dtype.kind not in "iu":
            raise ValueError(f"{name} has dtype {array.dtype}, must be integers")
        # Checking each value would take a third of the time that a block costs this process.
        if not np.can_cast(array.dtype, _INT32) and (array.min() < _LIMITS.min or array.max() > _LIMITS.max):
            raise ValueError(f"{name} holds values that do not fit 32 bits")
    return _checked(name, array, _INT32, shape)


def float32(name: str, values: ArrayLike, shape: Tuple[Optional[int], ...]) -> np.ndarray:
    """Returns `values` as little-endian float32, rounded to nearest if they are wider."""
    # numpy has no bfloat16.
    array = to_numpy(values.float() if is_tensor(values) else values)
    if array.dtype.kind not in "fiu" and array.size:
        raise ValueError(f"{name} has dtype {array.dtype}, must be real numbers")
    return _checked(name, array, _FLOAT32, shape)
