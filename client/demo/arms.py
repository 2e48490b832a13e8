"""The two arms of the comparison, trained side by side: each has a trainer, a worker and a run of
its own."""

import contextlib
import dataclasses
import multiprocessing
import multiprocessing.connection
import signal

import sis
from client.demo import task, trainer, worker


@dataclasses.dataclass(frozen=True)
class Arm:
    name: str
    # Part of the run id.
    slug: str
    use_sis: bool


ARMS = (Arm("GRPO", "grpo", False), Arm("GRPO+SIS", "grpo-sis", True))

# Spawned, because gRPC does not survive a fork.
_processes = multiprocessing.get_context("spawn")


def run_id(arm, seed):
    return f"addition-{arm.slug}-seed-{seed}"


def train_arms(address, settings, seed, checkpoint, folder, deadline, show):
    """Trains both arms from `checkpoint` with the same problems and random numbers, at the same
    time.

    Returns a list of trainer.Learned for each of ARMS, and calls show(these lists) whenever one has
    grown. checkpoint and folder are paths; deadline is on time.monotonic(). RuntimeError if a
    trainer fails.
    """
    learned = [[] for _ in ARMS]
    with sis.Client(address) as client, contextlib.ExitStack() as stack:
        progress = {}
        for arm in ARMS:
            run = client.create_run(
                run_id(arm, seed),
                seed=seed,
                vocabulary_size=task.VOCABULARY_SIZE,
                top_k=settings.top_k,
                task="hexadecimal addition",
                algorithm=arm.name,
                model="demo transformer",
            )
            for_trainer, for_worker = _processes.Pipe()
            received, sent = _processes.Pipe(duplex=False)
            stack.callback(received.close)
            _start(stack, worker.work, address, run.id, settings, seed, for_worker)
            _start(
                stack, trainer.train,
                address, run.id, arm.use_sis, settings, seed, checkpoint, folder, deadline, for_trainer, sent,
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
                    raise RuntimeError(f"the trainer of {ARMS[index].name} failed; see above") from None
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
