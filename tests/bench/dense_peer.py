"""The dense kernel against PyTorch eager, in turn in one run, two threads each.

    bazel run //tests/bench:dense_peer

Both turn logits [tokens, vocabulary] into float32 log-probs of the sampled and the recorded tokens.
PyTorch does it twice: by log_softmax and gather, as trainers write it, and by logsumexp over
gathered logits, which needs no second matrix. Prints tokens per second, how many times faster the
kernel is (by the clock, and by the processor time of all threads, which other processes on the
machine disturb less) and the largest error of log p(y) against float64. Medians over the rounds,
and their range in brackets.
"""

import ctypes
import pathlib
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch

THREADS = 2
SLOTS = 50
ROUNDS = 9
LOGITS_BYTES = 128 << 20
TYPES = {torch.float32: 0, torch.bfloat16: 1}


def load_kernel() -> Callable[..., int]:
    library = ctypes.CDLL(str(pathlib.Path(__file__).with_name("libdense_c.so")))
    gather = library.sis_gather_log_probs
    pointer, int32 = ctypes.c_void_p, ctypes.c_int32
    gather.argtypes = [ctypes.c_int, pointer, ctypes.c_int64, int32, int32, *[pointer] * 5]
    return gather


class Batch:
    """Logits, and the tokens that were recorded."""

    def __init__(self, dtype: torch.dtype, vocabulary: int) -> None:
        random = torch.Generator().manual_seed(1)
        self.vocabulary = vocabulary
        size = torch.empty(0, dtype=dtype).element_size()
        self.tokens = LOGITS_BYTES // (vocabulary * size)
        exact = torch.randn(self.tokens, vocabulary, generator=random).mul_(3)
        self.logits = exact.to(dtype)
        self.ids = exact.topk(SLOTS, -1).indices
        self.sampled = self.ids.gather(1, torch.randint(SLOTS, (self.tokens, 1), generator=random))
        self.ids32 = self.ids.to(torch.int32)
        self.sampled32 = self.sampled.to(torch.int32)


def float64_results(batch: Batch) -> tuple[torch.Tensor, ...]:
    log_sum_exp = torch.stack([row.double().logsumexp(0) for row in batch.logits]).unsqueeze(1)
    gathered = batch.logits.gather(1, batch.ids).double() - log_sum_exp
    sampled = (batch.logits.gather(1, batch.sampled).double() - log_sum_exp).squeeze(1)
    return sampled, gathered


def torch_log_softmax(batch: Batch) -> tuple[torch.Tensor, ...]:
    log_probs = torch.log_softmax(batch.logits, -1, dtype=torch.float32)
    return log_probs.gather(1, batch.sampled).squeeze(1), log_probs.gather(1, batch.ids)


def torch_logsumexp(batch: Batch) -> tuple[torch.Tensor, ...]:
    log_sum_exp = batch.logits.float().logsumexp(-1, keepdim=True)
    gathered = batch.logits.gather(1, batch.ids).float() - log_sum_exp
    sampled = (batch.logits.gather(1, batch.sampled).float() - log_sum_exp).squeeze(1)
    return sampled, gathered


class Kernel:
    """Splits the tokens over the threads of a pool; ctypes releases the interpreter lock."""

    def __init__(self) -> None:
        self.gather = load_kernel()
        self.pool = ThreadPoolExecutor(THREADS)

    def __call__(self, batch: Batch) -> tuple[torch.Tensor, ...]:
        results = torch.empty(batch.tokens), torch.empty(batch.tokens, SLOTS)
        log_sum_exps = torch.empty(batch.tokens, dtype=torch.float64)

        def gather_part(begin: int, end: int) -> None:
            inputs = (batch.sampled32, batch.ids32, *results, log_sum_exps)
            failed = self.gather(
                TYPES[batch.logits.dtype], batch.logits[begin:].data_ptr(), end - begin,
                batch.vocabulary, SLOTS, *(array[begin:].data_ptr() for array in inputs))
            assert not failed

        bounds = np.linspace(0, batch.tokens, THREADS + 1).astype(int).tolist()
        list(self.pool.map(gather_part, bounds[:-1], bounds[1:]))
        return results


def spread(values: list[float]) -> str:
    return f"{statistics.median(values):5.1f} [{min(values):4.1f}, {max(values):5.1f}]"


def compare(batch: Batch, sides: dict[str, Callable[[Batch], tuple[torch.Tensor, ...]]]) -> None:
    errors = {}
    expected = float64_results(batch)
    for name, side in sides.items():  # warms up, and checks that all compute the same
        results = side(batch)
        for result, reference in zip(results, expected):
            torch.testing.assert_close(result.double(), reference, rtol=1e-4, atol=1e-4)
        errors[name] = (results[0].double() - expected[0]).abs().max().item()
    clock = {name: [] for name in sides}
    processor = {name: [] for name in sides}
    for _ in range(ROUNDS):
        for name, side in sides.items():
            start, start_processor = time.perf_counter(), time.process_time()
            side(batch)
            clock[name].append(time.perf_counter() - start)
            processor[name].append(time.process_time() - start_processor)
    kernel = next(iter(sides))
    for name in sides:
        by_clock = [a / b for a, b in zip(clock[name], clock[kernel])]
        by_processor = [a / b for a, b in zip(processor[name], processor[kernel])]
        rate = batch.tokens / statistics.median(clock[name])
        print(f"{str(batch.logits.dtype)[6:]:8} {batch.vocabulary:7} {name:24} {rate:9.0f}  "
              f"{spread(by_clock)}  {spread(by_processor)}  {errors[name]:.0e}", flush=True)


def main() -> None:
    torch.set_num_threads(THREADS)
    print(f"PyTorch {torch.__version__}, {THREADS} threads each, K = {SLOTS}, {ROUNDS} rounds")
    print(f"{'logits':8} {'width':>7} {'':24} {'tokens/s':>9}  {'slower by clock':19}  "
          f"{'by processor time':19}  error")
    sides = {
        "this kernel": Kernel(),
        "log_softmax + gather": torch_log_softmax,
        "gather + logsumexp": torch_logsumexp,
    }
    for vocabulary in (32000, 151936):
        for dtype in (torch.float32, torch.bfloat16):
            with torch.no_grad():
                compare(Batch(dtype, vocabulary), sides)


if __name__ == "__main__":
    main()
