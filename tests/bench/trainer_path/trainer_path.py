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

Prints for each way medians of nanoseconds per token by the clock, with minimum and maximum, of the whole path
and of the trainer's part alone, because a worker hands over while others still generate. Also prints
processor time of all processes together (including Ray's, in every way); the bytes per token held in between,
which are the service's charge or else the arrays; and the accept rate. The service validates, rounds to one
side, draws reproducibly and counts as well, which the others do not.
"""

import argparse
import contextlib
import statistics
import time

from tests.bench import environment

THREADS = 2

if __name__ == "__main__":
    environment.start_again_in("verl")

import ray
import torch
import transfer_queue

import sis
from server.testing.live_server import LiveServer
from tests.bench.trainer_path import processes
from tests.bench.trainer_path.batch import VOCABULARY, Batch
from tests.bench.trainer_path.sis_ways import ReducedWay, TcpMassWay, TcpWay
from tests.bench.trainer_path.torch_ways import ObjectStoreWay, TransferQueueWay
from tests.bench.trainer_path.worker import Worker


def once(way, names, tokens):
    """Nanoseconds per token: by the clock, of the trainer's part of it, and of processor time. Then
    bytes held per token, and the accept rate."""
    used, began = processes.processor_seconds(), time.perf_counter()
    put = way.put(names)
    handed_over = time.perf_counter()
    mask = way.mask(names, put)
    ended = time.perf_counter()
    used = processes.processor_seconds() - used
    accept_rate = mask.float().mean().item()
    held = way.held()
    del put, mask
    way.clear(names)
    nanoseconds = [1e9 * part / tokens for part in (ended - began, ended - handed_over, used)]
    return *nanoseconds, held / tokens, accept_rate


def spread(values):
    return f"{statistics.median(values):.0f} ({min(values):.0f} to {max(values):.0f})"


def measure(slots, sequences, length, repetitions):
    """Rows of the table."""
    tokens = sequences * length
    shape = (sequences, length, slots)
    batch = Batch(*shape)
    with contextlib.ExitStack() as cleanup:
        server = LiveServer(cache_bytes=tokens * (5 * slots + 64) * 2 + (64 << 20))
        cleanup.callback(server.kill)
        client = cleanup.enter_context(contextlib.closing(sis.Client(server.address)))
        worker = Worker.remote(server.address, shape, THREADS)
        cleanup.callback(ray.kill, worker)
        ways = [ObjectStoreWay(worker, batch), TransferQueueWay(worker, batch)]
        for way in (TcpWay, ReducedWay, TcpMassWay):
            run = client.create_run(
                way.__name__, seed=1, vocabulary_size=VOCABULARY, top_k=slots, mass=way.mass
            )
            ways.append(way(worker, client, batch, run))

        def names(repetition):
            return [f"{repetition}-{index}" for index in range(sequences)]

        for way in ways:  # The first time brings memory and connections.
            once(way, names("first"), tokens)
        measured = [[] for _ in ways]
        for repetition in range(repetitions):
            for way, results in zip(ways, measured):
                results.append(once(way, names(repetition), tokens))
    for way, results in zip(ways, measured):
        wall, trainer, processor, held, accept_rates = zip(*results)
        yield (
            f"| {slots} | {way.name} | {spread(wall)} | {spread(trainer)} | "
            f"{statistics.median(processor):.0f} | {statistics.median(held):.0f} | "
            f"{statistics.mean(accept_rates):.3f} |"
        )


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sequences", type=int, default=64)
    parser.add_argument("--length", type=int, default=1024)
    parser.add_argument("--repetitions", type=int, default=7)
    parser.add_argument("--slots", type=int, nargs="+", default=[10, 50, 100])
    arguments = parser.parse_args()
    torch.set_num_threads(THREADS)
    ray.init(
        num_cpus=4, include_dashboard=False, log_to_driver=False, object_store_memory=2 << 30
    )
    transfer_queue.init()
    print("| K | way | ns per token | the trainer's | of processors | bytes per token | accepted |")
    print("|---|---|---|---|---|---|---|", flush=True)
    for slots in arguments.slots:
        for row in measure(slots, arguments.sequences, arguments.length, arguments.repetitions):
            print(row, flush=True)
    transfer_queue.close()
    ray.shutdown()


if __name__ == "__main__":
    main()
