"""This service: Append by the worker; FetchTopK and Evaluate by the trainer."""

import numpy as np
import ray
import torch

import sis
from tests.bench.trainer_path.batch import MASS


class _SisWay:
    mass = 0.0

    def __init__(self, worker, client, batch, run):
        """`run`: of this way alone."""
        self._worker, self._client, self._run = worker, client, run
        self._current = torch.from_numpy(batch.current)
        self._current_sampled = torch.from_numpy(batch.current_sampled)
        self._used = None
        self._draw = 0

    def put(self, names):
        ray.get(self._worker.append_over_tcp.remote(self._run.id, names))

    def mask(self, names, put):
        self._draw += 1
        evaluation = self._evaluate(names)
        if evaluation.totals.missing:
            raise RuntimeError(f"missing: {evaluation.missing[:3]}")
        return torch.from_numpy(evaluation.accepted)

    def clear(self, names):
        self._client.release(self._run, names)

    def held(self):
        """Returns the bytes that the server charges the run."""
        return self._client.get_run(self._run.id).bytes

    def _at_ids(self, names):
        records = self._client.fetch_top_k(self._run, names, log_probs=False)
        return self._client.evaluate(
            self._run,
            records,
            draw=self._draw,
            log_probs=self._current,
            sampled_log_probs=self._current_sampled,
        )

    def _at_used_ids(self, names):
        """With the values of used slots alone. How many these are is always the same."""
        records = self._client.fetch_top_k(self._run, names, log_probs=False)
        if self._used is None:
            rows = self._current.numpy()
            used = rows[np.arange(rows.shape[1]) < records.counts[:, None]]
            self._used = torch.from_numpy(used)
        return self._client.evaluate(
            self._run,
            records,
            draw=self._draw,
            log_probs=self._used,
            sampled_log_probs=self._current_sampled,
        )


class TcpWay(_SisWay):
    name = "this service, TCP"

    def _evaluate(self, names):
        return self._at_ids(names)


class ReducedWay(_SisWay):
    name = "this service, TCP, REDUCED"

    def _evaluate(self, names):
        records = self._client.fetch_top_k(self._run, names)
        envelopes, masses = sis.reduce(records, self._current)
        return self._client.evaluate(
            self._run,
            records,
            draw=self._draw,
            sampled_log_probs=self._current_sampled,
            log_envelopes=envelopes,
            covered_masses=masses,
        )


class TcpMassWay(TcpWay):
    name = f"this service, TCP, mass {MASS}"
    mass = MASS

    def _evaluate(self, names):
        return self._at_used_ids(names)
