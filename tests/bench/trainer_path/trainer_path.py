"""From the engine's arrays in a worker process to a mask in the trainer: this service, beside what
carries such columns otherwise, Ray's object store and TransferQueue, with torch eager deciding.

    tools/rl-environment verl
    bazel run //tests/bench/trainer_path

The first installs Ray, TransferQueue and torch into build/verl. All ways are measured in turn, in one run,
with one worker process, which is an actor of Ray, and this process as trainer. The batch lies in the worker's
memory: ids and log-probs [T, K], sampled ids and their log-probs [T], for each sequence. The clock starts
with the request to hand it over, and stops when the trainer has a tensor of the accepted tokens. The current
policy's log-probs at the recorded ids lie in the trainer's memory before that: gathering them is the same
work for all. The recorded sets are as peaked as real ones; runs with a mass target keep and move of them what
covers it.

Prints for each way medians of nanoseconds per token by the clock, with minimum and maximum; the ratio to
Ray's object store in the same repetition; the trainer's part alone, because a worker hands over while others
still generate; and the processor time of the worker, the server, the trainer, and of all processes, which
includes Ray's. Also prints the bytes per token held in between, which are the service's charge or else the
arrays, and the accept rate. An empty call of the worker is a part of all ways. The service validates, rounds to
one side, draws reproducibly and counts as well, which the others do not.
"""

import argparse
import contextlib
import os
import statistics
import tempfile
import time
from typing import NamedTuple

from tests.bench import environment

THREADS = 2

if __name__ == "__main__":
    environment.start_again_in("verl")

import psutil
import ray
import torch
import transfer_queue

from server.testing.live_server import LiveServer
from tests.bench.trainer_path.batch import MASS, Batch
from tests.bench.trainer_path.processes import processor_seconds
from tests.bench.trainer_path.sis_way import SisWay
from tests.bench.trainer_path.torch_ways import ObjectStoreWay, TransferQueueWay
from tests.bench.trainer_path.worker import Worker


class Batched(NamedTuple):
    """One batch by one way, in nanoseconds per token."""

    clock: float
    # From the hand-over on.
    trainers_part: float
    # Processor time.
    worker: float
    server: float
    trainer: float
    everything: float
    # Bytes per token.
    held: float
    accept_rate: float


def once(way, names, tokens, ids):
    """`ids`: of the worker, the server, the trainer, and of all other processes."""
    # Threads of torch spin for a while after each operation.
    time.sleep(0.05)
    before = [*map(processor_seconds, ids)]
    began = time.perf_counter()
    put = way.put(names)
    handed_over = time.perf_counter()
    mask = way.mask(names, put)
    ended = time.perf_counter()
    used = [processor_seconds(process) - seconds for process, seconds in zip(ids, before)]
    seconds = [ended - began, ended - handed_over, *used[:3], sum(used)]
    accept_rate = mask.numpy().mean()
    held = way.held()
    del put, mask
    way.clear(names)
    return Batched(*(1e9 * part / tokens for part in seconds), held / tokens, accept_rate)


def empty_call(worker, tokens):
    """Nanoseconds per token of Ray's call of the worker, without work."""
    time.sleep(0.05)
    began = time.perf_counter()
    ray.get(worker.process_id.remote())
    return 1e9 * (time.perf_counter() - began) / tokens


def spread(values, digits=0):
    return f"{statistics.median(values):.{digits}f} ({min(values):.{digits}f} to {max(values):.{digits}f})"


def measure(slots, sequences, length, repetitions):
    """Rows of the table."""
    tokens = sequences * length
    shape = (sequences, length, slots)
    batch = Batch(*shape)
    with contextlib.ExitStack() as cleanup:
        folder = cleanup.enter_context(tempfile.TemporaryDirectory())
        server = LiveServer(
            listen=f"127.0.0.1:0,unix:{folder}/socket",
            cache_bytes=tokens * (5 * slots + 64) * 2 + (64 << 20),
        )
        cleanup.callback(server.kill)
        worker = Worker.remote(shape, THREADS)
        cleanup.callback(ray.kill, worker)
        ids = [ray.get(worker.process_id.remote()), server.process.pid, os.getpid()]
        ways = [ObjectStoreWay(worker, batch), TransferQueueWay(worker, batch)]
        for transport, address in zip(("TCP", "Unix socket"), server.address.split(",")):
            for mass in (0, MASS):
                ways.append(SisWay(worker, address, transport, mass, batch))
                cleanup.callback(ways[-1].close)

        def names(repetition):
            return [f"{repetition}-{index}" for index in range(sequences)]

        for way in ways:  # The first time brings memory and connections.
            once(way, names("first"), tokens, ids)
        others = {process.pid for process in psutil.Process().children(recursive=True)}
        ids += others - set(ids)
        calls = [empty_call(worker, tokens) for _ in range(repetitions)]
        measured = [[] for _ in ways]
        for repetition in range(repetitions):
            for way, results in zip(ways, measured):
                results.append(once(way, names(repetition), tokens, ids))
    yield f"| {slots} | an empty call of the worker | {spread(calls)} |" + " |" * 8
    for way, results in zip(ways, measured):
        batched = Batched(*zip(*results))
        ratios = [own / rays.clock for own, rays in zip(batched.clock, measured[0])]
        processor = [batched.worker, batched.server, batched.trainer, batched.everything]
        yield (
            f"| {slots} | {way.name} | {spread(batched.clock)} | {spread(ratios, 2)} | {spread(batched.trainers_part)} | "
            + " | ".join(f"{statistics.median(part):.0f}" for part in processor)
            + f" | {statistics.median(batched.held):.0f} | {statistics.mean(batched.accept_rate):.3f} |"
        )


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sequences", type=int, default=64)
    parser.add_argument("--length", type=int, default=1024)
    parser.add_argument("--repetitions", type=int, default=15)
    parser.add_argument("--slots", type=int, nargs="+", default=[10, 50, 100])
    arguments = parser.parse_args()
    torch.set_num_threads(THREADS)
    ray.init(
        num_cpus=4, include_dashboard=False, log_to_driver=False, object_store_memory=2 << 30
    )
    transfer_queue.init()
    print(
        "| K | way | ns per token | over Ray's | trainer's part | worker, processor | server, processor |"
        " trainer, processor | all, processor | bytes per token | accepted |"
    )
    print("|---" * 11 + "|", flush=True)
    for slots in arguments.slots:
        for row in measure(slots, arguments.sequences, arguments.length, arguments.repetitions):
            print(row, flush=True)
    transfer_queue.close()
    ray.shutdown()


if __name__ == "__main__":
    main()
