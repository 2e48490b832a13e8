"""Runs the service's main job for real and reports what it measured. tools/demo builds and calls
it."""

import argparse
import dataclasses
import os
import signal
import sys
import tempfile
import time

import torch

from client.demo import arms, model, report, task, warm_up
from client.demo import results as measured
from client.demo.progress import Progress
from client.demo.server import Server
from client.demo.settings import Settings

# Of /metrics, for the report.
_SHOWN_METRICS = ("sis_tokens_total", "sis_deviation_nats_total", "sis_modified_deviation_nats_total", "sis_ingest_positions_total")


def run(settings, server_binary, output, progress):
    """Trains both arms for as many seeds as there is time for; returns measured.Results and writes
    the report.

    server_binary: path of sis_server. output: the folder of report.html.
    """
    start = time.monotonic()
    addition = task.Addition(settings.digits)
    torch.manual_seed(settings.seed)
    policy = model.of_task(addition)
    with tempfile.TemporaryDirectory() as folder, Server(server_binary) as server:
        if not server.is_healthy():
            raise RuntimeError("the server's health service does not say SERVING")
        progress.say(f"Server ready and healthy: gRPC {server.address}, page http://{server.admin_address}/")

        def show_warm_up(state):
            progress.show(
                "Warm-up",
                state.accuracy / settings.warm_up_accuracy,
                f"solves {state.accuracy:.1%} after {state.steps} steps, {state.seconds:.0f} s",
            )

        warmed = warm_up.warm_up(policy, addition, settings, show_warm_up)
        progress.say(f"Warm-up: {warmed.steps} supervised steps, solves {warmed.accuracy:.1%}, {warmed.seconds:.0f} s")
        checkpoint = os.path.join(folder, "checkpoint")
        torch.save(policy.state_dict(), checkpoint)

        progress.say("Training; live: accept rate, D and D_SIS in nats per response, and reward R of the last rollout")
        learned = []
        longest = 0.0
        for seed in range(settings.seed, settings.seed + settings.seeds):
            begun = time.monotonic()
            if learned and begun - start + longest > settings.seconds:
                progress.say(f"No time for another seed: {len(learned)} of {settings.seeds} done")
                break
            pair = arms.train_arms(
                server.address, settings, seed, checkpoint, folder, start + settings.seconds,
                lambda runs: _show_training(progress, settings, seed, runs),
            )  # fmt: skip
            rollouts = min(map(len, pair))
            if learned and rollouts < settings.rollouts:
                progress.say(f"Seed {seed}: the time was up after {rollouts} rollouts; left out")
                break
            if rollouts == 0:
                raise RuntimeError("the time was up before there was a rollout: this machine is too slow or too busy")
            learned.append(pair)
            longest = max(longest, time.monotonic() - begun)
            rewards = ", ".join(f"{arm.name} {runs[-1].reward:.3f}" for arm, runs in zip(arms.ARMS, pair))
            progress.say(f"Seed {seed}: {time.monotonic() - begun:.0f} s; reward of the last rollout: {rewards}")
        shown = f'run="{arms.run_id(arms.ARMS[1], settings.seed)}"'
        lines = [line for line in server.metrics() if line.startswith(_SHOWN_METRICS) and shown in line]
        results = measured.Results(settings, warmed, learned, sorted(lines))
    os.makedirs(output, exist_ok=True)
    report.write(results, os.path.join(output, "report.html"))
    return results


def _show_training(progress, settings, seed, runs):
    texts = []
    for arm, learned in zip(arms.ARMS, runs):
        if learned:
            last = learned[-1]
            rate = measured.total(last.updates, "accepted") / measured.scored(last.updates)
            d, d_sis = (measured.total(last.updates, name) / last.responses for name in ("d", "d_sis"))
            texts.append(f"{arm.name} {rate:.0%} D {d:.2f} D_SIS {d_sis:.2f} R {last.reward:.2f}")
    progress.show(f"Seed {seed}", min(map(len, runs)) / settings.rollouts, " | ".join(texts))


def summary(results):
    """For people to read."""
    rows = measured.table(results)
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows]
    count = len(results.learned)
    lines += [
        "",
        f"Means over {count} {'seed' if count == 1 else 'seeds'} (smallest to largest), "
        f"{results.rollouts} rollouts and {results.rollouts * results.settings.updates} updates each.",
        measured.verdict(results),
    ]
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--server", required=True, help="path of the sis_server binary")
    parser.add_argument("--output", required=True, help="folder for report.html")
    parser.add_argument("--seed", type=int, default=Settings.seed, help="the first seed, and that of the warm-up")
    arguments = parser.parse_args()
    # So that the server and all processes are ended on the way out, also when the terminal is
    # closed.
    for ending in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(ending, lambda number, _: sys.exit(128 + number))
    # The processes share the cores; threads within them would only get into each other's way.
    torch.set_num_threads(1)
    progress = Progress(sys.stdout)
    try:
        settings = dataclasses.replace(Settings(), seed=arguments.seed)
        results = run(settings, arguments.server, arguments.output, progress)
    except KeyboardInterrupt:
        progress.say("Interrupted.")
        return 130
    except RuntimeError as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    print("\nFrom the server's /metrics:", *results.metrics, sep="\n  ")
    print("\n" + summary(results))
    print(f"\nReport: {os.path.join(arguments.output, 'report.html')}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
