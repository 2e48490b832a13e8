"""Trains a small transformer with and without SIS, through a server, and reports what was measured. tools/demo
builds and calls it, with sis_server on PATH."""

import functools
import sys

from client.demo import progress, trainer, trainings

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
    with trainings.Trainings(settings.rollouts * len(seeds) * len(trainer.ARMS), shown) as pool:
        starts = pool.results({seed: functools.partial(trainer.warmed_up, settings, seed) for seed in seeds})
        found = pool.results(
            {
                (name, seed): functools.partial(
                    pool.train, name, address, f"{arm}-{seed}", arm, seed, settings, starts[seed]
                )
                for seed in seeds
                for arm, name in trainer.ARMS.items()
            }
        )
    return {name: {seed: found[name, seed] for seed in seeds} for name in trainer.ARMS.values()}


def run(settings, first_seed, output, shown):
    """Writes the report into the folder `output`; returns report.Found."""
    seeds = range(first_seed, first_seed + SEEDS)
    title = "GRPO with and without SIS, on rollouts of rounded weights"
    job = lambda address: train_all(settings, seeds, address, shown)
    return trainings.reported(job, title, _SETTING.format(**vars(settings)), output, shown)


if __name__ == "__main__":
    sys.exit(progress.main(__doc__, lambda given, shown: run(trainer.Settings(), given.seed, given.output, shown)))
