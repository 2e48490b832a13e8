"""Simulates placement on 3 to 300 replicas, with the clients' placement and circuit breaker. As a program, it
prints the tables of docs/scaling.md:

    bazel run //tests/scaling:simulation
"""

import math
from typing import List, NamedTuple, Sequence

import grpc
import numpy as np

from sis import _errors
from sis._servers import circuit_breaker, placement

SIZES = (3, 5, 8, 12, 20, 50, 100, 200, 300)
# Sequences in flight: rollouts of four steps, of 512 prompts with 8 responses each.
SEQUENCES = 4 * 512 * 8
# How unlikely it is that a bound below fails, over all replicas.
UNLIKELY = 1e-6


def names(count: int) -> List[str]:
    """As a StatefulSet behind a headless Service has them."""
    return [f"sis-{i}.sis:50051" for i in range(count)]


def ids(count: int = SEQUENCES) -> List[str]:
    return [f"prompt-{i // 8}/response-{i % 8}" for i in range(count)]


def lengths(count: int = SEQUENCES) -> np.ndarray:
    """Tokens of each response: log-normal around 2000, the longest cut at 16,384."""
    drawn = np.random.default_rng(1).lognormal(math.log(2000), 0.9, count)
    return np.clip(drawn, 16, 16384).astype(np.int64)


def placed(replicas: Sequence[str], sequences: Sequence[str], run_id: str = "run") -> np.ndarray:
    """The number of the replica that has each sequence: Placement.replica of many at once."""
    # Placement's arithmetic is the same on arrays of uint64, which wrap around by themselves.
    hashes = np.array([placement._sequence_hash(run_id, sequence) for sequence in sequences], np.uint64)
    best = np.zeros(len(sequences), np.uint64)
    owners = np.zeros(len(sequences), np.int64)
    for number in sorted(range(len(replicas)), key=replicas.__getitem__):
        scores = placement._mix(hashes ^ np.uint64(placement._mix(placement._fnv(replicas[number].encode()))))
        larger = scores > best
        best[larger] = scores[larger]
        owners[larger] = number
    return owners


def loads(replicas: int, weights: np.ndarray) -> np.ndarray:
    """Returns each replica's sum of the weights (one per sequence, in the order of ids())."""
    return np.bincount(placed(names(replicas), ids(len(weights))), weights, minlength=replicas)


def most(total: float, squares: float, largest: float, share: float, failures: float) -> float:
    """Returns a bound that a sum of independent weights exceeds with a probability of at most `failures`.
    Each weight is taken with probability `share`. total, squares, largest: the sum of the weights, the
    sum of their squares, and the largest weight. By Bernstein's inequality."""
    variance = squares * share * (1 - share)
    log = -math.log(failures)
    return total * share + largest * log / 3 + math.sqrt((largest * log / 3) ** 2 + 2 * variance * log)


def most_loaded(replicas: int, weights: np.ndarray) -> float:
    """Returns a bound on the load of every replica, which one set of replicas in a million exceeds."""
    return most(
        float(weights.sum()), float((weights.astype(float) ** 2).sum()), float(weights.max()), 1 / replicas,
        UNLIKELY / replicas,
    )  # fmt: skip


def kept(before: int, after: int, count: int = SEQUENCES) -> float:
    """The share of the sequences that are where they were, after the set has grown or shrunk."""
    sequences = ids(count)
    return float((placed(names(before), sequences) == placed(names(after), sequences)).mean())


def hit_rates(before: int, after: int, staleness: int, steps: int, per_step: int = 4096) -> List[float]:
    """Returns for step 0, 1, ... the share of the sequences read that are where the client looks, if the
    set grew or shrank before step 0. Each step reads rollouts that are 0 to `staleness` steps old,
    as many of each age; those from before the change were placed by the old list."""
    rates = []
    for step in range(steps):
        sequences = [f"step-{step}/response-{i}" for i in range(per_step)]
        old = np.arange(per_step) % (staleness + 1) > step
        same = placed(names(before), sequences) == placed(names(after), sequences)
        rates.append(float((same | ~old).mean()))
    return rates


class Hang(NamedTuple):
    """Cost of a hanging replica to a trainer: seconds waited in the first step, mean seconds per later
    step, and the number of calls to the replica."""

    first_step: float
    later_step: float
    asked: int


def hang(timeout: float, step_seconds: float, hang_seconds: float) -> Hang:
    """A trainer whose steps take step_seconds, by the clients' circuit breaker on a clock of its
    own. A replica that hangs answers neither a call, within `timeout`, nor a probe, within at most a
    second."""
    now, asked = 0.0, 0

    def silent(seconds):
        def ask():
            nonlocal now, asked
            now, asked = now + seconds, asked + 1
            raise _errors.from_status(grpc.StatusCode.DEADLINE_EXCEEDED, "it hangs")

        return ask

    breaker = circuit_breaker.CircuitBreaker(lambda: now)
    waits = []
    while now < hang_seconds:
        began = now
        try:
            breaker.call(silent(timeout), silent(min(timeout, 1.0)))
        except _errors.Error:
            pass
        waits.append(now - began)
        now += step_seconds
    return Hang(waits[0], float(np.mean(waits[1:])), asked)


CHANGES = ((8, 9), (8, 16), (9, 8), (16, 8))
STALENESS = 4
TIMEOUTS = (1, 5, 20, 60)


def tables() -> str:
    """Markdown."""
    tokens = lengths()
    lines = [
        "| replicas | fullest, sequences | fullest, tokens | bound for tokens | emptiest, tokens | moves when one joins |",
        "|---|---|---|---|---|---|",
    ]
    for n in SIZES:
        sequences, load, mean = loads(n, np.ones(SEQUENCES)), loads(n, tokens), tokens.sum() / n
        lines.append(
            f"| {n} | {sequences.max() * n / SEQUENCES:.2f} | {load.max() / mean:.2f} | "
            f"{most_loaded(n, tokens) / mean:.2f} | {load.min() / mean:.2f} | {1 - kept(n, n + 1):.2%} |"
        )
    lines += ["", "| change | " + " | ".join(f"step {i}" for i in range(STALENESS + 2)) + " |"]
    lines.append("|---" * (STALENESS + 3) + "|")
    for before, after in CHANGES:
        rates = hit_rates(before, after, STALENESS, STALENESS + 2)
        lines.append(f"| {before} to {after} | " + " | ".join(f"{rate:.1%}" for rate in rates) + " |")
    lines += ["", "| client's timeout | first step | a later one, of 2 s | of 10 s | asked in half an hour |", "|---|---|---|---|---|"]
    for timeout in TIMEOUTS:
        short, long = hang(timeout, 2, 1800), hang(timeout, 10, 1800)
        lines.append(
            f"| {timeout} s | {short.first_step:.0f} s | {short.later_step:.2f} s | {long.later_step:.2f} s | "
            f"{short.asked} times |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    print(tables())
