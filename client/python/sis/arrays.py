"""Arrays on their way to the wire and back. Tensors of PyTorch are taken as they are, wherever they
live."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Optional, Sequence, Union

import numpy as np

if TYPE_CHECKING:
    from typing import TypeGuard

# A numpy array, nested sequences of numbers, or a torch.Tensor on any device.
ArrayLike = Union[np.ndarray, Sequence[Any], Any]


def is_tensor(values: object) -> TypeGuard[Any]:
    """Whether `values` is a torch.Tensor, found out without importing torch."""
    return hasattr(values, "detach") and hasattr(values, "cpu")


def to_numpy(values: ArrayLike) -> np.ndarray:
    """A view where there can be one."""
    return np.asarray(values.detach().cpu().numpy() if is_tensor(values) else values)


def _check_shape(name: str, got: Sequence[int], wanted: Sequence[Optional[int]]) -> None:
    if len(got) != len(wanted) or any(want not in (None, size) for want, size in zip(wanted, got)):
        sizes = ", ".join("any" if want is None else str(want) for want in wanted)
        raise ValueError(f"{name} has shape {list(got)}, must be [{sizes}]")


def _checked(name: str, array: np.ndarray, dtype: str, shape: Sequence[Optional[int]]) -> np.ndarray:
    _check_shape(name, array.shape, shape)
    return np.ascontiguousarray(array.astype(dtype, copy=False))


def _check_real(name: str, array: np.ndarray) -> None:
    if array.dtype.kind not in "fiu" and array.size:
        raise ValueError(f"{name} has dtype {array.dtype}, must be real numbers")


# `shape` may hold None, for any length. What does not fit is a ValueError.


def int32(name: str, values: ArrayLike, shape: Sequence[Optional[int]]) -> np.ndarray:
    """`values` as little-endian int32."""
    array = to_numpy(values)
    if array.dtype.kind not in "iu" and array.size:
        raise ValueError(f"{name} has dtype {array.dtype}, must be integers")
    limits = np.iinfo(np.int32)
    # Looking at each value takes a third of the time that a block costs this process.
    fits = np.can_cast(array.dtype, np.int32) or not array.size
    if not fits and (array.min() < limits.min or array.max() > limits.max):
        raise ValueError(f"{name} holds values that do not fit 32 bits")
    return _checked(name, array, "<i4", shape)


def float32(name: str, values: ArrayLike, shape: Sequence[Optional[int]]) -> np.ndarray:
    """`values` as little-endian float32, rounded to nearest if they are wider."""
    # numpy has no bfloat16.
    array = to_numpy(values.float() if is_tensor(values) else values)
    _check_real(name, array)
    return _checked(name, array, "<f4", shape)


def float64(name: str, values: ArrayLike, shape: Sequence[Optional[int]]) -> np.ndarray:
    """`values` as little-endian float64."""
    array = to_numpy(values.double() if is_tensor(values) else values)
    _check_real(name, array)
    return _checked(name, array, "<f8", shape)


def real(name: str, values: ArrayLike, shape: Sequence[Optional[int]]) -> Any:
    """`values` where they are: a tensor, or an array of numpy, of real numbers."""
    found = values.detach() if is_tensor(values) else np.asarray(values)
    if isinstance(found, np.ndarray):
        _check_real(name, found)
    _check_shape(name, tuple(found.shape), shape)
    return found


def is_float16(values: object) -> bool:
    """Whether `values` is a tensor or an array of float16."""
    return str(getattr(values, "dtype", None)) in ("torch.float16", "float16")


def float16(name: str, values: ArrayLike, shape: Sequence[Optional[int]]) -> np.ndarray:
    """Tensors or arrays of float16 as little-endian float16."""
    return _checked(name, to_numpy(values), "<f2", shape)


def is_bfloat16(values: object) -> bool:
    """Whether `values` is a torch.Tensor of bfloat16."""
    return is_tensor(values) and str(getattr(values, "dtype")) == "torch.bfloat16"


def bfloat16_bits(name: str, values: Any, shape: Sequence[Optional[int]]) -> np.ndarray:
    """The bits of a tensor of bfloat16, as little-endian int16."""
    import torch

    return _checked(name, to_numpy(values.contiguous().view(torch.int16)), "<i2", shape)
