"""Makes the runs of cells.txt that the results lack: tools/study builds and calls it."""

import argparse
import concurrent.futures
import functools
import os
import pathlib
import sys
import threading

from client.study import miniature
from client.study.runs import design, program, results
from client.study.runs.make import make_missing


class Runs:
    """Of a design. Threads: any."""

    def __init__(self, plan):
        """ValueError if a cell has a start, a setting or an arm that there is not."""
        self._plan = plan
        self._lock = threading.Lock()
        # The models that runs start from, each warmed up by whichever thread needs it first.
        self._starts = {}
        for run in plan.runs:
            try:
                miniature.check(*self.settings(run))
            except (KeyError, ValueError) as error:
                raise ValueError(f"cell {run.cell}: {error}") from None

    def settings(self, run):
        """Those of its start, and its own."""
        cell = {**self._plan.cells[run.cell].settings, "arm": run.arm}
        return self._plan.starts[cell.pop("start")], cell

    def start(self, run):
        """The parameters that it starts from."""
        key = self._plan.cells[run.cell].settings["start"], run.seed
        with self._lock:
            first = key not in self._starts
            warmed_up = self._starts.setdefault(key, concurrent.futures.Future())
        if first:
            warmed_up.set_result(miniature.warm_up(self.settings(run)[0], run.seed))
        return warmed_up.result()

    def make(self, run):
        """A results.Outcome."""
        return miniature.train(*self.settings(run), run.seed, self.start(run))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--design", required=True, type=pathlib.Path)
    parser.add_argument("--results", required=True, type=pathlib.Path, help="goes on with them")
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="runs at a time")
    given = parser.parse_args()

    def main_job(progress):
        plan = design.read(given.design)
        make_missing(
            plan, results.read(given.results), Runs(plan).make,
            lambda outcome: f"final reward {outcome.values['final_reward']:.3f}",
            progress, given.threads, functools.partial(results.write, given.results),
        )  # fmt: skip

    return program.run(main_job)


if __name__ == "__main__":
    sys.exit(main())
