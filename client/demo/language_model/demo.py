"""Trains a language model with real engines, with and without SIS, and reports what it measured.
tools/demo --llm builds and calls it."""

import argparse
import contextlib
import dataclasses
import json
import os
import pathlib
import selectors
import subprocess
import sys
import time

import sis
from client.demo import program
from client.demo.language_model import report
from client.demo.language_model.arms import ARMS
from client.demo.language_model.results import Results, table, verdict
from client.demo.language_model.settings import Settings
from client.demo.server import Server

_WORKSPACE = pathlib.Path(__file__).parents[3]


def run(settings, server_binary, python, output, progress):
    """Trains both arms at the same time; returns results.Results and writes the report.

    python: the interpreter of the environment with vLLM and TRL. output: the folder of report.html,
    of what the arms print, and of the model's weights. RuntimeError if an arm fails.
    """
    start = time.monotonic()
    os.makedirs(output, exist_ok=True)
    paths = [str(pathlib.Path(sis.__file__).parents[1]), str(_WORKSPACE)]
    # One core per arm.
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    model = os.path.abspath(os.path.join(output, "SmolLM2-135M-Instruct"))
    if not os.path.exists(model):
        progress.say("Unpacking SmolLM2-135M-Instruct")
        _checked(output, "weights", _command(python, "client.study.language_model.weights", model), environment)
    with Server(server_binary) as server:
        progress.say(f"Server ready: gRPC {server.address}, page http://{server.admin_address}/")
        progress.say("Starting vLLM and TRL, once per arm")
        given = json.dumps({**dataclasses.asdict(settings), "address": server.address})
        updates = _train(settings, output, environment, _command(python, "client.demo.language_model.arm", model), start, given, progress)
        counted = server.counted(ARMS[1].slug)
    results = Results(settings, updates, counted)
    if results.rollouts == 0:
        raise RuntimeError("the time was up before a rollout was used up: this machine is too slow or too busy")
    report.write(results, os.path.join(output, "report.html"))
    return results


def _train(settings, output, environment, command, start, given, progress):
    """What each of ARMS says of its updates."""
    updates = [[] for _ in ARMS]
    with contextlib.ExitStack() as stack:
        selector = stack.enter_context(selectors.DefaultSelector())
        processes = []
        for index, arm in enumerate(ARMS):
            reading, writing = os.pipe()
            log = stack.enter_context(open(os.path.join(output, f"{arm.slug}.log"), "w", encoding="utf-8"))
            process = subprocess.Popen(
                [*command, arm.slug, str(writing), str(start + settings.seconds), given],
                env=environment, pass_fds=[writing], stdout=log, stderr=log, stdin=subprocess.DEVNULL,
            )  # fmt: skip
            processes.append(process)
            stack.callback(process.wait)
            stack.callback(process.terminate)
            os.close(writing)
            selector.register(stack.enter_context(open(reading, encoding="utf-8")), selectors.EVENT_READ, index)
        while selector.get_map():
            for key, _ in selector.select():
                line = key.fileobj.readline()
                if line:
                    updates[key.data].append(json.loads(line))
                    _show(progress, settings, start, updates)
                    continue
                selector.unregister(key.fileobj)
                if processes[key.data].wait() != 0:
                    slug = ARMS[key.data].slug
                    raise RuntimeError(f"the trainer of {ARMS[key.data].name} failed; see {output}/{slug}.log")
    return updates


def _show(progress, settings, start, updates):
    texts = []
    for arm, made in zip(ARMS, updates):
        if made:
            last = made[-1]
            rollout = made[(len(made) - 1) // settings.updates * settings.updates]
            texts.append(
                f"{arm.name} {last['step']}: {last['accept_rate']:.0%} D {last['d']:.3f} D_SIS {last['d_sis']:.3f} "
                f"R {rollout['reward']:.2f}"
            )
    progress.show("Training", (time.monotonic() - start) / settings.seconds, " | ".join(texts))


def _command(python, module, *arguments):
    """Of a program whose folder is not searched for modules itself."""
    return [python, "-P", "-m", module, *arguments]


def _checked(output, name, command, environment):
    log = os.path.join(output, f"{name}.log")
    with open(log, "w", encoding="utf-8") as file:
        if subprocess.run(command, env=environment, stdout=file, stderr=file, check=False).returncode:
            raise RuntimeError(f"{name} failed; see {log}")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--server", required=True, help="path of the sis_server binary")
    parser.add_argument("--python", required=True, help="the interpreter with vLLM and TRL")
    parser.add_argument("--output", required=True, help="folder for report.html")
    parser.add_argument("--seed", type=int, default=Settings.seed)
    arguments = parser.parse_args()

    def main_job(progress):
        settings = Settings(seed=arguments.seed)
        results = run(settings, arguments.server, arguments.python, arguments.output, progress)
        print("\nFrom the server's /metrics:", *results.metrics, sep="\n  ")
        print("\n" + "\n".join(program.aligned(table(results))))
        print(f"\n{results.rollouts} rollouts and {results.rollouts * settings.updates} updates each.")
        print(verdict(results))
        print(f"\nReport: {os.path.join(arguments.output, 'report.html')}")

    return program.run(main_job)


if __name__ == "__main__":
    sys.exit(main())
