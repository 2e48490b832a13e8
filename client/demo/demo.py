"""Trains a small transformer with and without SIS, through a server, and reports what was measured. tools/demo
builds and calls it, with sis_server on PATH."""

import argparse
import concurrent.futures
import os
import pathlib
import sys
import threading

import torch

import sis
from client.demo import progress, report, trainer

SEEDS = 2
_SETTING = (
    "A small transformer learned to add two numbers of {digits} digit by GRPO: {rollouts} rollouts of {prompts} "
    "problems with {responses} responses, each used for {updates} optimiser steps. The rollout worker computes with "
    "the trainer's weights, rounded to {bits} bits. Its {top_k} most probable tokens were recorded at every position. "
    "Per seed all arms start from the same weights, which were trained with right answers until {accuracy:.0%} of "
    "their own answers were right. Two seeds can't tell the arms from chance: docs/results.md has more."
)


def train_all(settings, seeds, address, shown):
    """Trains each arm with each seed; returns report.Found."""
    stopped = threading.Event()
    done = {}

    def make(seed, arm, start):
        def show(rollout):
            if stopped.is_set():
                raise RuntimeError("stopped")
            totals = sum(rollout.updates, sis.Totals())
            done[seed, arm] = rollout.number + 1
            shown.show(
                "Training", sum(done.values()) / (settings.rollouts * len(seeds) * len(trainer.ARMS)),
                f"{trainer.ARMS[arm]}, seed {seed}, rollout {rollout.number + 1}: reward {rollout.reward:.2f}, accepted "
                f"{totals.accept_rate:.0%}, D {totals.mean_d:.3f}, D_SIS {totals.mean_d_sis:.3f}",
            )  # fmt: skip

        return trainer.train(address, f"{arm}-{seed}", arm, seed, settings, start, show)

    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as executor:
        try:
            starts = dict(zip(seeds, executor.map(lambda seed: trainer.warmed_up(settings, seed), seeds)))
            made = {
                (arm, seed): executor.submit(make, seed, arm, starts[seed]) for seed in seeds for arm in trainer.ARMS
            }
            concurrent.futures.wait(made.values(), return_when=concurrent.futures.FIRST_EXCEPTION)
            return {
                name: {seed: curves(made[arm, seed].result()) for seed in seeds} for arm, name in trainer.ARMS.items()
            }
        finally:
            stopped.set()


def curves(rollouts):
    totals = [sum(rollout.updates, sis.Totals()) for rollout in rollouts]
    return report.Curves(
        [rollout.reward for rollout in rollouts], [each.accept_rate for each in totals],
        [each.mean_d for each in totals], [each.mean_d_sis for each in totals],
    )  # fmt: skip


def run(settings, first_seed, output, shown):
    """Writes the report into the folder `output`; returns report.Found."""
    seeds = range(first_seed, first_seed + SEEDS)
    # Trainings run side by side instead.
    torch.set_num_threads(1)
    with sis.local_server() as server:
        report.say_server(server, shown)
        found = train_all(settings, seeds, server.address, shown)
    title = "GRPO with and without SIS, on rollouts of rounded weights"
    report.write(output, title, _SETTING.format(**vars(settings)), found)
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", required=True, type=pathlib.Path, help="folder of report.html")
    parser.add_argument("--seed", type=int, default=1, help="the first seed")
    given = parser.parse_args()
    return progress.run(lambda shown: run(trainer.Settings(), given.seed, given.output, shown))


if __name__ == "__main__":
    sys.exit(main())
