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


def _checked_shape(name: str, array: np.ndarray, shape: Sequence[Optional[int]]) -> np.ndarray:
    if array.ndim != len(shape) or any(want not in (None, got) for want, got in zip(shape, array.shape)):
        wanted = ", ".join("any" if want is None else str(want) for want in shape)
        raise ValueError(f"{name} has shape {list(array.shape)}, must be [{wanted}]")
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


def float64(name: str, values: ArrayLike, shape: Sequence[Optional[int]]) -> np.ndarray:
    """`values` as a little-endian float64 array of `shape` (None: any length)."""
    array = np.asarray(values.detach().double().cpu().numpy() if is_tensor(values) else values)
    if array.dtype.kind not in "fiu" and array.size:
        raise ValueError(f"{name} has dtype {array.dtype}, must be real numbers")
    return _checked_shape(name, array.astype("<f8", copy=False), shape)


def float16_rounded_up(name: str, values: ArrayLike, shape: Sequence[Optional[int]]) -> np.ndarray:
    """`values` as little-endian float16, none below its float32: what the service's one-sided rounding asks for."""
    exact = float32(name, values, shape)
    with np.errstate(over="ignore"):
        nearest = exact.astype("<f2")
    return np.where(nearest < exact, np.nextafter(nearest, np.float16(np.inf)), nearest).astype("<f2")


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
