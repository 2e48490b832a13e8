"""Runs the service's main job for real and reports what it measured. tools/demo builds and calls
it."""

import argparse
import dataclasses
import os
import sys
import tempfile
import time

import numpy as np

from client.demo import arms, program
from client.demo import results as measured
from client.demo.server import Server
from client.demo.settings import Settings
from client.study.miniature import Miniature


def run(settings, server_binary, output, progress):
    """Trains all arms for as many seeds as there is time for; returns measured.Results and writes
    the report.

    server_binary: path of sis_server. output: the folder of report.html.
    """
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as folder, Server(server_binary) as server:
        if not server.is_healthy():
            raise RuntimeError("the server's health service does not say SERVING")
        progress.say(f"Server ready and healthy: gRPC {server.address}, page http://{server.admin_address}/")
        progress.say(f"Look on: bazel-bin/client/cli/sisctl --server={server.address} top")

        progress.say(f"Warm-up: supervision until at least {settings.warm_up_accuracy:.0%} of the problems are solved")
        checkpoint = os.path.join(folder, "checkpoint.npy")
        np.save(checkpoint, Miniature(settings.digits).warm_up(settings.seed, settings.warm_up_accuracy))
        progress.say(f"Warm-up: {time.monotonic() - start:.0f} s")

        progress.say("Training; live: rewards of the last rollouts; accept rate, D and D_SIS (nats per response) with SIS")
        results = measured.Results(settings, [], [])
        longest = 0.0
        for seed in range(settings.seed, settings.seed + settings.seeds):
            begun = time.monotonic()
            if results.learned and begun - start + longest > settings.seconds:
                progress.say(f"No time for another seed: {len(results.learned)} done")
                break
            runs = arms.train_arms(
                server.address, arms.ARMS, settings, seed, checkpoint, folder, start + settings.seconds,
                lambda runs: _show_training(progress, settings, seed, runs),
            )  # fmt: skip
            rollouts = min(map(len, runs))
            if results.learned and rollouts < settings.rollouts:
                progress.say(f"Seed {seed}: the time was up after {rollouts} rollouts; left out")
                break
            if rollouts == 0:
                raise RuntimeError("the time was up before there was a rollout: this machine is too slow or too busy")
            results.learned.append(runs)
            longest = max(longest, time.monotonic() - begun)
            progress.say(f"Seed {seed}: {time.monotonic() - begun:.0f} s. {_so_far(results)}")
        counted = server.counted(arms.run_id(arms.ROUNDED.arms[1], settings.seed))
        results = dataclasses.replace(results, metrics=counted)
    os.makedirs(output, exist_ok=True)
    # Not above: worker and trainer processes import this file too, and matplotlib costs more than
    # all else.
    from client.demo import report

    report.write(results, os.path.join(output, "report.html"))
    return results


def _show_training(progress, settings, seed, runs):
    texts = []
    by_arm = dict(zip(arms.ARMS, runs))
    for panel in arms.PANELS:
        if not all(by_arm[arm] for arm in panel.arms):
            return
        rewards = ", ".join(f"{arm.name} {by_arm[arm][-1].reward:.2f}" for arm in panel.arms)
        last = by_arm[panel.arms[1]][-1]
        rate = measured.total(last.updates, "accepted") / measured.scored(last.updates)
        d, d_sis = (measured.total(last.updates, name) / last.responses for name in ("d", "d_sis"))
        texts.append(f"{panel.name}: {rewards}; {rate:.0%} D {d:.2f} D_SIS {d_sis:.2f}")
    progress.show(f"Seed {seed}", min(map(len, runs)) / settings.rollouts, " | ".join(texts))


def _so_far(results):
    """Of all seeds that are done, in thousandths."""
    texts = []
    for panel in arms.PANELS:
        first, *others = panel.arms
        differences = ", ".join(f"{arm.name} {results.difference(arm, first).text()}" for arm in others)
        texts.append(f"{panel.name}, less GRPO in thousandths: {differences}")
    return "; ".join(texts)


def summary(results):
    """For people to read."""
    lines = []
    for panel in arms.PANELS:
        lines += program.aligned(measured.table(results, panel))
        lines += ["", *measured.verdicts(results)[panel.name], ""]
    return "\n".join([*lines, measured.basis(results)])


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--server", required=True, help="path of the sis_server binary")
    parser.add_argument("--output", required=True, help="folder for report.html")
    parser.add_argument("--seed", type=int, default=Settings.seed, help="the first seed, and that of the warm-up")
    arguments = parser.parse_args()

    def main_job(progress):
        settings = dataclasses.replace(Settings(), seed=arguments.seed)
        results = run(settings, arguments.server, arguments.output, progress)
        print("\nFrom the server's /metrics:", *results.metrics, sep="\n  ")
        print("\n" + summary(results))
        print(f"\nReport: {os.path.join(arguments.output, 'report.html')}")

    return program.run(main_job)


if __name__ == "__main__":
    sys.exit(main())
