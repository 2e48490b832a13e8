"""float32 to float16, rounded up: the service's one-sided rounding of the current policy's
log-probs."""

from __future__ import annotations

import functools
from typing import Any, Optional, Union

import numpy as np

from sis import arrays
from sis.arrays import ArrayLike

# Elements rounded at a time. On a CPU few enough for intermediate values to stay in the cache, and
# for PyTorch to use one thread; on a GPU enough to be worth a launch.
_CPU_BLOCK = 1 << 15
_DEVICE_BLOCK = 1 << 24


def float16_rounded_up(values: ArrayLike, out: Optional[Any] = None) -> Any:
    """The smallest float16 that is not below each value, for `evaluate`, which sends float16 as it
    is.

    values: of any shape but [], taken as float32. NaN stays NaN, float16 is returned as it is. A
    tensor of PyTorch gives a tensor on the same device, anything else a numpy array. The result
    goes into `out`, float16 of the same shape, if there is one: an array in a segment, say.
    """
    if arrays.is_tensor(values):
        import torch

        exact = values.detach()
        if out is None:
            if exact.dtype == torch.float16:
                return exact
            out = torch.empty(exact.shape, dtype=torch.float16, device=exact.device)
        size = _CPU_BLOCK if exact.device.type == "cpu" else _DEVICE_BLOCK
        rows = max(1, size // max(1, exact[:1].numel()))
        for part, rounded in zip(exact.split(rows), out.split(rows)):
            _round_tensor_up(part.float(), rounded)
        return out
    exact = np.asarray(values)
    if out is None:
        if exact.dtype == np.float16:
            return exact
        out = np.empty(exact.shape, np.float16)
    rows = max(1, _CPU_BLOCK // max(1, exact[:1].size))
    for first in range(0, len(exact), rows):
        _round_array_up(exact[first : first + rows].astype(np.float32, copy=False), out[first : first + rows])
    return out


class RoundedUp:
    """Log-probs that are rounded when their rows are taken: a part at a time, while others are on
    their way."""

    itemsize = 2

    def __init__(self, exact: ArrayLike) -> None:
        """`exact` is a tensor or an array, [N, K]."""
        self.exact = exact
        self.shape = tuple(exact.shape)

    def __getitem__(self, rows: Union[slice, np.ndarray]) -> np.ndarray:
        rounded = float16_rounded_up(self.exact[rows])
        return rounded.cpu().numpy() if arrays.is_tensor(rounded) else rounded


def _round_tensor_up(exact: Any, rounded: Any) -> None:
    import torch

    rounded.copy_(exact)  # to nearest
    # Where that is below, the next one: 1 more in its bits, 1 less if it is negative.
    step = rounded.float().lt_(exact).copysign_(exact)
    rounded.view(torch.int16).add_(step.to(torch.int16))


def _round_array_up(exact: np.ndarray, rounded: np.ndarray) -> None:
    nan = np.isnan(exact)
    if nan.any():
        # One that stays NaN without its last bits.
        exact = np.where(nan, np.float32(np.nan), exact)
    bits = exact.view(np.int32)
    # Its last 13 bits are cut off, which takes a negative value up; a positive one goes up first,
    # unless they are 0.
    rounded[...] = _halves()[(bits + (~(bits >> 31) & 0x1FFF)).view(np.uint32) >> 13]


@functools.lru_cache(maxsize=None)
def _halves() -> np.ndarray:
    """float16 [2^19]: the smallest that is not below the float32 of these first 19 bits.

    Looking it up is many times faster than numpy's own conversion, which rounds to nearest.
    """
    exact = (np.arange(1 << 19, dtype=np.uint32) << 13).view(np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        nearest = exact.astype(np.float16)
        return np.where(nearest < exact, np.nextafter(nearest, np.float16(np.inf)), nearest)
