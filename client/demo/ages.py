"""Trains asynchronously without max_staleness, and with the one that the first training's diagnosis advises. tools/demo
--ages builds and calls it, with sis_server on PATH."""

import dataclasses
import functools
import sys

import sis
import sis.diagnose
from client.demo import progress, trainer, trainings

SEEDS = 6
SETTINGS = trainer.Settings(rollouts=200, prompts=17, updates=34, asynchronous=True, learning_rate=2e-3, bits=0)
# Name of an arm -> arm of the trainer, whether it has the advised max_staleness, and whether it drops older tokens.
ARMS = {
    "without SIS": ("grpo", False, False),
    "with SIS": ("sis", False, False),
    "with SIS, max_staleness": ("sis", True, False),
    "with SIS, max_staleness, older tokens dropped": ("sis", True, True),
}
_SETTING = (
    "As in tools/demo, but the trainer has the worker's exact weights, and each optimiser step uses a part of each of the "
    "last {updates} rollouts, so that tokens are 0 to {oldest} policy versions old. max_staleness is what sisctl diagnose "
    "advises after the training with SIS and without a limit, of the same seed. Where it advises none there is none."
)


def train_all(settings, seeds, address, shown):
    """Trains each arm with each seed; returns report.Found."""

    def train_seed(seed):
        start, made, advised = trainer.warmed_up(settings, seed), {}, None
        for name, (arm, limited, drops) in ARMS.items():
            changed = dataclasses.replace(settings, max_staleness=advised if limited else None, drops_stale=drops)
            run = f"{arm}-{seed}-{len(made)}"
            made[name] = pool.train(name, address, run, arm, seed, changed, start)
            if name == "with SIS":
                with sis.Client(address) as client:
                    advice = sis.diagnose.diagnose_run(client, run).ages
                advised = advice.max_staleness
                shown.say(f"Seed {seed}: {advice.text}")
        return made

    with trainings.Trainings(settings.rollouts * len(seeds) * len(ARMS), shown) as pool:
        found = pool.results({seed: functools.partial(train_seed, seed) for seed in seeds})
    return {name: {seed: found[seed][name] for seed in seeds} for name in ARMS}


def run(settings, first_seed, count, output, shown):
    """Writes the report into the folder `output`; returns report.Found."""
    setting = _SETTING.format(updates=settings.updates, oldest=settings.updates - 1)
    job = lambda address: train_all(settings, range(first_seed, first_seed + count), address, shown)
    return trainings.reported(job, "Old rollouts, without and with max_staleness", setting, output, shown)


if __name__ == "__main__":
    sys.exit(progress.main(__doc__, lambda given, shown: run(SETTINGS, given.seed, SEEDS, given.output, shown)))
