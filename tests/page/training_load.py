"""A small run that looks like training: sequences of random policies, which drift apart."""

import numpy as np

import sis
from server.testing.random_records import log_softmax

VOCABULARY, TOP_K = 60, 8
SEQUENCES, LENGTH = 12, 40
PREFIX_CURVE = (1, 2, 4, TOP_K)
_ROWS = SEQUENCES * LENGTH


class TrainingLoad:
    """A run with recorded sequences; step() evaluates them once more. `shifted_lists` simulates a
    worker's mistake: it records each token with the list of that many rows before."""

    def __init__(self, client, run_id, shifted_lists=0):
        self._client = client
        self._rng = np.random.default_rng(5)
        self.run = client.create_run(
            run_id,
            seed=7,
            vocabulary_size=VOCABULARY,
            top_k=TOP_K,
            task="sums",
            algorithm="grpo",
            model="tiny",
        )
        self._logits = self._rng.normal(0, 2, (_ROWS, VOCABULARY))
        behaviour = log_softmax(self._logits)
        tokens = (behaviour + self._rng.gumbel(size=behaviour.shape)).argmax(axis=1)
        ids = np.broadcast_to(np.arange(VOCABULARY), behaviour.shape)
        sampled = behaviour[np.arange(_ROWS), tokens]
        record = sis.canonical(ids, np.roll(behaviour, shifted_lists, axis=0), tokens, sampled, TOP_K)
        self.names = [f"prompt-{i:02}" for i in range(SEQUENCES)]
        with client.append(self.run, sampling=sis.Sampling("processed", temperature=1.0)) as stream:
            for i, name in enumerate(self.names):
                here = slice(i * LENGTH, (i + 1) * LENGTH)
                part = {key: array[here] for key, array in record._asdict().items()}
                stream.block(name, first_position=0, policy_version=i % 3, **part)
        client.advance_version(self.run, 3)
        self.records = client.fetch_top_k(self.run, self.names)

    def step(self, draw, prefix_curve=PREFIX_CURVE, shift=0):
        """One optimiser step: the policy has moved since the last one. Two tokens are missing, as
        they never came. `shift`: a trainer's mistake, so many rows."""
        self._logits = self._logits + self._rng.normal(0, 0.08, self._logits.shape)
        current = np.roll(log_softmax(self._logits), shift, axis=0)
        slots = np.maximum(self.records.ids, 0)
        rows = np.arange(len(self.records))
        log_probs = np.take_along_axis(current, slots, axis=1)
        sampled_log_probs = current[rows, self.records.sampled_ids]
        return self._client.evaluate(
            self.run,
            [*self.records.slices, sis.Slice(f"lost {draw}", length=2)],
            draw=draw,
            log_probs=np.append(log_probs, log_probs[:2], axis=0),
            sampled_log_probs=np.append(sampled_log_probs, sampled_log_probs[:2]),
            prefix_curve=prefix_curve,
        )
