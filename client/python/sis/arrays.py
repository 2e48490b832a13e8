"""Arrays on their way to the wire and back. Tensors of PyTorch are taken as they are, wherever they live."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Optional, Sequence, Union

import numpy as np

if TYPE_CHECKING:
    from typing import TypeGuard

# A numpy array, nested sequences of numbers, or a torch.Tensor on any device.
ArrayLike = Union[np.ndarray, Sequence[Any], Any]

_INT32 = np.dtype("<i4")
_FLOAT32 = np.dtype("<f4")


def is_tensor(values: object) -> TypeGuard[Any]:
    """Whether `values` is a torch.Tensor, found out without importing torch."""
    return hasattr(values, "detach") and hasattr(values, "cpu")


def _check_shape(name: str, got: Sequence[int], wanted: Sequence[Optional[int]]) -> None:
    if len(got) != len(wanted) or any(want not in (None, size) for want, size in zip(wanted, got)):
        sizes = ", ".join("any" if want is None else str(want) for want in wanted)
        raise ValueError(f"{name} has shape {list(got)}, must be [{sizes}]")


def _checked_shape(name: str, array: np.ndarray, shape: Sequence[Optional[int]]) -> np.ndarray:
    _check_shape(name, array.shape, shape)
    return np.ascontiguousarray(array)


def int32(name: str, values: ArrayLike, shape: Sequence[Optional[int]]) -> np.ndarray:
    """`values` as a little-endian int32 array of `shape` (None: any length). ValueError if they don't fit."""
    array = np.asarray(values.detach().cpu().numpy() if is_tensor(values) else values)
    if array.dtype.kind not in "iu" and array.size:
        raise ValueError(f"{name} has dtype {array.dtype}, must be integers")
    limits = np.iinfo(np.int32)
    if array.size and (array.min() < limits.min or array.max() > limits.max):
        raise ValueError(f"{name} holds values that do not fit 32 bits")
    return _checked_shape(name, array.astype(_INT32, copy=False), shape)


def float32(name: str, values: ArrayLike, shape: Sequence[Optional[int]]) -> np.ndarray:
    """`values` as a little-endian float32 array of `shape` (None: any length), rounded to nearest if they are wider."""
    # float() first: numpy has no bfloat16.
    array = np.asarray(values.detach().float().cpu().numpy() if is_tensor(values) else values)
    if array.dtype.kind not in "fiu" and array.size:
        raise ValueError(f"{name} has dtype {array.dtype}, must be real numbers")
    return _checked_shape(name, array.astype(_FLOAT32, copy=False), shape)


def real(name: str, values: ArrayLike, shape: Sequence[Optional[int]]) -> Any:
    """`values` where they are: a tensor, or an array of numpy, of real numbers, of `shape`."""
    found = values.detach() if is_tensor(values) else np.asarray(values)
    if isinstance(found, np.ndarray) and found.dtype.kind not in "fiu" and found.size:
        raise ValueError(f"{name} has dtype {found.dtype}, must be real numbers")
    _check_shape(name, tuple(found.shape), shape)
    return found


def float64(name: str, values: ArrayLike, shape: Sequence[Optional[int]]) -> np.ndarray:
    """`values` as a little-endian float64 array of `shape` (None: any length)."""
    array = np.asarray(values.detach().double().cpu().numpy() if is_tensor(values) else values)
    if array.dtype.kind not in "fiu" and array.size:
        raise ValueError(f"{name} has dtype {array.dtype}, must be real numbers")
    return _checked_shape(name, array.astype("<f8", copy=False), shape)


def is_float16(values: object) -> bool:
    """Whether `values` is a tensor or an array of float16."""
    return str(getattr(values, "dtype", None)) in ("torch.float16", "float16")


def float16(name: str, values: ArrayLike, shape: Sequence[Optional[int]]) -> np.ndarray:
    """Tensors or arrays of float16 as a little-endian array of `shape`."""
    array = np.asarray(values.detach().cpu().numpy() if is_tensor(values) else values)
    return _checked_shape(name, array.astype("<f2", copy=False), shape)


def is_bfloat16(values: object) -> bool:
    """Whether `values` is a torch.Tensor of bfloat16."""
    return is_tensor(values) and str(getattr(values, "dtype")) == "torch.bfloat16"


def bfloat16_bits(name: str, values: Any, shape: Sequence[Optional[int]]) -> np.ndarray:
    """The bits of a tensor of bfloat16, as little-endian int16 of `shape`."""
    import torch

    bits = values.detach().contiguous().view(torch.int16).cpu().numpy()
    return _checked_shape(name, bits.astype("<i2", copy=False), shape)


def float32_from_wire(data: bytes) -> np.ndarray:
    """A read-only view of float32 values as the service sends them."""
    return np.frombuffer(data, _FLOAT32)
