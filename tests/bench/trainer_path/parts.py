"""Measures the parts of a trainer's path over TCP.

    bazel run //tests/bench/trainer_path:parts

Engine and trainer are one process here, without Ray, and hand over the batch of `trainer_path`. Prints
nanoseconds per token for each part, by the clock and of processor time of this process and of the server, as
minimum and, in brackets, median. The echo is the part's floor: a C++ server that uses gRPC alone gets and answers
as many bytes, which nobody packs, checks or reads. Also prints the minimum of bytes per token that must be read and
written. With `--mass` the run cuts its sets there; whole ones are handed over.
"""

import argparse
import contextlib
import statistics
import time

import grpc
import numpy as np

import sis
from server.testing.live_server import LiveServer
from tests.bench.append_latency.echo import EchoServer, Exchange
from tests.bench.trainer_path.batch import RECORDED, VOCABULARY, Batch
from tests.bench.trainer_path.processes import processor_seconds


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
        # Stays open, as those of recorders do.
        self._stream = self._cleanup.enter_context(
            self._client.append(self._run, sampling=sis.Sampling("raw"), worker="worker")
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
        self._stream.append_many(
            sis.Block(name, 0, 0, **{column: self._batch.recorded[column][row] for column in RECORDED})
            for row, name in enumerate(self._names)
        )
        self._stream.flush()

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

    def used_slots(self):
        """Used slots per token."""
        return len(self._records.used_ids) / self.tokens

    def held(self):
        """Bytes per token that the server charges."""
        return self._client.get_run(self._run.id).bytes / self.tokens


# Bytes of an append's message, and of the answers to appends and of other requests without arrays.
MESSAGE_BYTES = 2 << 20
SMALL = 4 << 10


class Echo:
    """Sends and gets as many bytes per token as a part, by gRPC alone."""

    def __init__(self, tokens, sent, answered):
        size = int(sent * tokens) + SMALL
        self._messages = [bytes(min(MESSAGE_BYTES, size - begin)) for begin in range(0, size, MESSAGE_BYTES)]
        self._cleanup = contextlib.ExitStack()
        server = EchoServer("127.0.0.1:0", (int(answered * tokens) + SMALL) // len(self._messages))
        self._cleanup.callback(server.close)
        options = [("grpc.max_receive_message_length", -1), ("grpc.http2.max_frame_size", 1 << 20)]
        channel = self._cleanup.enter_context(grpc.insecure_channel(server.address, options))
        self._exchange = self._cleanup.enter_context(contextlib.closing(Exchange(channel, "/echo")))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._cleanup.close()

    def __call__(self):
        self._exchange(*self._messages)


def bytes_per_token(slots, used, held):
    """Returns for each part the bytes to read and write, those sent, and those answered. `used` is the mean of used
    slots."""
    arrays, ids, values = 8 * slots + 8, 3 * used + 3, 4 * used + 4
    return {
        "append": (arrays + held, held, 0),
        "fetch": (2 * ids + values, 0, ids + 5),
        "evaluate": (values + held - ids, values + 1, 1 / 8),
    }


def measure(path, echoes, repetitions):
    """By part: rows of (clock, client, server, echo) in ns per token."""
    measured = {part: [] for part in ("append", "fetch", "evaluate", "release")}
    for repetition in range(-2, repetitions):
        for part, rows in measured.items():
            began = time.perf_counter(), time.process_time(), processor_seconds(path.server_id)
            getattr(path, part)()
            ended = time.perf_counter(), time.process_time(), processor_seconds(path.server_id)
            seconds = [end - begin for begin, end in zip(began, ended)]
            if part in echoes:
                began = time.perf_counter()
                echoes[part]()
                seconds.append(time.perf_counter() - began)
            if repetition >= 0:
                rows.append([1e9 * value / path.tokens for value in seconds])
    return measured


def print_table(path, slots, repetitions):
    path.append()
    path.fetch()
    bounds = bytes_per_token(slots, path.used_slots(), path.held())
    path.release()
    with contextlib.ExitStack() as cleanup:
        echoes = {
            part: cleanup.enter_context(Echo(path.tokens, sent, answered))
            for part, (_, sent, answered) in bounds.items()
        }
        measured = measure(path, echoes, repetitions)
    for part, rows in measured.items():
        times = [f"{min(values):.0f} ({statistics.median(values):.0f})" for values in zip(*rows)]
        times += [""] * (4 - len(times))
        print(f"| {slots} | {part} | {' | '.join(times)} | {bounds.get(part, [0])[0]:.0f} |", flush=True)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sequences", type=int, default=64)
    parser.add_argument("--length", type=int, default=1024)
    parser.add_argument("--repetitions", type=int, default=25)
    parser.add_argument("--slots", type=int, nargs="+", default=[10, 50, 100])
    parser.add_argument("--mass", type=float, default=0)
    arguments = parser.parse_args()
    shape = arguments.sequences, arguments.length, arguments.mass
    print("| K | part | clock | this process | server | echo | bytes at least |")
    print("|---|---|---|---|---|---|---|", flush=True)
    for slots in arguments.slots:
        with Path(slots, *shape) as path:
            print_table(path, slots, arguments.repetitions)


if __name__ == "__main__":
    main()
