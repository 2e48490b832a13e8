"""Trainings that run side by side."""

import concurrent.futures
import itertools
import os
import threading

import torch

import sis
from client.demo import report, trainer


def reported(train_all, title, setting, output, shown):
    """Calls train_all(address of a server), writes the report of its report.Found into the folder `output`, and returns
    it."""
    # Trainings run side by side instead.
    torch.set_num_threads(1)
    with sis.local_server() as server:
        report.say_server(server, shown)
        found = train_all(server.address)
    report.write(output, title, setting, found)
    return found


class Trainings(concurrent.futures.ThreadPoolExecutor):
    """Threads of one training each. When the block is left, by an error or an interrupt too, all trainings end."""

    def __init__(self, rollouts, shown):
        """rollouts: of all trainings together; shown: progress.Progress."""
        super().__init__(os.cpu_count())
        self._rollouts, self._shown = rollouts, shown
        self._stopped, self._done = threading.Event(), itertools.count(1)

    def __exit__(self, *raised):
        self._stopped.set()
        self.shutdown(cancel_futures=True)

    def results(self, jobs):
        """Calls functions, given by any key, and returns their results by key. Raises the first error."""
        made = {key: self.submit(job) for key, job in jobs.items()}
        done, _ = concurrent.futures.wait(made.values(), return_when=concurrent.futures.FIRST_EXCEPTION)
        for job in done:
            job.result()
        return {key: job.result() for key, job in made.items()}

    def train(self, name, address, run_id, arm, seed, settings, start):
        """Trains as trainer.train does, and shows how far all trainings are; returns report.Curves."""

        def show(rollout):
            if self._stopped.is_set():
                raise RuntimeError("stopped")
            totals = sum(rollout.updates, sis.Totals())
            self._shown.show(
                "Training", next(self._done) / self._rollouts,
                f"{name}, seed {seed}, rollout {rollout.number + 1}: reward {rollout.reward:.2f}, accepted "
                f"{totals.accept_rate:.0%}, D {totals.mean_d:.3f}, D_SIS {totals.mean_d_sis:.3f}",
            )  # fmt: skip

        rollouts = trainer.train(address, run_id, arm, seed, settings, start, show)
        totals = [sum(rollout.updates, sis.Totals()) for rollout in rollouts]
        return report.Curves(
            [rollout.reward for rollout in rollouts], [each.accept_rate for each in totals],
            [each.mean_d for each in totals], [each.mean_d_sis for each in totals],
        )  # fmt: skip
