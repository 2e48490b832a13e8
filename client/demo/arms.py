"""The arms that are compared, trained side by side: each has a trainer, a worker and a run of its
own."""

import contextlib
import dataclasses
import multiprocessing
import multiprocessing.connection
import signal
from typing import Optional

import sis
from client.demo import trainer, worker
from client.study.miniature import Miniature
from sis.algorithms import Algorithm


@dataclasses.dataclass(frozen=True)
class Arm:
    name: str
    # Part of the run id.
    slug: str
    # Of the weights that its worker computes with; 0: the trainer's own.
    bits: int
    # What the service gives coefficients for, with its decisions; None: GRPO's clip on plain
    # importance ratios.
    rule: Optional[Algorithm] = None
    # Whether old log-probs are the trainer's own, recomputed from the weights that generated.
    recomputes: bool = False


@dataclasses.dataclass(frozen=True)
class Panel:
    """Arms with the same worker. All are compared with the first."""

    name: str
    arms: tuple


def _same_worker(slug, bits):
    return (
        Arm("GRPO", f"{slug}-grpo", bits),
        Arm("GRPO + SIS", f"{slug}-grpo-sis", bits, sis.Grpo()),
        Arm("soft acceptance", f"{slug}-soft-acceptance", bits, sis.SoftAcceptance()),
    )


_BITS = 5
SAME_ENGINE = Panel("Same engine", _same_worker("same-engine", 0))
ROUNDED = Panel(
    f"Worker of {_BITS} bits",
    (
        *_same_worker(f"{_BITS}-bits", _BITS),
        Arm("GRPO recomputed", f"{_BITS}-bits-grpo-recomputed", _BITS, recomputes=True),
    ),
)
PANELS = (SAME_ENGINE, ROUNDED)
ARMS = tuple(arm for panel in PANELS for arm in panel.arms)

# Spawned, because gRPC does not survive a fork.
_processes = multiprocessing.get_context("spawn")


def run_id(arm, seed):
    return f"addition-{arm.slug}-seed-{seed}"


def train_arms(address, chosen, settings, seed, checkpoint, folder, deadline, show):
    """Trains the arms `chosen` from `checkpoint` with the same problems and random numbers, at the
    same time.

    Returns a list of trainer.Learned for each of them, and calls show(these lists) whenever one has
    grown. checkpoint, of numpy, and folder are paths; deadline is on time.monotonic(). RuntimeError
    if a trainer fails.
    """
    learned = [[] for _ in chosen]
    with sis.Client(address) as client, contextlib.ExitStack() as stack:
        progress = {}
        for arm in chosen:
            run = client.create_run(
                run_id(arm, seed),
                seed=seed,
                vocabulary_size=Miniature(settings.digits).vocabulary_size,
                top_k=settings.top_k,
                task="hexadecimal addition",
                algorithm=arm.name,
                model=f"miniature with a worker of {arm.bits} bits" if arm.bits else "miniature",
            )
            for_trainer, for_worker = _processes.Pipe()
            received, sent = _processes.Pipe(duplex=False)
            stack.callback(received.close)
            _start(stack, worker.work, address, run.id, arm.bits, settings, for_worker)
            _start(
                stack, trainer.train,
                address, run.id, arm, settings, seed, checkpoint, folder, deadline, for_trainer, sent,
            )  # fmt: skip
            # The processes have these ends now: with the last copy of an end the other end notices.
            for end in (for_trainer, for_worker, sent):
                end.close()
            progress[received] = len(progress)
        while progress:
            for connection in multiprocessing.connection.wait(list(progress)):
                index = progress[connection]
                try:
                    message = connection.recv()
                except EOFError:
                    raise RuntimeError(f"the trainer of {run_id(chosen[index], seed)} failed; see above") from None
                if message is None:
                    del progress[connection]
                    continue
                learned[index].append(message)
                show(learned)
    return learned


def _start(stack, target, *arguments):
    process = _processes.Process(target=_child, args=(target, *arguments))
    process.start()
    stack.callback(_end, process)


def _child(target, *arguments):
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # The parent process ends its children.
    target(*arguments)


def _end(process):
    process.terminate()
    process.join()
