"""Measures the parts of a trainer's path over TCP.

    bazel run //tests/bench/trainer_path:parts -- --perf 3

Engine and trainer are one process here, without Ray, and hand over the batch of `trainer_path`. Prints
nanoseconds per token for each part, by the clock and of processor time of this process and of the server, as
minimum and, in brackets, median. Also prints the page faults of both processes in one batch, and the minimum
of bytes per token that must be read and written. With `--perf SECONDS` it repeats each part for this long,
and prints the server's processor time by function, sampled by perf(1) (Debian's linux-perf). With `--mass`
the run cuts its sets there; whole ones are handed over.
"""

import argparse
import contextlib
import re
import resource
import statistics
import subprocess
import tempfile
import time

import numpy as np

import sis
from server.testing.live_server import LiveServer
from tests.bench.trainer_path.batch import RECORDED, VOCABULARY, Batch
from tests.bench.trainer_path.processes import processor_seconds

# Patterns of the server's functions by stage. The first match counts.
STAGES = {
    "kernel": r"^\[k\]",
    "checks": r"AreValid|DistinctIds|ValidateRecord|CheckBlock|PositionChecker",
    "rounds and packs": r"PackBlock|MergeBlocks|SliceBlock|Writer",
    "digests": r"Digest",
    "checksums": r"crc32",
    "decodes": r"ReadBlock",
    "decides": r"EvaluateRange|SimdBackend",
    "counts": r"AddBlock|AddValues|Statistics",
    "inspects": r"SpaceSaving|Inspect|raw_hash_set",
    "copies and fills": r"memmove|memset|memcpy|_M_fill_insert",
    "allocates": r"malloc|_int_free|cfree|unlink_chunk|operator new",
    "messages and the rest": r"",
}


def page_faults(process_id):
    with open(f"/proc/{process_id}/stat") as stat:
        return int(stat.read().rpartition(")")[2].split()[7])


class Path:
    """One batch after the other; every part is of the batch before it."""

    def __init__(self, slots, sequences, length, mass):
        self.tokens = sequences * length
        self._batch = Batch(sequences, length, slots)
        self._cleanup = contextlib.ExitStack()
        arrays = self.tokens * (8 * slots + 8)
        server = LiveServer(cache_bytes=2 * arrays + (64 << 20))
        self._cleanup.callback(server.kill)
        self.server_id = server.process.pid
        self._client = self._cleanup.enter_context(contextlib.closing(sis.Client(server.address)))
        self._run = self._client.create_run(
            "parts", seed=1, vocabulary_size=VOCABULARY, top_k=slots, mass=mass
        )
        self._slots = slots
        self._current = None  # known once sets are cut
        self._current_sampled = self._batch.current_sampled
        self._batches = 0
        self._names = []
        self._sequences = sequences

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._cleanup.close()

    def append(self):
        self._batches += 1
        self._names = [f"{self._batches}-{index}" for index in range(self._sequences)]
        blocks = [
            sis.Block(name, 0, 0, **{column: self._batch.recorded[column][row] for column in RECORDED})
            for row, name in enumerate(self._names)
        ]
        sis.append_many(
            self._client, self._run, blocks, sampling=sis.Sampling("raw"), worker="worker"
        )

    def fetch(self):
        self._records = self._client.fetch_top_k(self._run, self._names, log_probs=False)
        if self._current is None:
            self._current = self._batch.current[np.arange(self._slots) < self._records.counts[:, None]]

    def evaluate(self):
        self._batches += 1
        evaluation = self._client.evaluate(
            self._run,
            self._records,
            draw=self._batches,
            log_probs=self._current,
            sampled_log_probs=self._current_sampled,
        )
        if evaluation.totals.missing:
            raise RuntimeError(f"missing: {evaluation.missing[:3]}")

    def release(self):
        self._client.release(self._run, self._names)

    def held(self):
        """Bytes per token that the server charges."""
        return self._client.get_run(self._run.id).bytes / self.tokens


def floors(slots, held):
    """Bytes per token that each part must read and write, where no set is cut."""
    arrays, ids, values = 8 * slots + 8, 3 * slots + 3, 4 * slots + 4
    return {
        "append": arrays + held,
        "fetch": 2 * ids + values,
        "evaluate": values + held - ids,
    }


def measure(path, repetitions):
    """By part: rows of (clock, client, server) in ns per token, and faults of both."""
    measured = {part: [] for part in ("append", "fetch", "evaluate", "release")}
    for repetition in range(-2, repetitions):
        for part, rows in measured.items():
            faults = (
                resource.getrusage(resource.RUSAGE_SELF).ru_minflt + page_faults(path.server_id)
            )
            began = time.perf_counter(), time.process_time(), processor_seconds(path.server_id)
            getattr(path, part)()
            ended = time.perf_counter(), time.process_time(), processor_seconds(path.server_id)
            faults = (
                resource.getrusage(resource.RUSAGE_SELF).ru_minflt
                + page_faults(path.server_id)
                - faults
            )
            if repetition >= 0:
                times = [1e9 * (end - begin) / path.tokens for begin, end in zip(began, ended)]
                rows.append((*times, faults))
    return measured


def stages(path, work, seconds):
    """By stage: the server's nanoseconds per token while `work` is repeated."""
    with tempfile.NamedTemporaryFile() as samples:
        record = ["perf", "record", "-q", "-e", "cpu-clock", "-F", "4000", "-o", samples.name]
        with subprocess.Popen(
            [*record, "-p", str(path.server_id), "--", "sleep", str(seconds)],
            stdin=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        ) as perf:
            began, calls = processor_seconds(path.server_id), 0
            while perf.poll() is None:
                work()
                calls += 1
            used = processor_seconds(path.server_id) - began
        report = subprocess.run(
            ["perf", "report", "-i", samples.name, "--stdio", "-s", "symbol", "-g", "none"],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            check=True,
        ).stdout
    shares = dict.fromkeys(STAGES, 0.0)
    for line in report.splitlines():
        sample = re.match(r"\s+([0-9.]+)%\s+(.+)", line)
        if sample is not None:
            stage = next(name for name in STAGES if re.search(STAGES[name], sample[2]))
            shares[stage] += float(sample[1]) / 100
    each = 1e9 * used / calls / path.tokens
    return {stage: share * each for stage, share in shares.items()}


def print_table(path, slots, repetitions):
    path.append()
    bounds = floors(slots, path.held())
    path.release()
    for part, rows in measure(path, repetitions).items():
        clock, client, server, faults = zip(*rows)
        times = " | ".join(
            f"{min(values):.0f} ({statistics.median(values):.0f})"
            for values in (clock, client, server)
        )
        print(
            f"| {slots} | {part} | {times} | {statistics.median(faults):.0f} |"
            f" {bounds.get(part, 0):.0f} |",
            flush=True,
        )


def print_stages(path, slots, seconds):
    def append():
        path.release()
        path.append()

    path.append()
    path.fetch()
    for name, work in (("append", append), ("fetch", path.fetch), ("evaluate", path.evaluate)):
        if name == "fetch":
            path.fetch()
        shares = stages(path, work, seconds)
        told = ", ".join(f"{stage} {value:.1f}" for stage, value in shares.items() if value >= 0.05)
        print(f"| {slots} | {name} | {sum(shares.values()):.0f} | {told} |", flush=True)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sequences", type=int, default=64)
    parser.add_argument("--length", type=int, default=1024)
    parser.add_argument("--repetitions", type=int, default=25)
    parser.add_argument("--slots", type=int, nargs="+", default=[10, 50, 100])
    parser.add_argument("--mass", type=float, default=0)
    parser.add_argument("--perf", type=float, default=0, metavar="SECONDS")
    arguments = parser.parse_args()
    shape = arguments.sequences, arguments.length, arguments.mass
    print("| K | part | clock | this process | server | page faults | bytes at least |")
    print("|---|---|---|---|---|---|---|", flush=True)
    for slots in arguments.slots:
        with Path(slots, *shape) as path:
            print_table(path, slots, arguments.repetitions)
    if arguments.perf:
        print("\n| K | part | server | of which |\n|---|---|---|---|", flush=True)
        for slots in arguments.slots:
            with Path(slots, *shape) as path:
                print_stages(path, slots, arguments.perf)


if __name__ == "__main__":
    main()
