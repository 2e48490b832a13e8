"""Makes the runs of a design that its results lack."""

import concurrent.futures
import time
from typing import Any, Callable, Dict, Optional

from client.study.runs.design import Design, Run
from client.study.runs.program import Progress


def make_missing(
    design: Design,
    results: Dict[Run, Any],
    make: Callable[[Run], Any],
    describe: Callable[[Any], str],
    progress: Progress,
    parallel: int,
    write: Callable[[Dict[Run, Any]], None] = lambda results: None,
    stop: Callable[[], None] = lambda: None,
    seconds: Optional[float] = None,
) -> None:
    """Adds make(run) to the results, `parallel` at a time; writes all of them whenever there is one
    more.

    describe(result) is what is said of it. Where a run fails, or Ctrl-C comes, or after so many
    seconds, no other run is begun, and stop() is called, which may end those that are under way:
    they are left out. ValueError if there are results of other runs.
    """
    runs = design.runs
    for run in results.keys() - set(runs):
        raise ValueError(f'"{run}" is no run of this design')
    wanted = [run for run in runs if run not in results]
    progress.say(f"{len(wanted)} of {len(runs)} runs are to be made")
    start = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(parallel) as executor:
        futures = {executor.submit(make, run): run for run in wanted}
        pending = set(futures)
        try:
            while pending:
                until_end = seconds and max(0, start + seconds - time.monotonic())
                done, pending = concurrent.futures.wait(
                    pending, until_end, return_when=concurrent.futures.FIRST_COMPLETED
                )
                if not done:
                    progress.say(f"The time is up: {len(results)} runs are made")
                    break
                for future in done:
                    results[futures[future]] = future.result()
                write({run: results[run] for run in runs if run in results})
                run = futures[done.pop()]
                elapsed = time.monotonic() - start
                left = elapsed / (len(wanted) - len(pending)) * len(pending)
                if seconds is not None:
                    left = max(0, min(left, seconds - elapsed))
                progress.show(
                    f"{len(results)} runs", elapsed / (elapsed + left),
                    f"{run}: {describe(results[run])}; {left / 60:.0f} min left",
                )  # fmt: skip
        finally:
            executor.shutdown(wait=False, cancel_futures=True)
            stop()
