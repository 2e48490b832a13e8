"""This service: Append by the worker; FetchTopK and Evaluate by the trainer."""

import numpy as np
import ray
import torch

import sis
from tests.bench.trainer_path.batch import VOCABULARY


class SisWay:
    def __init__(self, worker, address, transport, mass, batch):
        """`mass`: 0, or where the run cuts its sets; then the trainer has values of used slots alone."""
        self.name = f"this service, {transport}" + (f", cut at {mass}" if mass else "")
        self._worker, self._address = worker, address
        self._client = sis.Client(address)
        self._slots = batch.current.shape[1]
        self._run = self._client.create_run(
            f"{transport}-{mass}".replace(" ", "-"), seed=1, vocabulary_size=VOCABULARY, top_k=self._slots, mass=mass
        )
        self._current = None if mass else torch.from_numpy(batch.current)
        self._rows = batch.current
        self._current_sampled = torch.from_numpy(batch.current_sampled)
        self._draw = 0

    def close(self):
        self._client.close()

    def put(self, names):
        ray.get(self._worker.append.remote(self._address, self._run.id, names))

    def mask(self, names, put):
        self._draw += 1
        records = self._client.fetch_top_k(self._run, names, log_probs=False)
        if self._current is None:  # All batches have the same counts.
            used = self._rows[np.arange(self._slots) < records.counts[:, None]]
            self._current = torch.from_numpy(used)
        evaluation = self._client.evaluate(
            self._run,
            records,
            draw=self._draw,
            log_probs=self._current,
            sampled_log_probs=self._current_sampled,
        )
        if evaluation.totals.missing:
            raise RuntimeError(f"missing: {evaluation.missing[:3]}")
        return torch.from_numpy(evaluation.accepted)

    def clear(self, names):
        self._client.release(self._run, names)

    def held(self):
        """Returns the bytes that the server charges the run."""
        return self._client.get_run(self._run.id).bytes
