"""The CPU backend beside PyTorch eager and numpy, in turn within one run.

    python3 peers.py [--mebibytes 160] [--length 4096] [--repetitions 7] [--slots 10 50 100]

All three compute, per position, the log-envelope (a maximum over the K slots), the covered mass (a
sum of K exponentials), the acceptance probability, a decision from a uniform, and the modified ratio.
Per sequence they compute the number accepted, D, D_SIS and the expected acceptance. PyTorch
and numpy draw their own uniforms and add in float32; the backend's uniforms are Philox and its
results exact (docs/numerics.md). Input lies in memory already, token-major float32, the behaviour
policy's for the backend in record blocks of float32. PyTorch and the
backend use two threads, numpy one. Times are wall-clock: the machine should have nothing else to
do. Printed are medians, and the ratio to PyTorch of the same repetition with its least and most.
"""

import argparse
import ctypes
import pathlib
import statistics
import time

import numpy as np
import torch

THREADS = 2
SUMS = ("accepted", "D", "D_SIS", "expected acceptance")


class Batch:
    """Policies of `sequences` x `length` positions, `slots` slots each, most probable first."""

    def __init__(self, sequences, length, slots):
        rng = np.random.default_rng(1)
        positions = sequences * length
        steepness = rng.uniform(0.5, 3.5, (positions, 1)).astype(np.float32)
        logits = -steepness * np.log(np.arange(1, slots + 1, dtype=np.float32))
        mass = rng.uniform(0.9, 0.99, (positions, 1)).astype(np.float32)
        self.behavior = logits - np.log(np.exp(logits).sum(1, keepdims=True)) + np.log(mass)
        drift = rng.normal(-0.02, 0.1, (positions, slots)).astype(np.float32)
        self.current = np.minimum(self.behavior + drift, np.float32(0))
        ranks = np.minimum(rng.geometric(0.4, positions) - 1, slots - 1)
        outside = rng.random(positions) < 0.03
        rows = np.arange(positions)
        self.ranks = np.where(outside, 255, ranks).astype(np.uint8)
        self.behavior_sampled = np.where(outside, -9.0, self.behavior[rows, ranks]).astype(np.float32)
        self.current_sampled = np.where(outside, -9.1, self.current[rows, ranks]).astype(np.float32)
        self.sequences, self.length, self.slots = sequences, length, slots


def sis_backend(library, batch):
    """A function that evaluates the batch with the backend and returns [sequences, 4] sums."""
    behavior, current = (np.ascontiguousarray(values, np.float32) for values in (batch.behavior, batch.current))
    decisions = np.empty(batch.ranks.size, np.uint8)
    ratios = np.empty(batch.ranks.size, np.float32)
    sums = np.empty((batch.sequences, 4))
    arrays = (behavior, current, batch.behavior_sampled, batch.current_sampled, batch.ranks,
              decisions, ratios, sums)
    pointers = [array.ctypes.data_as(ctypes.c_void_p) for array in arrays]
    library.sis_peers_open.restype = ctypes.c_void_p
    opened = ctypes.c_void_p(
        library.sis_peers_open(batch.sequences, batch.length, batch.slots, *pointers[:-1])
    )

    def run():
        library.sis_peers_evaluate(opened, THREADS, pointers[-1])
        return sums

    run.arrays = arrays  # what the pointers point to
    return run


def torch_eager(batch):
    behavior, current, behavior_sampled, current_sampled = (
        torch.from_numpy(np.ascontiguousarray(array)) for array in
        (batch.behavior, batch.current, batch.behavior_sampled, batch.current_sampled))
    in_top_k = torch.from_numpy(batch.ranks < batch.slots)
    shape = (batch.sequences, batch.length)

    def run():
        log_envelope = (current - behavior).amax(-1)
        covered_mass = current.exp().sum(-1)
        log_ratio = current_sampled - behavior_sampled
        acceptance = torch.where(in_top_k, (log_ratio - log_envelope).exp().clamp(max=1), 0.0)
        accepted = torch.rand(log_ratio.shape) < acceptance
        decisions = torch.where(accepted, 1, torch.where(in_top_k, 2, 3)).to(torch.uint8)
        ratios = torch.where(accepted, 1.0, log_ratio.exp())
        deviation = log_ratio.abs()
        expected = (covered_mass * (-log_envelope).exp()).clamp(max=1)
        del decisions, ratios
        return torch.stack([accepted.view(shape).sum(1).float(),
                            deviation.view(shape).sum(1),
                            (deviation * ~accepted).view(shape).sum(1),
                            expected.view(shape).sum(1)], 1).numpy()

    return run


def numpy_whole(batch):
    behavior, current = batch.behavior, batch.current
    in_top_k = batch.ranks < batch.slots
    shape = (batch.sequences, batch.length)
    rng = np.random.default_rng(2)

    def run():
        log_envelope = (current - behavior).max(-1)
        covered_mass = np.exp(current).sum(-1)
        log_ratio = batch.current_sampled - batch.behavior_sampled
        acceptance = np.where(in_top_k, np.minimum(np.exp(log_ratio - log_envelope), 1), 0)
        accepted = rng.random(log_ratio.shape, dtype=np.float32) < acceptance
        decisions = np.where(accepted, 1, np.where(in_top_k, 2, 3)).astype(np.uint8)
        ratios = np.where(accepted, np.float32(1), np.exp(log_ratio))
        deviation = np.abs(log_ratio)
        expected = np.minimum(covered_mass * np.exp(-log_envelope), 1)
        del decisions, ratios
        return np.stack([accepted.reshape(shape).sum(1), deviation.reshape(shape).sum(1),
                         (deviation * ~accepted).reshape(shape).sum(1),
                         expected.reshape(shape).sum(1)], 1)

    return run


def check_agreement(name, sums, expected, positions):
    """Checks that all compute the same sums: sampled ones to 4 standard deviations for `positions`
    positions, the others to 1%."""
    for column, what in enumerate(SUMS):
        mine, theirs = sums[:, column].sum(), expected[:, column].sum()
        sampled = what in ("accepted", "D_SIS")
        tolerance = 4 * positions ** 0.5 if sampled else 0.01 * abs(theirs)
        if not abs(mine - theirs) <= tolerance:
            raise AssertionError(f"{name}: {what} is {mine}, PyTorch has {theirs}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mebibytes", type=int, default=160,
                        help="float32 log-probs at the slots of both policies; several times the caches")
    parser.add_argument("--length", type=int, default=4096, help="positions of a sequence")
    parser.add_argument("--repetitions", type=int, default=7)
    parser.add_argument("--slots", type=int, nargs="+", default=[10, 50, 100])
    arguments = parser.parse_args()
    torch.set_num_threads(THREADS)
    torch.set_grad_enabled(False)
    library = ctypes.CDLL(str(pathlib.Path(__file__).absolute().parent / "libpeers_kernel.so"))

    for slots in arguments.slots:
        sequences = max(THREADS, (arguments.mebibytes << 20) // (arguments.length * slots * 8))
        batch = Batch(sequences, arguments.length, slots)
        positions = sequences * arguments.length
        runs = {
            "PyTorch eager, float32": torch_eager(batch),
            "numpy, float32": numpy_whole(batch),
            "backend, float32": sis_backend(library, batch),
        }
        peer = next(iter(runs))
        expected = np.array(runs[peer]())
        for name, run in runs.items():
            check_agreement(name, run(), expected, positions)
        seconds = {name: [] for name in runs}
        for _ in range(arguments.repetitions):
            for name, run in runs.items():
                start = time.perf_counter()
                run()
                seconds[name].append(time.perf_counter() - start)
        print(f"K = {slots}, {positions} positions, {arguments.repetitions} repetitions")
        for name, times in seconds.items():
            ratios = [theirs / mine for mine, theirs in zip(times, seconds[peer])]
            print(f"  {name:30s} {positions / statistics.median(times) / 1e6:8.1f} Mtokens/s   "
                  f"{statistics.median(ratios):5.1f} x PyTorch ({min(ratios):.1f}, {max(ratios):.1f})")


if __name__ == "__main__":
    main()
