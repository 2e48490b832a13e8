"""Trains a language model with real engines, with and without SIS: two runs of the study on it.
tools/demo --llm builds and calls it, with sis_server on PATH."""

import argparse
import collections
import dataclasses
import pathlib
import sys

import numpy as np

import sis
from client.demo import report
from client.study.language_model.settings import Settings
from client.study.language_model.study import Trainings
from client.study.runs import design, program
from client.study.runs.make import make_missing
from client.study.runs.results import by_arm

_CELL = "bfloat16"
_ARMS = ("grpo", "grpo+sampled")


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

            result = trainings.make(run, _CELL, settings, server.address, show)
            measured = {
                name: np.reshape([update[name] for update in updates[run]], (settings.rollouts, -1))
                for name in ("accept_rate", "d", "d_sis", "residual_mass")
            }
            made = report.outcome(result["rollouts"]["reward"], measured)
            made.values["final_reward"] = result["final_reward"]
            return made

        make_missing(
            plan, results, make, lambda of: f"final reward {of.values['final_reward']:.3f}",
            progress, len(_ARMS), stop=trainings.stop,
        )  # fmt: skip
        metrics = report.counted(server.admin_address, design.plain(plan.runs[-1]))
    fields = dataclasses.asdict(settings)
    report.write(output, "language_model", fields, plan, by_arm(results), metrics)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--python", required=True, help="the interpreter with vLLM and TRL")
    parser.add_argument("--output", required=True, type=pathlib.Path, help="folder of report.html")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    return program.run(
        lambda progress: run(given.seed, Settings(), given.python, given.output, progress)
    )


if __name__ == "__main__":
    sys.exit(main())
