"""Trains a language model with real engines, with and without SIS: two short trainings of sums, as in
the study's first design. tools/demo --llm builds and calls it, with sis_server on PATH."""

import argparse
import collections
import dataclasses
import pathlib
import sys

import numpy as np

import sis
from client.demo import report
from client.study.language_model.settings import Settings
from client.study.language_model.study import Trainings, describe
from client.study.runs import design, program
from client.study.runs.make import make_missing
from client.study.runs.results import by_arm

_CELL = "bfloat16"
_ARMS = ("grpo", "grpo+sampled")
# The study's first design with half as many problems in a rollout, and float32, which is faster where
# processors have no bfloat16. With loading it takes a little more than these seconds.
SETTINGS = Settings(
    operation="+", smallest=1, largest=20, engine="vllm", rollouts=16, prompts=8, bf16=False, evaluated=16, seconds=660
)
_MEASURED = ("accept_rate", "d", "d_sis", "residual_mass")


def run(seed, settings, python, output, progress):
    """Writes the report into the folder `output`, with logs and weights. RuntimeError if a run
    fails."""
    plan = design.Design(seed, cells={_CELL: design.Cell(_CELL, {}, dict.fromkeys(_ARMS, 1))})
    updates = collections.defaultdict(list)
    results = {}
    with sis.local_server() as server:
        report.say_server(server, progress)
        trainings = Trainings(python, output)

        def make(run):
            def show(update):
                updates[run].append(update)
                progress.show(
                    "Training", len(updates[run]) / (settings.rollouts * settings.updates),
                    f"{run}: accepted {update['accept_rate']:.0%}, D {update['d']:.3f}, "
                    f"D_SIS {update['d_sis']:.3f}",
                )  # fmt: skip

            return trainings.make(run, {}, settings, server.address, show)

        make_missing(
            plan, results, make, describe, progress, len(_ARMS), stop=trainings.stop
        )
        metrics = report.counted(server.admin_address, design.plain(plan.runs[-1]))
    # Those that all arms came to.
    rollouts = min(len(result["rollouts"]["reward"]) for result in results.values())
    outcomes = {}
    for of, result in results.items():
        measured = {
            name: np.reshape([update[name] for update in updates[of]], (-1, settings.updates))
            for name in _MEASURED
        }
        outcomes[of] = report.outcome(
            result["rollouts"]["reward"][:rollouts],
            {name: values[:rollouts] for name, values in measured.items()},
        )
    fields = {**dataclasses.asdict(settings), "rollouts": rollouts}
    report.write(output, "language_model", fields, plan, by_arm(outcomes), metrics)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--python", required=True, help="the interpreter with vLLM and TRL")
    parser.add_argument("--output", required=True, type=pathlib.Path, help="folder of report.html")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    return program.run(
        lambda progress: run(given.seed, SETTINGS, given.python, given.output, progress)
    )


if __name__ == "__main__":
    sys.exit(main())
