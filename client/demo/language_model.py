"""Trains a language model with real engines, with and without SIS: two short trainings of sums. tools/demo --llm
builds and calls it, with sis_server on PATH."""

import concurrent.futures
import contextlib
import dataclasses
import json
import os
import pathlib
import subprocess
import sys
import threading

import sis
from client.demo import progress, report
from client.demo.llm.settings import ARMS, Settings

_WORKSPACE = pathlib.Path(__file__).parents[2]
# With loading it takes a little more than these seconds.
SETTINGS = Settings(seconds=660)
_SETTING = (
    "SmolLM2-135M-Instruct learned to add two numbers up to {largest}, with the sum as the whole line, by TRL's GRPO in "
    "float32, on rollouts that vLLM made in bfloat16, with the weights of one rollout before. Once with plain "
    "importance ratios and once with SIS, from the same weights, on the same problems: {rollouts} rollouts of {prompts} "
    "problems with {group} responses, each used for {updates} updates in one pass. vLLM's {top_k} most probable tokens "
    "were recorded at every position. This is one seed, which can't tell the arms from chance: docs/results.md has more."
)


class Programs:
    """Programs of client/demo/llm, each in a process of one core with the engines. Threads: any."""

    def __init__(self, python, folder):
        """python: an interpreter that has the engines. folder: of their logs."""
        folder.mkdir(parents=True, exist_ok=True)
        self._python, self._folder = python, folder
        paths = map(str, (pathlib.Path(sis.__file__).parents[1], _WORKSPACE))
        one_core = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        self._environment = {**os.environ, **one_core, "PYTHONPATH": os.pathsep.join(paths)}
        self._lock = threading.Lock()
        self._begun = []
        self._stopped = False

    def lines(self, name, program, argument):
        """Yields the lines that the program prints. RuntimeError if it fails; its log is NAME.log."""
        log = self._folder / f"{name}.log"
        with self._lock, open(log, "w", encoding="utf-8") as errors:
            if self._stopped:
                raise RuntimeError("stopped")
            # A session of its own, because Ctrl-C is for this process.
            process = subprocess.Popen(
                [self._python, "-P", "-m", f"client.demo.llm.{program}", argument], env=self._environment,
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, text=True, start_new_session=True,
            )  # fmt: skip
            self._begun.append(process)
        with process.stdout:
            yield from process.stdout
        if process.wait():
            raise RuntimeError(f"{name} failed; see {log}")

    def stop(self):
        with self._lock:
            self._stopped = True
        for process in self._begun:
            process.terminate()
            process.wait()


def run(seed, settings, python, output, shown):
    """Writes the report into the folder `output`, with logs and weights. RuntimeError if a training fails."""
    programs = Programs(python, output)
    model = output.resolve() / "SmolLM2-135M-Instruct"
    done = dict.fromkeys(ARMS, 0)

    def train(arm, address):
        given = {
            "model": str(model), "arm": arm, "seed": seed, "settings": dataclasses.asdict(settings),
            "address": address, "run": f"{arm}-{seed}",
        }  # fmt: skip
        updates = []
        for line in programs.lines(f"{arm}-{seed}", "training", json.dumps(given)):
            update = json.loads(line)
            updates.append(update)
            done[arm] = len(updates)
            shown.show(
                "Training", sum(done.values()) / (len(ARMS) * settings.rollouts * settings.updates),
                f"{ARMS[arm]}, update {len(updates)}: accepted {update['accept_rate']:.0%}, D {update['d']:.3f}, "
                f"D_SIS {update['d_sis']:.3f}",
            )  # fmt: skip
        return updates

    with contextlib.ExitStack() as stack:
        stack.callback(programs.stop)
        if not model.exists():
            list(programs.lines("weights", "weights", str(model)))
        server = stack.enter_context(sis.local_server())
        report.say_server(server, shown)
        with concurrent.futures.ThreadPoolExecutor(len(ARMS)) as executor:
            made = {arm: executor.submit(train, arm, server.address) for arm in ARMS}
            concurrent.futures.wait(made.values(), return_when=concurrent.futures.FIRST_EXCEPTION)
            if any(each.done() and each.exception() for each in made.values()):
                programs.stop()
            failures = [each.exception() for each in made.values() if each.exception()]
            if failures:
                raise failures[0]
    # Rollouts that both arms finished.
    rollouts = min(len(each.result()) for each in made.values()) // settings.updates
    found = {ARMS[arm]: {seed: _curves(each.result(), rollouts, settings.updates)} for arm, each in made.items()}
    setting = _SETTING.format(**{**dataclasses.asdict(settings), "rollouts": rollouts})
    report.write(output, "GRPO with and without SIS on a language model", setting, found)


def _curves(updates, rollouts, per_rollout):
    def means(name):
        values = [update[name] for update in updates[: rollouts * per_rollout] if name in update]
        each = len(values) // rollouts
        return [sum(values[first : first + each]) / each for first in range(0, len(values), each)]

    return report.Curves(means("reward"), means("accept_rate"), means("d"), means("d_sis"))


if __name__ == "__main__":
    job = lambda given, shown: run(given.seed, SETTINGS, given.python, given.output, shown)
    sys.exit(progress.main(__doc__, job, python="the interpreter with vLLM and TRL"))
