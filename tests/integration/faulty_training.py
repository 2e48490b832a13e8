"""A trainer of whom it is known what is wrong with it."""

import numpy as np

import sis
from server.testing.random_records import drawn, log_softmax

VOCABULARY = 200
SEQUENCES, LENGTH = 30, 50
ROWS = SEQUENCES * LENGTH
# Where D is 0.04 to 0.07 nats, as between engines of the same weights.
NOISE = 0.06


class FaultyTraining:
    """A run with rollouts of a random policy. Every second one is `versions` behind. The run is healthy, except for the
    faults that evaluate() is given."""

    def __init__(self, client, name, top_k=40, scale=3.0, versions=0):
        self.rng = np.random.default_rng(11)
        self.client = client
        self.run = client.create_run(name, seed=3, vocabulary_size=VOCABULARY, top_k=top_k)
        self.logits = self.rng.normal(0, scale, (ROWS, VOCABULARY))
        recorded = log_softmax(self.logits)
        record = drawn(recorded, self.rng, top_k)
        self.tokens = record.sampled_ids
        self.names = [f"s{i}" for i in range(SEQUENCES)]
        self.old = np.repeat(np.arange(SEQUENCES) % 2 == 1, LENGTH)
        with self.append() as stream:
            for i, name in enumerate(self.names):
                here = slice(i * LENGTH, (i + 1) * LENGTH)
                part = {key: array[here] for key, array in record._asdict().items()}
                stream.block(name, first_position=0, policy_version=0 if i % 2 else versions, **part)
        client.advance_version(self.run, versions)
        self.records = client.fetch_top_k(self.run, self.names)

    def append(self):
        return self.client.append(self.run, sampling=sis.Sampling("processed", temperature=1.0))

    def evaluate(
        self,
        draw,
        temperature=1.0,
        noise=NOISE,
        old_noise=0.0,
        shift=0,
        shifted_slots=0,
        lost=0,
        reason=None,
        rows=slice(None),
        impossible=(),
        options=sis.EvaluateOptions(),
    ):
        """One step of a trainer, whose policy is as far from the recorded one as `noise` says.

        `lost`: tokens without a record, in a gap if there is a `reason`. `rows`: the rows of logits that the trainer takes
        for these positions. `impossible`: positions whose sampled token it gives no probability.
        """
        if reason is not None:
            with self.append() as stream:
                stream.gap(f"lost {draw}", first_position=0, length=lost, reason=reason)
        spread = np.where(self.old, noise + old_noise, noise)[:, None]
        logits = self.logits + spread * self.rng.normal(size=self.logits.shape)
        current = log_softmax(np.roll(logits, shift, axis=0)[rows] / temperature)
        slots = np.maximum(self.records.ids, 0)
        log_probs = np.take_along_axis(np.roll(current, shifted_slots, axis=0), slots, axis=1)
        sampled = current[np.arange(ROWS), self.tokens]
        sampled[list(impossible)] = -np.inf
        slices = list(self.records.slices) + ([sis.Slice(f"lost {draw}", length=lost)] if lost else [])
        return self.client.evaluate(
            self.run,
            slices,
            draw=draw,
            log_probs=np.append(log_probs, log_probs[:lost], axis=0),
            sampled_log_probs=np.append(sampled, sampled[:lost]),
            prefix_curve=[1, self.records.ids.shape[1]],
            options=options,
        )
