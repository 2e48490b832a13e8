"""The report of a soak: whether resident memory is flat."""

import math
from typing import Dict, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np

# The share of the time that is left out, because buffers and caches fill: 100 minutes leave an hour.
WARM_UP = 0.4
BLOCKS = 12
# Student's t with BLOCKS - 2 degrees of freedom, at 97.5%.
STUDENT_T = 2.228
# A server at its byte budget had at least this share of it in use at some time.
LEAST_FULL = 0.9
# Memory that is flat grows by less than this share over what was measured, by the upper end of the
# slope's interval.
MAX_GROWTH = 0.02


class Slope(NamedTuple):
    """Growth in bytes per second, with the ends of its 95% interval."""

    estimate: float
    low: float
    high: float


def slope(seconds: Sequence[float], values: Sequence[float]) -> Slope:
    """Returns the slope of a straight line through the means of BLOCKS intervals. Close samples are not independent."""
    times = np.array([block.mean() for block in np.array_split(np.asarray(seconds, float), BLOCKS)])
    means = np.array([block.mean() for block in np.array_split(np.asarray(values, float), BLOCKS)])
    centered = times - times.mean()
    estimate = (centered @ means) / (centered @ centered)
    residuals = means - means.mean() - estimate * centered
    half = STUDENT_T * math.sqrt((residuals @ residuals) / (BLOCKS - 2) / (centered @ centered))
    return Slope(estimate, estimate - half, estimate + half)


class Memory(NamedTuple):
    """The memory of a server after the warm-up, in bytes, and its growth over that time."""

    mean: float
    most: float
    growth: Slope

    @property
    def flat(self) -> bool:
        return self.growth.high < MAX_GROWTH * self.mean


def memory(samples: Sequence[Dict]) -> Optional[Memory]:
    """Returns the memory from samples with `seconds` and `resident_bytes`, in the order of time; None if there are too
    few samples."""
    kept = list(samples[int(WARM_UP * len(samples)) :])
    if len(kept) < BLOCKS:
        return None
    seconds = [sample["seconds"] for sample in kept]
    resident = [sample["resident_bytes"] for sample in kept]
    length = seconds[-1] - seconds[0]
    return Memory(
        float(np.mean(resident)), float(max(resident)), Slope(*(length * end for end in slope(seconds, resident)))
    )


def summary(title: str, samples: Dict[str, List[Dict]], loads: Dict[str, Dict], failures: List[str]) -> Tuple[str, bool]:
    """Text with a verdict in its last line, and whether that is good. samples and loads: per server; a
    sample's cache_share is None where the metrics could not be read."""
    lines = [title]
    flat, full = [], []
    mib = 2**20
    for name, taken in samples.items():
        result = memory(taken)
        flat.append(result is not None and result.flat)
        shares = [sample["cache_share"] for sample in taken if sample.get("cache_share") is not None]
        full.append(max(shares, default=0) >= LEAST_FULL)
        counts = "  " + ", ".join(f"{what}: {number:,}" for what, number in sorted(loads[name].items()))
        if result is None:
            lines += [f"{name}: too few samples to tell", counts]
            continue
        fullest = f"was up to {max(shares):.0%} full" if shares else "was never read"
        lines.append(
            f"{name}: resident {result.mean / mib:.1f} MiB in the mean, {result.most / mib:.1f} at most; growth "
            f"{result.growth.estimate / mib:+.2f} MiB [{result.growth.low / mib:+.2f}, {result.growth.high / mib:+.2f}] "
            f"over the last {1 - WARM_UP:.0%} of the time: {'flat' if result.flat else 'NOT FLAT'}; the cache {fullest}; "
            f"file descriptors {taken[-1]['descriptors']}, threads {taken[-1]['threads']} at the end"
        )
        lines.append(counts)
    lines += [f"not asked for: {failure}" for failure in failures[:20]]
    good = all(flat) and all(full) and not failures
    lines.append(
        f"verdict: {'good' if good else 'BAD'}; memory {'flat' if all(flat) else 'not flat'}, "
        f"{'at' if all(full) else 'NOT AT'} the byte budget, "
        f"{len(failures)} errors that were not asked for"
    )
    return "\n".join(lines) + "\n", good
