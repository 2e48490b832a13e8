"""Loads a server of each store at its byte budget for some minutes: see tools/soak."""

import argparse
import contextlib
import datetime
import json
import os
import pathlib
import sys
import tempfile
import time

from server.testing.live_server import LiveServer
from server.testing.process_status import process_status
from tests.integration.redis_servers import RedisServer
from tests.soak import report
from tests.soak.load import Load

CACHE_BYTES = 32 << 20
REST_SECONDS = 0.3


class ServerEnded(Exception):
    """By itself, in the middle of a soak."""


def _status(process, name):
    number = process_status(process, name)
    if number is None:
        raise ServerEnded
    return number


def sample(server, load, seconds):
    metrics = load.read_metrics(server.admin_address)
    return {
        "seconds": seconds,
        "resident_bytes": 1024 * _status(server.process, "VmRSS"),
        "threads": _status(server.process, "Threads"),
        "descriptors": len(os.listdir(f"/proc/{server.process.pid}/fd")),
        "cache_share": metrics and metrics["sis_cache_bytes"] / metrics["sis_cache_budget_bytes"],
        "latencies": load.take_latencies(),
    }


def soak(seconds, output):
    """Writes samples.json and summary.txt to the folder `output`; returns the summary, and
    whether all was well. The soak also ends if a server does."""
    sample_seconds = min(5, seconds / 40)
    output.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(dir="/tmp", prefix="sis_"))
        servers, loads = {}, {}
        redis = RedisServer(f"{folder}/redis")
        stack.callback(redis.kill)
        stores = {"memory": "memory", "rocksdb": f"rocksdb:{folder}/db", "redis": redis.store}
        for name, store in stores.items():
            servers[name] = LiveServer(f"--store={store}", cache_bytes=CACHE_BYTES)
            stack.callback(servers[name].kill)
        for name, server in servers.items():
            loads[name] = Load(name, server.address, REST_SECONDS)
            stack.callback(loads[name].stop)
        started = time.monotonic()
        samples = {name: [] for name in servers}
        with contextlib.suppress(ServerEnded):
            while time.monotonic() - started < seconds:
                time.sleep(sample_seconds)
                for name, server in servers.items():
                    samples[name].append(sample(server, loads[name], time.monotonic() - started))
        for load in loads.values():
            load.stop()
        failures = []
        for name, server in servers.items():
            server.close()
            if server.process.returncode != 0:
                failures.append(f"{name} ended with {server.process.returncode}")
        failures += [failure for load in loads.values() for failure in load.failures]
    title = f"{seconds / 60:.0f} minutes at the byte budget, {datetime.date.today()}, {os.cpu_count()} cores"
    counts = {name: dict(load.counts) for name, load in loads.items()}
    (output / "samples.json").write_text(json.dumps(samples))
    text, good = report.summary(title, samples, counts, failures)
    (output / "summary.txt").write_text(text)
    return text, good


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--minutes", type=float, default=100)
    parser.add_argument("--output", type=pathlib.Path, required=True, help="a folder")
    arguments = parser.parse_args()
    text, good = soak(60 * arguments.minutes, arguments.output)
    print(text, end="")
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
