"""Measures appends and reads with each store, in milliseconds.

    bazel run //tests/bench:stores -- [--sequences 200] [--length 1024] [--folder DIR]

One Python client appends `--sequences` sequences of four blocks over TCP loopback, and waits for the ack of each
block. Then it fetches each sequence alone: once from the server that has it in memory, and once from a server with
an empty cache, which reads it from the store ("read-through"). Printed are p50 and p99. RocksDB and Redis write to
`--folder` (a temporary folder otherwise): the times of `?sync=1` and `appendfsync always` are those of its disk.
"""

import argparse
import tempfile
import time

import numpy as np

import sis
from server.testing.live_server import LiveServer
from tests.integration.redis_servers import RedisServer

VOCABULARY, TOP_K, BLOCKS = 151936, 10, 4
# Calls that are not counted.
WARM_UP = 5


def timed(call, *arguments):
    begin = time.perf_counter()
    call(*arguments)
    return 1e3 * (time.perf_counter() - begin)


def cell(times):
    p50, p99 = np.percentile(times[WARM_UP:], (50, 99))
    return f"{p50:.2f} ({p99:.2f})"


def rows_of(length):
    """Returns the arrays of a block of `length` positions."""
    log_probs = np.broadcast_to(np.float32(-1 - 0.5 * np.arange(TOP_K)), (length, TOP_K))
    ids = np.broadcast_to(np.int32(7 * np.arange(TOP_K)), (length, TOP_K))
    return {
        "sampled_ids": ids[:, 0].copy(),
        "sampled_log_probs": log_probs[:, 0].copy(),
        "top_k_ids": ids.copy(),
        "top_k_log_probs": log_probs.copy(),
    }


def append(client, run, sequences, length):
    """Returns the time of each block, from the call to its ack."""
    rows = rows_of(length // BLOCKS)
    times = []
    with client.append(run, sampling=sis.Sampling("raw")) as stream:
        for sequence in sequences:
            for index in range(BLOCKS):

                def block():
                    stream.block(sequence, first_position=index * (length // BLOCKS), policy_version=0, **rows)
                    if index + 1 == BLOCKS:
                        stream.seal(sequence, length=length)
                    stream.flush()

                times.append(timed(block))
    return times


def fetch(address, sequences):
    """Returns the time of each sequence's fetch, alone."""
    with sis.Client(address) as client:
        run = client.get_run("stores").run
        times = []
        for sequence in sequences:
            times.append(timed(client.fetch_top_k, run, [sequence]))
    return times


def measure(store, sequences, length):
    """Returns the cells of a store's row."""
    server = LiveServer(f"--store={store}", cache_bytes=1 << 30)
    try:
        with sis.Client(server.address) as client:
            run = client.create_run(
                "stores", seed=1, vocabulary_size=VOCABULARY, top_k=TOP_K, log_prob_encoding="float32"
            )
            cells = [cell(append(client, run, sequences, length)), cell(fetch(server.address, sequences))]
    finally:
        server.close()
    if store == "memory":
        return [*cells, ""]
    server = LiveServer(f"--store={store}", cache_bytes=1 << 30)
    try:
        return [*cells, cell(fetch(server.address, sequences))]
    finally:
        server.close()


def measure_redis(appendfsync, folder, sequences, length):
    redis = RedisServer(f"{folder}/{appendfsync}", appendfsync)
    try:
        return measure(redis.store, sequences, length)
    finally:
        redis.kill()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sequences", type=int, default=200)
    parser.add_argument("--length", type=int, default=1024, help="positions of a sequence")
    parser.add_argument("--folder", help="where RocksDB and Redis write")
    options = parser.parse_args()
    sequences = [f"sequence-{number}" for number in range(options.sequences)]
    length = options.length // BLOCKS * BLOCKS
    print(f"K = {TOP_K}, appends of {length // BLOCKS} positions, fetches of {length}; p50 (p99) in ms\n")
    print("| store | append | read from memory | read-through |\n|---|---|---|---|")
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        for store in ("memory", f"rocksdb:{folder}/plain", f"rocksdb:{folder}/sync?sync=1"):
            name = store.replace(f"{folder}/", "").replace(":plain", "").replace(":sync", "")
            print("|", " | ".join([name, *measure(store, sequences, length)]), "|", flush=True)
        for appendfsync in (None, "everysec", "always"):
            cells = measure_redis(appendfsync, folder, sequences, length)
            name = f"Redis, appendfsync {appendfsync}" if appendfsync else "Redis without persistence"
            print("|", " | ".join([name, *cells]), "|", flush=True)


if __name__ == "__main__":
    main()
