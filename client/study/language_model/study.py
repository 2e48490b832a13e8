"""Makes the runs of the design that the results lack: tools/study --language-model builds and calls
it, with sis_server on PATH."""

import argparse
import dataclasses
import functools
import json
import os
import pathlib
import subprocess
import sys
import threading
import time

import sis
from client.study.language_model import results
from client.study.language_model.settings import Settings
from client.study.runs import design, program
from client.study.runs.make import make_missing

_WORKSPACE = pathlib.Path(__file__).parents[3]


class Trainings:
    """Programs of this folder where the engines are, each with one core. Threads: any."""

    def __init__(self, python, folder):
        """python: its interpreter. folder: where weights and what programs print go."""
        folder.mkdir(parents=True, exist_ok=True)
        self._python = python
        self._folder = folder.resolve()
        paths = map(str, (pathlib.Path(sis.__file__).parents[1], _WORKSPACE))
        one_core = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        self._environment = {**os.environ, **one_core, "PYTHONPATH": os.pathsep.join(paths)}
        self._lock = threading.Lock()
        self._running = []
        self._stopped = False
        self._model = str(self._folder / "SmolLM2-135M-Instruct")
        if not os.path.exists(self._model):
            self._call("weights", self._model, name="weights", show=lambda line: None)

    def make(self, run, engine, settings, address, show=lambda update: None):
        """The result of one run, whose service is at `address`. Calls show of what is measured at
        each update as it comes. RuntimeError if it fails."""
        start = time.monotonic()
        messages = []

        def say(line):
            messages.append(json.loads(line))
            # The last one is the result.
            if "final_reward" not in messages[-1]:
                show(messages[-1])

        given = {
            "model": self._model, "engine_weights": engine, "arm": run.arm, "seed": run.seed,
            "settings": dataclasses.asdict(settings), "address": address,
            "run": design.plain(run),
        }  # fmt: skip
        self._call("training", json.dumps(given), name=design.plain(run), show=say)
        seconds = round(time.monotonic() - start)
        return {"sources": results.sources(), "seconds": seconds, **messages[-1]}

    def _call(self, name_of_program, argument, name, show):
        command = [self._python, "-P", "-m", f"client.study.language_model.{name_of_program}"]
        path = self._folder / f"{name}.log"
        with open(path, "w", encoding="utf-8") as log:
            with self._lock:
                if self._stopped:
                    raise RuntimeError("stopped")
                # A session of its own: Ctrl-C is for us.
                process = subprocess.Popen(
                    [*command, argument], env=self._environment, stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE, stderr=log, text=True, start_new_session=True,
                )  # fmt: skip
                self._running.append(process)
            with process:
                for line in process.stdout:
                    show(line)
        if process.returncode:
            raise RuntimeError(f"{name} failed; see {path}")

    def stop(self):
        with self._lock:
            self._stopped = True
            for process in self._running:
                process.terminate()


def describe(result):
    rewards = result["rollouts"]["reward"]
    return (
        f"rollouts {rewards[0]:.2f} to {rewards[-1]:.2f}, held out {result['final_reward']:.3f}, "
        f"accepted {result['rollouts']['accept_rate'][-1]:.0%}, {result['seconds'] / 60:.1f} min"
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--design", required=True, type=pathlib.Path)
    parser.add_argument("--results", required=True, type=pathlib.Path, help="goes on with them")
    parser.add_argument("--python", required=True, help="the interpreter with vLLM and TRL")
    parser.add_argument("--folder", required=True, type=pathlib.Path, help="for weights and logs")
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="runs at a time")
    given = parser.parse_args()

    def main_job(progress):
        plan = design.read(given.design)
        there = results.read(given.results)
        if any(result["sources"] != results.sources() for result in there.values()):
            raise ValueError(f"{given.results}: these runs are of other sources; move them away")
        trainings = Trainings(given.python, given.folder)

        def make(run):
            engine = plan.cells[run.cell].settings["engine"]
            return trainings.make(run, engine, Settings(), server.address)

        with sis.local_server() as server:
            make_missing(
                plan, there, make, describe, progress, given.threads,
                functools.partial(results.write, given.results), trainings.stop,
            )  # fmt: skip

    return program.run(main_job)


if __name__ == "__main__":
    sys.exit(main())
