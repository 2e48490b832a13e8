"""Makes the runs of the design that the results lack: tools/study --language-model builds and calls it."""

import argparse
import concurrent.futures
import dataclasses
import json
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time

import sis
from client.study.language_model import results, schedule
from client.study.language_model.settings import Settings
from client.study.report import design

_WORKSPACE = pathlib.Path(__file__).parents[3]
_ENDING_SECONDS = 20
_ENDINGS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Stopped(Exception):
    """Runs are ended before their time."""


class Processes:
    """Programs of this folder in the environment of the engines, each with one core."""

    def __init__(self, python, server, folder):
        """python: its interpreter. folder: where weights and what programs print go."""
        self.folder = folder
        self._python = python
        paths = [pathlib.Path(sis.__file__).parents[1], _WORKSPACE]
        self._environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(map(str, paths)),
            "PATH": f"{server.resolve().parent}{os.pathsep}{os.environ['PATH']}",
            "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
        }
        self._lock = threading.Lock()
        self._running = set()
        self._stopped = False

    def call(self, program, *arguments, log, pass_fds=()):
        """Runs it to its end. RuntimeError if it fails."""
        path = self.folder / f"{log}.log"
        with open(path, "w", encoding="utf-8") as file:
            with self._lock:
                if self._stopped:
                    raise Stopped
                # A group of its own, with the server that it starts: it is ended as a whole, and not by Ctrl-C.
                process = subprocess.Popen(
                    [self._python, "-P", "-m", f"client.study.language_model.{program}", *arguments],
                    env=self._environment, pass_fds=pass_fds, stdout=file, stderr=file, stdin=subprocess.DEVNULL,
                    start_new_session=True,
                )  # fmt: skip
                self._running.add(process)
        try:
            status = process.wait()
        finally:
            with self._lock:
                self._running.discard(process)
        if self._stopped:
            raise Stopped
        if status:
            raise RuntimeError(f"{log} failed; see {path}")

    def stop(self):
        with self._lock:
            self._stopped = True
            for process in self._running:
                os.killpg(process.pid, signal.SIGTERM)
            running = list(self._running)
        for process in running:
            try:
                process.wait(_ENDING_SECONDS)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)


def make(run, engine, settings, model, processes):
    """The result of one run."""
    reading, writing = os.pipe()
    with open(reading, encoding="utf-8") as file:
        try:
            text = json.dumps(dataclasses.asdict(settings))
            arguments = [str(model), engine, run.arm, str(run.seed), text, str(writing)]
            processes.call("training", *arguments, log=f"{run.cell}_{run.arm}_{run.seed}", pass_fds=[writing])
        finally:
            os.close(writing)
        # Some thousand bytes, which the pipe has kept.
        return json.load(file)


class Progress:
    """A line per finished run, and how long the others will take."""

    def __init__(self, before, count, parallel):
        self._done = before
        self._count = count
        self._parallel = parallel
        self._minutes = []

    def finished(self, run, result):
        self._done += 1
        self._minutes.append(result["seconds"] / 60)
        left = (self._count - self._done) * sum(self._minutes) / len(self._minutes) / self._parallel
        rewards = result["rollouts"]["reward"]
        print(
            f"[{self._done} of {self._count}] {run}: rollouts {rewards[0]:.2f} to {rewards[-1]:.2f}, held out "
            f"{result['final_reward']:.3f}, accepted {result['rollouts']['accept_rate'][-1]:.0%}, "
            f"{self._minutes[-1]:.1f} min; about {left:.0f} min left",
            flush=True,
        )


def make_all(plan, there, path, settings, processes, parallel):
    """Makes what is missing, and adds every run to the results as it is finished."""
    model = processes.folder.resolve() / "SmolLM2-135M-Instruct"
    if not model.exists():
        processes.call("weights", str(model), log="weights")
    wanted = schedule.missing(plan, there)
    progress = Progress(len(there), len(there) + len(wanted), parallel)
    sources = schedule.sources()
    lock = threading.Lock()

    def one(run):
        start = time.monotonic()
        result = make(run, plan.cells[run.cell].settings["engine"], settings, model, processes)
        with lock:
            there[run] = {"sources": sources, "seconds": round(time.monotonic() - start), **result}
            results.write(path, there)
            progress.finished(run, there[run])

    with concurrent.futures.ThreadPoolExecutor(parallel) as executor:
        made = [executor.submit(one, run) for run in wanted]
        try:
            for future in concurrent.futures.as_completed(made):
                future.result()
        except BaseException:
            executor.shutdown(wait=False, cancel_futures=True)
            processes.stop()
            raise


def _interrupt(*_):
    # Once: a shell may tell of it too.
    for ending in _ENDINGS:
        signal.signal(ending, signal.SIG_IGN)
    raise KeyboardInterrupt


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--design", required=True, type=pathlib.Path)
    parser.add_argument("--server", required=True, type=pathlib.Path, help="path of the sis_server binary")
    parser.add_argument("--python", required=True, help="the interpreter with vLLM and TRL")
    parser.add_argument("--results", required=True, type=pathlib.Path, help="runs that are there are not repeated")
    parser.add_argument("--folder", required=True, type=pathlib.Path, help="for weights and logs")
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="runs at a time")
    arguments = parser.parse_args()
    for ending in _ENDINGS:
        signal.signal(ending, _interrupt)
    arguments.folder.mkdir(parents=True, exist_ok=True)
    plan = design.read(arguments.design)
    try:
        there = results.read(arguments.results)
        if any(result["sources"] != schedule.sources() for result in there.values()):
            raise ValueError(f"{arguments.results}: these runs are of other sources; move them away")
        processes = Processes(arguments.python, arguments.server, arguments.folder)
        start = time.monotonic()
        make_all(plan, there, arguments.results, Settings(), processes, arguments.threads)
        print(f"All runs are there, after {(time.monotonic() - start) / 60:.0f} min")
    except KeyboardInterrupt:
        print("Interrupted; finished runs are kept.")
        return 130
    except (RuntimeError, ValueError) as error:
        print(f"study: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
