"""A step through the whole service, beside in-process PyTorch eager, in turn within one run.

    bazel run //tests/bench:evaluate -- [--scale 0.0625] [--repetitions 5] [--slots 10 50 100]

The step is 4096 sequences of 4096 positions, 16.8 M tokens; --scale takes a part of it. A sis_server process
holds the records, with as many threads as the machine has cores. A trainer gives the client float32 tensors
[T, K] of PyTorch and gets a mask as a tensor, over TCP loopback and a Unix socket. The rows have the records
fetched beforehand, or include FetchTopK of all arrays or of the ids alone. REDUCED must cost the same for
every K. Every repetition is another draw, so that all of it is counted. PyTorch computes the same in this
process (see peers.py), without validation, cache or metrics.

Prints per row the requested outputs and arrays of the records; the median of tokens per second; bytes per
token over the wire both ways; and the ratio to PyTorch of the same repetition, with its minimum and maximum.
For a whole step it prints seconds, and seconds of processor time of server and client together. The machine
should have nothing else to do.
"""

import argparse
import contextlib
import functools
import os
import pathlib
import statistics
import sys
import tempfile
import time

import numpy as np
import torch

import sis
import peers
from server.testing.live_server import LiveServer

LENGTH = 4096
SEQUENCES = 4096
VOCABULARY = 151936
# Makes malloc keep memory that was used. Without it each large message is mapped, faulted in and
# unmapped again.
KEEP_MEMORY = "glibc.malloc.mmap_threshold=1073741824:glibc.malloc.trim_threshold=1073741824"
BIT_BYTES = 1 / 8


class Server(LiveServer):
    """Listens over TCP, and at a Unix socket."""

    def __init__(self, socket, positions, slots):
        records = positions * (5 * slots + 64)
        super().__init__(
            f"--max_message_bytes={1 << 30}",
            f"--grpc_memory_bytes={4 << 30}",
            listen=f"127.0.0.1:0,unix:{socket}",
            cache_bytes=records + (64 << 20),
        )
        self.tcp, self.unix = self.address.split(",")
        self.process_id = self.process.pid


def processor_seconds(process_ids):
    """User and system time that the processes have used so far."""
    # The number that clock_getcpuclockid(3) gives a process's clock.
    return sum(time.clock_gettime((~process_id << 3) | 2) for process_id in process_ids)


def make_batch(sequences, slots):
    """One of peers.py, with ids, and a current policy whose probabilities at the slots never add up
    to more than 1."""
    batch = peers.Batch(sequences, LENGTH, slots)
    # Anywhere in the vocabulary, each in a part of its own so that none stands twice; the last is
    # for what was sampled outside of the set.
    rng = np.random.default_rng(2)
    share = VOCABULARY // (slots + 1)
    parts = rng.permuted(np.broadcast_to(np.arange(slots + 1, dtype=np.int32), (len(batch.ranks), slots + 1)), axis=1)
    ids = parts * share + rng.integers(0, share, parts.shape, np.int32)
    batch.ids = ids[:, :slots]
    batch.sampled_ids = ids[np.arange(len(ids)), np.minimum(batch.ranks, slots)]
    batch.current -= np.maximum(0, np.log(np.exp(batch.current).sum(1, keepdims=True)))
    inside = np.flatnonzero(batch.ranks < slots)
    batch.current_sampled[inside] = batch.current[inside, batch.ranks[inside]]
    return batch


def fill(address, batch, sequences):
    """Records the batch's behaviour policy; sequence i is named so, and holds what i %
    batch.sequences does."""
    with sis.Client(address) as client:
        run = client.create_run("run", seed=1, vocabulary_size=VOCABULARY, top_k=batch.slots)
        with client.append(run, sampling=sis.Sampling("processed", temperature=1.0)) as stream:
            for i in range(sequences):
                rows = slice(i % batch.sequences * LENGTH, (i % batch.sequences + 1) * LENGTH)
                stream.block(str(i), first_position=0, policy_version=0, sampled_ids=batch.sampled_ids[rows],
                             sampled_log_probs=batch.behavior_sampled[rows], top_k_ids=batch.ids[rows],
                             top_k_log_probs=batch.behavior[rows])
                stream.seal(str(i), length=LENGTH)


def write(path, array, sequences):
    """Writes `sequences` of the batch's sequences to a file, and maps it."""
    rows = sequences * LENGTH
    with open(path, "wb") as file:
        for first in range(0, rows, len(array)):
            array[:rows - first].tofile(file)
    return np.memmap(path, array.dtype, "r+", shape=(rows, *array.shape[1:]))


class PythonTrainer:
    """From tensors to a mask, call by call."""

    def __init__(self, server, address, arrays, sequences, call_sequences):
        """`arrays` are those that evaluate takes, by their names."""
        self.process_ids = [server.process_id, os.getpid()]
        self._client = sis.Client(address)
        self._run = self._client.get_run("run").run
        self._arrays = {name: torch.from_numpy(array) for name, array in arrays.items()}
        self._records = {}
        self._calls = [range(first, min(first + call_sequences, sequences))
                       for first in range(0, sequences, call_sequences)]

    def row(self, fetch=False, **keywords):
        """`fetch`: whether records are fetched, without their log-probs, before each call."""
        return PythonRow(self.process_ids, functools.partial(self._step, fetch, keywords))

    def _step(self, fetch, keywords, draw):
        mask = torch.empty(self._calls[-1].stop * LENGTH, dtype=torch.bool)
        if not self._records:
            self._records = {part: self._fetched(part) for part in self._calls}
        start = time.perf_counter()
        for part in self._calls:
            rows = slice(part.start * LENGTH, part.stop * LENGTH)
            records = self._fetched(part) if fetch else self._records[part]
            values = {name: array[rows] for name, array in self._arrays.items()}
            mask[rows] = torch.from_numpy(
                self._client.evaluate(self._run, records, draw=draw, **values, **keywords).accepted)
            del records
        return time.perf_counter() - start, int(mask.sum())

    def _fetched(self, part):
        return self._client.fetch_top_k(self._run, [str(i) for i in part], log_probs=False)

    def close(self):
        self._arrays = self._records = None
        self._client.close()


class PythonRow:
    """One way to call a PythonTrainer."""

    def __init__(self, process_ids, step):
        self.process_ids = process_ids
        self._step = step

    def __call__(self, draw):
        return self._step(draw)


class TorchEager:
    """PyTorch, in this process, sequences enough at a time that its temporaries stay small."""

    def __init__(self, batch, sequences):
        self._run = peers.torch_eager(batch)
        self._times = sequences / batch.sequences
        self.process_ids = []

    def __call__(self, draw):
        start = time.perf_counter()
        accepted = self._run()[:, 0].sum()
        return (time.perf_counter() - start) * self._times, int(accepted * self._times)

    def close(self):
        pass


def measure(slots, arguments, folder):
    sequences = max(1, round(SEQUENCES * arguments.scale))
    positions = sequences * LENGTH
    batch = make_batch(min(sequences, 64), slots)
    current = write(folder / "current", batch.current, sequences)
    current_sampled = write(folder / "current_sampled", batch.current_sampled, sequences)
    log_envelopes = write(folder / "log_envelopes", (batch.current - batch.behavior).max(-1), sequences)
    covered_masses = write(folder / "covered_masses", np.exp(batch.current).sum(-1), sequences)

    with contextlib.ExitStack() as stack:
        def closing(side):
            stack.callback(side.close)
            return side

        call_sequences = max(1, (arguments.call_mebibytes << 20) // (LENGTH * slots * 4))
        server = closing(Server(folder / "socket", positions, slots))
        fill(server.tcp, batch, sequences)
        gathered = 4 * slots + 5
        rows = {"PyTorch eager in process": ("decisions, ratios", None, TorchEager(batch, sequences))}

        def python(address, arrays):
            return closing(PythonTrainer(server, address, arrays, sequences, call_sequences))

        bits = gathered + BIT_BYTES
        fetched_bytes = 3 * slots + 8
        tcp, unix = server.tcp, server.unix
        tensors = {"log_probs": current, "sampled_log_probs": current_sampled}
        reduced = {"sampled_log_probs": current_sampled, "log_envelopes": log_envelopes,
                   "covered_masses": covered_masses}
        for transport, address in (("TCP", tcp), ("Unix socket", unix)):
            trainer = python(address, tensors)
            rows[f"Python, {transport}"] = ("accept bits", bits, trainer.row())
            rows[f"Python, {transport}, FetchTopK"] = ("accept bits; ids", bits + fetched_bytes,
                                                       trainer.row(fetch=True))
        rows["Python, TCP, REDUCED"] = ("accept bits", 12 + BIT_BYTES, python(tcp, reduced).row())

        seconds = {name: [] for name in rows}
        processor = {name: [] for name in rows}
        counts = {}
        for draw in range(arguments.repetitions + 1):
            for name, (_, _, side) in rows.items():
                before = processor_seconds(side.process_ids)
                elapsed, accepted = side(draw)
                if draw > 0:  # the first round warms up
                    seconds[name].append(elapsed)
                    processor[name].append(processor_seconds(side.process_ids) - before)
                counts.setdefault(draw, {})[name] = accepted

    # All sides must compute the same, apart from the draws. PyTorch has few sequences, counted
    # several times.
    tolerance = 4 * (positions * sequences / batch.sequences) ** 0.5
    for accepted in counts.values():
        if not max(accepted.values()) - min(accepted.values()) <= tolerance:
            raise AssertionError(f"accepted: {accepted}")
    peer = next(iter(rows))
    print(f"K = {slots}, {positions} positions, {arguments.repetitions} repetitions, "
          f"calls of {call_sequences} sequences")
    for name, (outputs, wire, side) in rows.items():
        times = seconds[name]
        ratios = [theirs / mine for mine, theirs in zip(times, seconds[peer])]
        step = SEQUENCES / sequences
        used = f", processors {statistics.median(processor[name]) * step:.2f} s" if side.process_ids else ""
        print(f"  {name:40s} {outputs:24s} {positions / statistics.median(times) / 1e6:7.1f} Mtokens/s "
              f"{'' if wire is None else f'{wire:.1f}':>6s} bytes/token "
              f"{statistics.median(ratios):5.1f} x PyTorch ({min(ratios):.1f}, {max(ratios):.1f})  "
              f"a step {statistics.median(times) * step:.2f} s{used}", flush=True)
    return {name: statistics.median(processor[name]) * step for name in rows if name.endswith("REDUCED")}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--scale", type=float, default=1 / 16, help="which part of the 16.8 M tokens")
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--slots", type=int, nargs="+", default=[10, 50, 100])
    parser.add_argument("--call_mebibytes", type=int, default=256, help="of log-probs in one call, about")
    arguments = parser.parse_args()
    torch.set_num_threads(os.cpu_count())
    torch.set_grad_enabled(False)
    memory = "/dev/shm" if os.path.isdir("/dev/shm") else None
    with tempfile.TemporaryDirectory(dir=memory) as name:
        folder = pathlib.Path(name)
        reduced = {slots: measure(slots, arguments, folder) for slots in arguments.slots}
        for name in reduced[arguments.slots[0]]:
            print(f"{name}: processors " + ", ".join(f"{reduced[slots][name]:.2f} s at K = {slots}" for slots in reduced))


if __name__ == "__main__":
    # It is read when a process starts, so this process has to start again.
    if "GLIBC_TUNABLES" not in os.environ:
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, "GLIBC_TUNABLES": KEEP_MEMORY})
    main()
