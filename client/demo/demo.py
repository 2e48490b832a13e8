"""Runs the service's main job for real and reports what it measured: tools/demo builds and calls
it, with sis_server on PATH."""

import argparse
import os
import pathlib
import sys
import threading
import time

import numpy as np

import sis
from client.demo import report, trainer
from client.study import miniature
from client.study.runs import design, program
from client.study.runs.make import make_missing
from client.study.runs.results import by_arm
from client.study.study import Runs

CELLS = pathlib.Path(__file__).with_name("cells.txt")
# From the start on: training stops then.
_SECONDS = 270
# As sis.Totals call them.
_MEASURED = {
    "accept_rate": "accept_rate",
    "d": "mean_d",
    "d_sis": "mean_d_sis",
    "residual_mass": "mean_residual_mass",
}


def outcome(learned):
    """Of one run: a results.Outcome."""
    updates = {
        name: [[getattr(totals, of) for totals in item.updates] for item in learned]
        for name, of in _MEASURED.items()
    }
    by_top_k = {
        name: np.mean(
            [[getattr(point, name) / point.positions for point in of.by_top_k] for of in learned], 0
        )
        for name in ("expected_acceptance", "residual_mass")
    }
    return report.outcome([item.reward for item in learned], updates, **by_top_k)


def train_all(runs, plan, address, seconds, progress):
    """Trains all arms for as many seeds as there is time for: the outcomes, by arm. RuntimeError if
    the time is up before."""
    start = time.monotonic()
    stopped = threading.Event()

    def make(run):
        def show(last):
            if stopped.is_set():
                raise RuntimeError("stopped")
            totals = sum(last.updates, sis.Totals())
            progress.show(
                "Training", min(1, (time.monotonic() - start) / seconds),
                f"{run}, rollout {last.rollout + 1}: reward {last.reward:.2f}, accepted "
                f"{totals.accept_rate:.0%}, D {totals.mean_d:.3f}, D_SIS {totals.mean_d_sis:.3f}",
            )  # fmt: skip

        of_run = *runs.settings(run), run.seed, runs.start(run)
        return outcome(trainer.train(address, design.plain(run), *of_run, show))

    results = {}
    make_missing(
        plan, results, make, lambda of: f"mean reward {of.values['mean_reward']:.3f}", progress,
        os.cpu_count(), stop=stopped.set, seconds=seconds,
    )  # fmt: skip
    finished = plan.finished(results)
    if not finished:
        raise RuntimeError("the time was up before a seed was done: this machine is too slow")
    return by_arm(finished)


def run(plan, output, seconds, progress):
    """Writes the report into the folder `output`; returns the outcomes, by arm."""
    runs = Runs(plan)
    shown = design.Run("int5", "grpo+sampled", plan.first_seed)
    with sis.local_server() as server:
        report.say_server(server, progress)
        found = train_all(runs, plan, server.address, seconds, progress)
        metrics = report.counted(server.admin_address, design.plain(shown))
    start, cell = runs.settings(shown)
    fields = {**start, **miniature.check(start, cell)._asdict()}
    beside = {("int5_recomputed", "grpo"): ("int5", "grpo_recomputed")}
    report.write(output, "demo", fields, plan, found, metrics, beside)
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", required=True, type=pathlib.Path, help="folder of report.html")
    parser.add_argument("--seed", type=int, default=1, help="the first seed")
    given = parser.parse_args()

    def main_job(progress):
        plan = design.read(CELLS)
        plan.first_seed = given.seed
        run(plan, given.output, _SECONDS, progress)

    return program.run(main_job)


if __name__ == "__main__":
    sys.exit(main())
