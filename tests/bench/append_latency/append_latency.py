"""Measures the time from one token's append to its ack, next to an echo over the same transport.

    bazel run //tests/bench/append_latency -- [--slots 10 50] [--rounds 20] [--tokens 500]

A Python client sends a token, and waits for its answer before the next, over TCP loopback, in four ways. The
client: `AppendStream.block` and `flush`. The server: requests made beforehand, answers not parsed. The echo is
the lower bound: its C++ server (`echo_server.cc`) answers requests of the same size with as many bytes as an ack
has. Its time belongs to the machine and to gRPC: system calls, and threads that are woken. Packed: the echo, but
the client packs each request.

Each round times `--tokens` of all ways, in turn. Printed are medians over the rounds of the p50 and the p99 of a
round, in microseconds, and the median ratio to the echo of the same round with its least and most. The machine
should have nothing else to do.
"""

import argparse
import contextlib
import os
import statistics
import time

import grpc
import numpy as np

import sis
from sis._append import Source
from sis._append_streams.checked_entries import append_request, checked
from server.testing.live_server import LiveServer
from sis.v1 import ratio_service_pb2 as pb
from tests.bench.append_latency.echo import EchoServer, Exchange

VOCABULARY = 151936
# Size of an AppendResponse with one ack.
ACK_BYTES = 30
WARM_UP = 200
QUANTILES = (0.5, 0.99)


def timed(call, requests):
    """Microseconds of each call."""
    times = []
    for request in requests:
        begin = time.perf_counter()
        call(request)
        times.append(1e6 * (time.perf_counter() - begin))
    return times


class Client:
    """Appends tokens to a sequence through AppendStream."""

    def __init__(self, stream, slots):
        self._stream = stream
        self._token = {
            "sampled_ids": np.zeros(1, np.int32),
            "sampled_log_probs": np.full(1, -1, np.float32),
            "top_k_ids": (7 * np.arange(slots, dtype=np.int32))[None],
            "top_k_log_probs": (-1 - 0.5 * np.arange(slots, dtype=np.float32))[None],
        }
        self._position = 0

    def request(self, position):
        """Returns an AppendRequest with one token of another sequence."""
        block = sis.Block("raw", position, 0, **self._token)
        return append_request(checked([block], self._stream._config))

    def __call__(self, _):
        self._stream.block("client", first_position=self._position, policy_version=0, **self._token)
        self._stream.flush()
        self._position += 1


def quantiles(times):
    times = sorted(times)
    return [times[int(q * (len(times) - 1))] for q in QUANTILES]


def cells(way, echo):
    """Returns the p50 and p99 of a way over the rounds, each with its ratio to the echo's."""
    made = []
    for ours, floor in zip(zip(*way), zip(*echo)):
        ratios = [a / b for a, b in zip(ours, floor)]
        made += [
            f"{statistics.median(ours):.0f}",
            f"{statistics.median(ratios):.2f} ({min(ratios):.2f}, {max(ratios):.2f})",
        ]
    return " | ".join(made)


def measure(slots, rounds, tokens):
    with contextlib.ExitStack() as cleanup:
        server = LiveServer(cache_bytes=1 << 30)
        cleanup.callback(server.close)
        client = cleanup.enter_context(contextlib.closing(sis.Client(server.address)))
        run = client.create_run("latency", seed=1, vocabulary_size=VOCABULARY, top_k=slots)
        stream = cleanup.enter_context(client.append(run, sampling=sis.Sampling("raw")))
        through_client = Client(stream, slots)
        echo_server = EchoServer("127.0.0.1:0", ACK_BYTES)
        cleanup.callback(echo_server.close)
        raw, echo = (
            cleanup.enter_context(
                contextlib.closing(
                    Exchange(cleanup.enter_context(grpc.insecure_channel(address)), method)
                )
            )
            for address, method in (
                (server.address, "/sis.v1.RatioService/Append"),
                (echo_server.address, "/echo"),
            )
        )
        raw.send(pb.AppendRequest(header=Source(run, sis.Sampling("raw"), "", 0).header()).SerializeToString())
        packed = lambda _: echo(through_client.request(0))
        ways = {"client": through_client, "server": raw, "packed": packed, "echo": echo}
        position, measured = 0, {name: [] for name in ways}
        for count in [WARM_UP] + rounds * [tokens]:
            requests = [through_client.request(position + i) for i in range(count)]
            position += count
            for name, way in ways.items():
                measured[name].append(quantiles(timed(way, requests)))
        for name, rows in measured.items():
            print(f"| {slots} | {name} | {cells(rows[1:], measured['echo'][1:])} |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--slots", type=int, nargs="+", default=[10, 50])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--tokens", type=int, default=500, help="of a round, at least 100")
    options = parser.parse_args()
    print("| K | way | p50, us | over the echo's | p99, us | over the echo's |")
    print("|" + "---|" * 6)
    for slots in options.slots:
        measure(slots, options.rounds, options.tokens)
    print(f"\nThe echo is the floor. Load of the machine at the end: {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
