"""The form DENSE of Evaluate through the whole service, beside PyTorch eager, in turn within one
run.

    bazel run //tests/bench:evaluate_dense -- [--vocabulary 151936] [--positions 512] [--slots 10] [--repetitions 9]

A trainer's logits lie in memory that it shares with a sis_server process, where they are before the
clock starts: as float32, and as bfloat16. A call is all positions, in sequences of 64; the server
does log-sum-exp, gather and decisions, with as many threads as the machine has cores. PyTorch does
log-sum-exp and gather alone, of the same logits in this process: what the trainer would do instead,
before it sends GATHERED values.

Printed per row: the median of positions per second, of gigabytes of logits per second, and of
seconds of processor time of all processes for a thousand positions. A whole step of 16.8 M
positions is 5 TB of bfloat16 logits at V = 151,936: nobody has it in memory, so it isn't scaled to
one. The machine should have nothing else to do.
"""

import argparse
import os
import pathlib
import statistics
import tempfile
import time

import numpy as np
import torch

import sis
from evaluate import Server, processor_seconds

LENGTH = 64


def record(client, slots, vocabulary, sequences, rng):
    """Tokens that lie anywhere in the vocabulary."""
    run = client.create_run("run", seed=1, vocabulary_size=vocabulary, top_k=slots)
    log_probs = np.broadcast_to(np.log(0.9 / slots).astype(np.float32), (LENGTH, slots))
    ids = np.empty((sequences, LENGTH, slots), np.int32)
    with client.append(run, sampling=sis.Sampling("processed", temperature=1.0)) as stream:
        for i in range(sequences):
            # Equal log-probs go by id; a stride of its own for every slot keeps them apart.
            stride = vocabulary // slots
            ids[i] = rng.integers(0, stride, (LENGTH, slots)) + stride * np.arange(slots)
            stream.block(str(i), first_position=0, policy_version=0, sampled_ids=ids[i, :, 0],
                         sampled_log_probs=log_probs[:, 0], top_k_ids=ids[i], top_k_log_probs=log_probs)
            stream.seal(str(i), length=LENGTH)
    return run, torch.from_numpy(ids.reshape(-1, slots).astype(np.int64))


def in_segment(segment, logits):
    """Where the trainer's model would have written them."""
    if logits.dtype == torch.float32:
        place = torch.from_numpy(segment.empty(tuple(logits.shape)))
    else:
        place = torch.from_numpy(segment.empty(tuple(logits.shape), np.int16)).view(torch.bfloat16)
    return place.copy_(logits)


def in_process(logits, ids):
    """Log-probs at the ids, a sequence at a time so that its temporaries stay small."""
    for first in range(0, len(logits), LENGTH):
        part = logits[first:first + LENGTH].float()
        (part.gather(1, ids[first:first + LENGTH]) - torch.logsumexp(part, 1, keepdim=True)).numpy()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--vocabulary", type=int, default=151936)
    parser.add_argument("--positions", type=int, default=512, help="a multiple of 64")
    parser.add_argument("--slots", type=int, default=10)
    parser.add_argument("--repetitions", type=int, default=9)
    arguments = parser.parse_args()
    torch.set_num_threads(os.cpu_count())
    torch.set_grad_enabled(False)
    sequences = arguments.positions // LENGTH
    positions = sequences * LENGTH
    rng = np.random.default_rng(1)
    float32 = torch.from_numpy(rng.standard_normal((positions, arguments.vocabulary), np.float32) * 2)
    logit_bytes = positions * arguments.vocabulary * (4 + 2) + (1 << 20)
    with tempfile.TemporaryDirectory() as folder:
        server = Server(pathlib.Path(folder) / "socket", positions, arguments.slots, logit_bytes)
        with sis.Client(server.unix) as client, client.lease_segment(logit_bytes) as segment:
            run, ids = record(client, arguments.slots, arguments.vocabulary, sequences, rng)
            slices = [sis.Slice(str(i), length=LENGTH) for i in range(sequences)]
            kinds = {"float32": float32, "bfloat16": float32.to(torch.bfloat16)}
            rows = {}
            for kind, logits in kinds.items():
                shared = in_segment(segment, logits)
                rows[f"shared memory, {kind}"] = logits, lambda draw, logits=shared: client.evaluate_dense(
                    run, slices, draw=draw, logits=logits)
                rows[f"PyTorch eager, {kind}"] = logits, lambda draw, logits=logits: in_process(logits, ids)
            processes = [os.getpid(), server.process_id]
            times = {name: [] for name in rows}
            for draw in range(arguments.repetitions + 1):
                for name, (_, call) in rows.items():
                    used, start = processor_seconds(processes), time.perf_counter()
                    call(draw)
                    elapsed = time.perf_counter() - start
                    if draw > 0:  # the first round warms up
                        times[name].append((elapsed, processor_seconds(processes) - used))
            print(f"V = {arguments.vocabulary}, K = {arguments.slots}, {positions} positions, "
                  f"{arguments.repetitions} repetitions")
            for name, (logits, _) in rows.items():
                elapsed, used = (statistics.median(column) for column in zip(*times[name]))
                gigabytes = logits.numel() * logits.element_size() / 1e9
                print(f"  {name:24s} {positions / elapsed:8.0f} positions/s {gigabytes / elapsed:6.1f} GB/s  "
                      f"processors {used / positions * 1e6:6.1f} ms per 1000 positions", flush=True)
            del shared, rows, slices
        server.close()


if __name__ == "__main__":
    main()
