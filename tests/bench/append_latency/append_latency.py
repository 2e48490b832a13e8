"""Measures the time from one token's append to its ack, next to an echo over the same transport.

    bazel run //tests/bench/append_latency -- [--slots 10 50] [--rounds 20] [--tokens 500]

The Python client appends a token, and waits for its ack before the next, over TCP loopback. The echo is the
lower bound. Its C++ server (`echo_server.cc`) answers each message of a gRPC stream with as many bytes as an
ack has, and its Python client sends messages of the same size. The echo's time belongs to the machine and to
gRPC: system calls, and threads that are woken.

Each round times `--tokens` of both, in turn. Printed are medians over the rounds of the p50 and the p99 of a
round, in microseconds, and the median ratio of the same round with its least and most. The machine should
have nothing else to do.
"""

import argparse
import contextlib
import os
import pathlib
import queue
import statistics
import subprocess
import time

import grpc
import numpy as np

import sis
from server.testing.live_server import LiveServer
from sis.v1 import ratio_service_pb2 as pb

FOLDER = pathlib.Path(__file__).absolute().parent
VOCABULARY = 151936
SEQUENCE = "sequence"
WARM_UP = 200
QUANTILES = (0.5, 0.99)


def timed(call, count):
    """Microseconds of each call."""
    times = []
    for _ in range(count):
        begin = time.perf_counter()
        call()
        times.append(1e6 * (time.perf_counter() - begin))
    return times


class EchoServer:
    def __init__(self, listen, answer_bytes):
        self._process = subprocess.Popen(
            [FOLDER / "echo_server", listen, str(answer_bytes)], stdout=subprocess.PIPE, text=True
        )
        self.address = self._process.stdout.readline().strip()

    def close(self):
        self._process.kill()
        self._process.communicate()


class Client:
    def __init__(self, address, echo_address, run, message_bytes):
        self._cleanup = contextlib.ExitStack()
        client = self._cleanup.enter_context(contextlib.closing(sis.Client(address)))
        slots = run.config.top_k
        self._token = {
            "sampled_ids": np.empty((1,), np.int32),
            "sampled_log_probs": np.empty((1,), np.float32),
            "top_k_ids": np.empty((1, slots), np.int32),
            "top_k_log_probs": np.empty((1, slots), np.float32),
        }
        self._token["top_k_ids"][:] = 7 * np.arange(slots)
        self._token["top_k_log_probs"][:] = -1 - 0.5 * np.arange(slots)
        self._token["sampled_ids"][:] = 0
        self._token["sampled_log_probs"][:] = -1
        self._stream = client.append(run, sampling=sis.Sampling("raw"))
        self._cleanup.callback(self._stream.close)
        self._position = 0

        channel = self._cleanup.enter_context(grpc.insecure_channel(echo_address))
        self._message = b"m" * message_bytes
        self._messages = queue.SimpleQueue()
        self._answers = channel.stream_stream("/echo")(iter(self._messages.get, None))
        self._cleanup.callback(self._answers.cancel)
        self._cleanup.callback(self._messages.put, None)

    def _append(self):
        self._stream.block(
            SEQUENCE, first_position=self._position, policy_version=0, **self._token
        )
        self._stream.flush()
        self._position += 1

    def _echo(self):
        self._messages.put(self._message)
        next(self._answers)

    def append(self, count):
        return timed(self._append, count)

    def echo(self, count):
        return timed(self._echo, count)

    def close(self):
        self._cleanup.close()


def message_bytes(slots):
    """Returns the bytes of a request with one token, and of its ack."""
    sequence = pb.SequenceRef(id=SEQUENCE)
    # A float32 block of one position, in ids of 3 bytes; both parts end at a multiple of 8.
    block = bytes(64 + -(-(4 * slots + 1) // 8) * 8 + -(-(4 + 1 + 3 + 3 * slots) // 8) * 8)
    batch = pb.AppendBatch(entries=[pb.AppendEntry(sequence=sequence, block=block)])
    ack = pb.Ack(sequence=sequence, committed_length=1000)
    return pb.AppendRequest(batch=batch).ByteSize(), pb.AppendResponse(acks=[ack]).ByteSize()


def quantiles(times):
    times = sorted(times)
    return [times[int(q * (len(times) - 1))] for q in QUANTILES]


def row(appends, echoes):
    """Cells: p50 and p99 of both, and of their ratios."""
    cells = []
    for ours, floor in zip(zip(*appends), zip(*echoes)):
        ratios = [a / b for a, b in zip(ours, floor)]
        cells += [
            f"{statistics.median(ours):.0f}",
            f"{statistics.median(floor):.0f}",
            f"{statistics.median(ratios):.2f} ({min(ratios):.2f}, {max(ratios):.2f})",
        ]
    return cells


def measure(slots, rounds, tokens):
    with contextlib.ExitStack() as cleanup:
        server = LiveServer(cache_bytes=1 << 30)
        cleanup.callback(server.close)
        with contextlib.closing(sis.Client(server.address)) as client:
            run = client.create_run("latency", seed=1, vocabulary_size=VOCABULARY, top_k=slots)
        request, answer = message_bytes(slots)
        echo = EchoServer("127.0.0.1:0", answer)
        cleanup.callback(echo.close)
        addresses = (server.address, echo.address)
        with contextlib.closing(Client(*addresses, run, request)) as client:
            client.append(WARM_UP)
            client.echo(WARM_UP)
            appends, echoes = [], []
            for _ in range(rounds):
                appends.append(quantiles(client.append(tokens)))
                echoes.append(quantiles(client.echo(tokens)))
            print("| " + " | ".join([str(slots), *row(appends, echoes)]) + " |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--slots", type=int, nargs="+", default=[10, 50])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--tokens", type=int, default=500, help="of a round, at least 100")
    options = parser.parse_args()
    print("| K | p50, us | echo's | ratio | p99, us | echo's | ratio |")
    print("|" + "---|" * 7)
    for slots in options.slots:
        measure(slots, options.rounds, options.tokens)
    print(f"\nThe echo is the floor. Load of the machine at the end: {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
