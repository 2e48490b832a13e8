"""Makes the runs of the design that the results lack: tools/study --language-model builds and calls
it, with sis_server on PATH."""

import argparse
import contextlib
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
        # Processes that were begun, in order, and those that wait for a run.
        self._begun = []
        self._idle = []
        self._stopped = False
        self._model = str(self._folder / "SmolLM2-135M-Instruct")
        if not os.path.exists(self._model):
            process = self._begin("weights", self._model, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
            if process.wait():
                raise RuntimeError(f"weights failed; see {self._log(process)}")

    def make(self, run, engine, settings, address, show=lambda update: None):
        """The result of one run, whose service is at `address`. Calls show of what is measured at
        each update as it comes. RuntimeError if it fails."""
        start = time.monotonic()
        given = {
            "model": self._model, "generates": engine, "arm": run.arm, "seed": run.seed,
            "settings": dataclasses.asdict(settings), "address": address,
            "run": design.plain(run),
        }  # fmt: skip
        with self._lock:
            process = self._idle.pop() if self._idle else None
        process = process or self._begin("training")
        # One that has ended is found out below.
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(json.dumps(given) + "\n")
            process.stdin.flush()
        for line in process.stdout:
            message = json.loads(line)
            if "final_reward" in message:
                with self._lock:
                    self._idle.append(process)
                return {"seconds": round(time.monotonic() - start), **message}
            show(message)
        process.stdout.close()
        raise RuntimeError(f"{design.plain(run)} failed; see {self._log(process)}")

    def _begin(self, name_of_program, *arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE):
        command = [self._python, "-P", "-m", f"client.study.language_model.{name_of_program}"]
        with self._lock:
            if self._stopped:
                raise RuntimeError("stopped")
            path = self._folder / f"{len(self._begun)}.log"
            with open(path, "w", encoding="utf-8") as log:
                # A session of its own: Ctrl-C is for us.
                process = subprocess.Popen(
                    [*command, *arguments], env=self._environment, stdin=stdin, stdout=stdout,
                    stderr=log, text=True, start_new_session=True,
                )  # fmt: skip
            self._begun.append(process)
            return process

    def _log(self, process):
        return self._folder / f"{self._begun.index(process)}.log"

    def stop(self):
        with self._lock:
            self._stopped = True
            for process in self._begun:
                process.terminate()
            for process in self._begun:
                process.wait()
                if process.stdin is not None:
                    with contextlib.suppress(BrokenPipeError):
                        process.stdin.close()
            for process in self._idle:
                process.stdout.close()
            self._idle.clear()


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
    parser.add_argument("--python", required=True, help="the interpreter with TRL")
    parser.add_argument("--folder", required=True, type=pathlib.Path, help="for weights and logs")
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="runs at a time")
    given = parser.parse_args()

    def main_job(progress):
        plan = design.read(given.design)
        sources = results.sources(given.design)
        there = results.read(given.results)
        if any(result["sources"] != sources for result in there.values()):
            raise ValueError(f"{given.results}: these runs are of other sources; move them away")
        trainings = Trainings(given.python, given.folder)

        def make(run):
            cell = plan.cells[run.cell].settings
            engine = {"weights": cell["engine"], "lag": int(cell.get("lag", 1))}
            made = trainings.make(run, engine, Settings.of(plan.settings), server.address)
            return {"sources": sources, **made}

        with sis.local_server() as server:
            make_missing(
                plan, there, make, describe, progress, given.threads,
                functools.partial(results.write, given.results), trainings.stop,
            )  # fmt: skip

    return program.run(main_job)


if __name__ == "__main__":
    sys.exit(main())
