"""A trainer's path of a whole server with CUDA beside one with the CPU, on a machine with a GPU.

    tools/rl-environment rl
    bazel run //tests/bench/trainer_path:backends

The first installs PyTorch into build/rl. Both servers run at once and are measured in turn. The worker
appends a batch like that of `//tests/bench/trainer_path`. The trainer fetches its ids, and sis.torch takes
the current policy's log-probs from logits on the GPU, if there is one. The server returns coefficients of a
clipped objective. Prints medians of nanoseconds per token of each part, with minimum and maximum, per mass
target and backend. Decisions and coefficients of both servers must be the same bytes.
"""

import argparse
import contextlib
import statistics
import time

from tests.bench import environment

if __name__ == "__main__":
    environment.start_again_in("rl")

import numpy as np
import torch

import sis
import sis.torch
from server.testing.live_server import LiveServer
from tests.bench.trainer_path.batch import MASS, RECORDED, VOCABULARY, Batch

PARTS = ("append", "fetch", "gather", "evaluate")
BACKENDS = ("cpu", "cuda")


class Logits:
    """Logits of the current policy: the batch's log-probs at the recorded ids, and small values elsewhere."""

    def __init__(self, batch, device):
        tokens, slots = batch.current.shape
        # Gives the whole vocabulary a mass of 1, up to rounding.
        covered = np.exp(batch.current.astype(np.float64)).sum(1)
        rest = np.log(np.maximum(1 - covered, 1e-6) / (VOCABULARY - slots))
        self.values = torch.from_numpy(rest.astype(np.float32)).to(device)[:, None].repeat(1, VOCABULARY)
        sampled = torch.from_numpy(batch.sampled_ids.reshape(-1, 1)).long().to(device)
        self.values.scatter_(1, sampled, torch.from_numpy(batch.current_sampled[:, None]).to(device))
        ids = torch.from_numpy(batch.top_k_ids.reshape(-1, slots)).long().to(device)
        self.values.scatter_(1, ids, torch.from_numpy(batch.current).to(device))


class Path:
    """By one server."""

    def __init__(self, client, batch, logits, mass):
        self._client, self._batch, self._logits = client, batch, logits
        slots = batch.current.shape[1]
        self._run = client.create_run(
            f"top{slots}-mass{mass}",
            seed=1,
            vocabulary_size=VOCABULARY,
            top_k=slots,
            mass=mass,
        )
        rng = np.random.default_rng(2)
        self._advantages = rng.normal(size=len(batch.current)).astype(np.float32)

    def once(self, draw):
        """Seconds of each part, and the bytes of what was decided."""
        names = [f"{draw}-{index}" for index in range(len(self._batch.sampled_ids))]
        times = [time.perf_counter()]

        def took():
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            times.append(time.perf_counter())

        blocks = [
            sis.Block(name, 0, 0, **{column: self._batch.recorded[column][row] for column in RECORDED})
            for row, name in enumerate(names)
        ]
        sis.append_many(self._client, self._run, blocks, sampling=sis.Sampling("raw"), worker="worker")
        took()
        records = self._client.fetch_top_k(self._run, names, log_probs=False)
        took()
        gathered = sis.torch.gather(records, self._logits.values)
        took()
        evaluation = self._client.evaluate(
            self._run,
            records,
            draw=draw,
            outputs=("decisions", "coefficients"),
            options=sis.EvaluateOptions(algorithm=sis.Grpo(), advantages=self._advantages),
            **gathered._asdict(),
        )
        took()
        if evaluation.totals.missing:
            raise RuntimeError(f"missing: {evaluation.missing[:3]}")
        del records
        self._client.release(self._run, names)
        decided = evaluation.decisions.tobytes() + evaluation.coefficients.tobytes()
        return np.diff(times), decided, evaluation.totals.accept_rate


def spread(values):
    return f"{statistics.median(values):.0f} ({min(values):.0f} to {max(values):.0f})"


def measure(servers, slots, sequences, length, repetitions, device):
    """Rows of the table."""
    batch = Batch(sequences, length, slots)
    logits = Logits(batch, device)
    with contextlib.ExitStack() as cleanup:
        paths = {}
        for name, server in servers.items():
            client = cleanup.enter_context(contextlib.closing(sis.Client(server.address)))
            for mass in (0.0, MASS):
                paths[mass, name] = Path(client, batch, logits, mass)
        measured = {key: [] for key in paths}
        for repetition in range(-1, repetitions):  # the first brings memory and connections
            decided = {}
            for (mass, name), path in paths.items():
                seconds, of_this, accept_rate = path.once(repetition + 1)
                if decided.setdefault(mass, of_this) != of_this:
                    raise RuntimeError(f"{name} decides otherwise")
                if repetition >= 0:
                    measured[mass, name].append((*seconds, sum(seconds), accept_rate))
    for (mass, name), rows in sorted(measured.items()):
        *seconds, accept_rates = zip(*rows)
        parts = [spread([1e9 * each / (sequences * length) for each in part]) for part in seconds]
        rate = statistics.mean(accept_rates)
        yield f"| {slots} | {mass:g} | {name} | {' | '.join(parts)} | {rate:.3f} |"


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sequences", type=int, default=32)
    parser.add_argument("--length", type=int, default=1024)
    parser.add_argument("--repetitions", type=int, default=7)
    parser.add_argument("--slots", type=int, nargs="+", default=[10, 50, 100])
    arguments = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    tokens = arguments.sequences * arguments.length
    with contextlib.ExitStack() as cleanup:
        servers = {}
        for backend in BACKENDS:
            servers[backend] = LiveServer(
                f"--backend={backend}",
                cache_bytes=tokens * (5 * max(arguments.slots) + 64) * 4 + (64 << 20),
            )
            cleanup.callback(servers[backend].kill)
            print(f"{backend}: {servers[backend].said['backend']}")
        print("\nNanoseconds per token:\n")
        print(f"| K | mass | backend | {' | '.join(PARTS)} | all | accepted |")
        print("|---|---|---|---|---|---|---|---|---|", flush=True)
        for slots in arguments.slots:
            for row in measure(
                servers, slots, arguments.sequences, arguments.length, arguments.repetitions, device
            ):
                print(row, flush=True)


if __name__ == "__main__":
    main()
