"""Measures the memory and traffic of a real server for known tokens, next to the formulas in sizing.py."""

import os
import pathlib
import re
import time
import urllib.request

import numpy as np

import sis
from server.testing.live_server import LiveServer
from tests.scaling import sizing

VOCABULARY = 151_936
SEQUENCES, LENGTH = 60, 1024
SAMPLING = sis.Sampling("raw")


def _records(top_k):
    """Any valid ones."""
    rng = np.random.default_rng(1)
    ids = rng.integers(VOCABULARY // top_k, size=(LENGTH, top_k)) + VOCABULARY // top_k * np.arange(top_k)
    log_probs = -np.sort(rng.gamma(2, 2, size=(LENGTH, top_k)), axis=1) - np.log(top_k)
    return {
        "sampled_ids": ids[:, 0],
        "sampled_log_probs": log_probs[:, 0].astype(np.float32),
        "top_k_ids": ids,
        "top_k_log_probs": log_probs.astype(np.float32),
    }


class Measurement:
    """A server, and a run of it with sequences of LENGTH tokens."""

    def __init__(self, top_k, encoding="fixed16", sequences=SEQUENCES):
        self.top_k, self.encoding, self.sequences = top_k, encoding, sequences
        self.server = LiveServer(cache_bytes=128 << 20)
        self.client = sis.Client(self.server.address, timeout=60)
        self.run = self.client.create_run(
            "run", seed=1, vocabulary_size=VOCABULARY, top_k=top_k, log_prob_encoding=encoding
        )
        self.tokens = sequences * LENGTH
        self._slices = [sis.Slice(str(i), 0, LENGTH) for i in range(sequences)]

    def close(self):
        self.client.close()
        self.server.close()

    def metric(self, name):
        with urllib.request.urlopen(f"http://{self.server.admin_address}/metrics", timeout=30) as page:
            text = page.read().decode()
        return float(re.search(rf"^{name}(?:{{.*}})? (\S+)$", text, re.MULTILINE).group(1))

    def append(self, block, seal=True, length=LENGTH):
        """Appends the first `length` tokens of each sequence, in blocks of `block` tokens."""
        records = {name: array[:length] for name, array in _records(self.top_k).items()}
        with self.client.append(self.run, sampling=SAMPLING) as stream:
            for first in range(0, length, block):
                rows = {name: array[first : first + block] for name, array in records.items()}
                for part in self._slices:
                    stream.block(part.sequence, first_position=first, policy_version=0, **rows)
            for part in self._slices if seal else ():
                stream.seal(part.sequence, length=length)

    def charged_bytes(self):
        return self.metric("sis_cache_bytes")

    def step(self, form):
        """Evaluates all once, from records that are fetched for it; returns the processor seconds of
        the server for the fetch and for the evaluation."""
        before = self.processor_seconds()
        records = self.client.fetch_top_k(self.run, self._slices)
        fetched = self.processor_seconds()
        self.evaluate(records, form, draw=int(before * 100) + 1)
        return fetched - before, self.processor_seconds() - fetched

    def evaluate(self, records, form, draw):
        """`form`: gathered or reduced."""
        if form == "reduced":
            zeros = np.zeros(len(records), np.float32)
            self.client.evaluate(
                self.run, records, draw=draw, sampled_log_probs=records.sampled_log_probs, log_envelopes=zeros,
                covered_masses=zeros + 0.5,
            )  # fmt: skip
        else:
            self.client.evaluate(
                self.run, records, draw=draw, log_probs=records.log_probs,
                sampled_log_probs=records.sampled_log_probs,
            )  # fmt: skip

    def processor_seconds(self):
        """Of the server, by the clock of its scheduler (nanoseconds)."""
        threads = pathlib.Path(f"/proc/{self.server.process.pid}/task")
        total = 0
        for thread in os.listdir(threads):
            try:
                total += int((threads / thread / "schedstat").read_text().split()[0])
            except FileNotFoundError:
                pass  # it has ended
        return total / 1e9


def main():
    print("| K | charged, by formula | charged | append, blocks of 1 | of 32 | of 1024 | fetch | gathered | reduced |")
    print("|---" * 9 + "|")
    for top_k in (10, 50, 100):
        micros = []
        for block in (1, 32, 1024):
            measurement = Measurement(top_k)
            before = measurement.processor_seconds()
            measurement.append(block)
            micros.append(1e6 * (measurement.processor_seconds() - before) / measurement.tokens)
            if block < 1024:
                measurement.close()
        charged = measurement.charged_bytes() / measurement.tokens
        sequences = measurement.sequences
        by_formula = sizing.cache_bytes(top_k, VOCABULARY, measurement.tokens, sequences, sequences) / measurement.tokens
        fetches, evaluations = [], {}
        for form in ("gathered", "reduced"):
            steps = [measurement.step(form) for _ in range(5)]
            fetches += [fetch for fetch, _ in steps]
            evaluations[form] = np.median([evaluation for _, evaluation in steps])
        measurement.close()
        micros += [1e6 * seconds / measurement.tokens for seconds in (np.median(fetches), *evaluations.values())]
        cells = [f"{by_formula:.1f}", f"{charged:.1f}", *(f"{value:.3f}" for value in micros)]
        print(f"| {top_k} | " + " | ".join(cells) + " |")
    print(f"\nBytes, and us of the server's processor time, per token; {time.strftime('%Y-%m-%d')}, load {os.getloadavg()}")


if __name__ == "__main__":
    main()
