"""Trains a small transformer with and without SIS, through a server, and reports what was measured. tools/demo
builds and calls it, with sis_server on PATH."""

import argparse
import functools
import pathlib
import sys

import torch

import sis
from client.demo import progress, report, trainer
from client.demo.trainings import Trainings

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
    with Trainings(settings.rollouts * len(seeds) * len(trainer.ARMS), shown) as trainings:
        starts = trainings.results({seed: functools.partial(trainer.warmed_up, settings, seed) for seed in seeds})
        found = trainings.results(
            {
                (name, seed): functools.partial(
                    trainings.train, name, address, f"{arm}-{seed}", arm, seed, settings, starts[seed]
                )
                for seed in seeds
                for arm, name in trainer.ARMS.items()
            }
        )
    return {name: {seed: found[name, seed] for seed in seeds} for name in trainer.ARMS.values()}


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
