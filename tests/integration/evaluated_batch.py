"""A recorded batch and the tested policy's values for it, in every form that Evaluate takes."""

from typing import Optional

import numpy as np

import sis
from server.testing.random_records import drawn, log_softmax
from tests.integration.live_server import LiveServerTest
from tests.reference import numerics

SEED = 12345
TOP_K, VOCABULARY = 8, 60
OUTPUTS = ("decisions", "ratios", "log_ratios", "acceptance_probabilities", "surrogates", "coefficients")
LENGTHS = {"a": 90, "b": 70, "c": 50}
# Positions of sequence a: tool output, which has no record, and lost positions.
TOOL, LOST = slice(30, 40), slice(40, 50)

FORMS = ("gathered", "reduced")


class Values:
    """The tested policy's values at all positions, and what evaluate makes of them."""

    def __init__(self, records: sis.TopKRecords, logits: np.ndarray, form: str, tokens: Optional[np.ndarray] = None):
        """tokens: the sampled tokens, if those of lost positions must be known."""
        rows = np.arange(len(records))
        sampled = np.maximum(records.sampled_ids, 0) if tokens is None else tokens
        self.form = form
        current = log_softmax(logits.astype(np.float64))
        self.sampled = current[rows, sampled]
        self.log_probs = np.take_along_axis(current, np.maximum(records.ids, 0), axis=1)

    def reduced(self, records: numerics.Records, here: slice) -> numerics.Reduced:
        """Reduces the values at the positions `here` by numpy. `records` are of these positions."""
        gathered = numerics.Gathered(self.sampled[here], self.log_probs[here])
        return numerics.reduce_gathered(records, gathered, TOP_K)

    def evaluate(self, client: sis.Client, run: sis.Run, records: sis.TopKRecords, **keywords) -> sis.Evaluation:
        sampled = self.sampled
        if self.form == "reduced":
            envelopes, masses = sis.reduce(records, self.log_probs)
            return client.evaluate(
                run, records, sampled_log_probs=sampled, log_envelopes=envelopes, covered_masses=masses, **keywords
            )
        return client.evaluate(run, records, log_probs=self.log_probs, sampled_log_probs=sampled, **keywords)


class EvaluatedBatchTest(LiveServerTest):
    """A batch with records, tool output and lost positions, and what a trainer knows of it."""

    def setUp(self):
        rng = np.random.default_rng(9)
        count = sum(LENGTHS.values())
        behaviour_logits = rng.normal(0, 2, (count, VOCABULARY))
        self.logits = behaviour_logits + rng.normal(0, 0.5, (count, VOCABULARY))
        self.logits = self.logits.astype(np.float32)
        current = self.logits + rng.normal(0, 0.3, self.logits.shape)
        self.behaviour = log_softmax(behaviour_logits)
        self.record = drawn(self.behaviour, rng, TOP_K)
        self.tokens = self.record.sampled_ids
        rows = np.arange(count)
        self.current_of_three = log_softmax(current)[rows, self.tokens]
        self.own = (self.behaviour[rows, self.tokens] + rng.normal(0, 0.1, count)).astype(np.float32)
        self.own = np.minimum(self.own, 0)
        self.advantages = rng.normal(0, 1.5, count).astype(np.float32)
        self.advantages[::17] = 0
        self.mask = np.ones(count, bool)
        self.mask[TOOL] = False
        self.lost = np.zeros(count, bool)
        self.lost[LOST] = True

    def recorded(self, run_id: str, encoding: str = "float32") -> tuple[sis.Run, sis.TopKRecords]:
        run = self.client.create_run(
            run_id, seed=SEED, vocabulary_size=VOCABULARY, top_k=TOP_K, log_prob_encoding=encoding
        )
        first = 0
        with self.client.append(run, sampling=sis.Sampling("processed", temperature=1.0)) as stream:
            for name, length in LENGTHS.items():
                for start, end in ((0, TOOL.start), (LOST.stop, length)) if name == "a" else ((0, length),):
                    part = {key: array[first + start : first + end] for key, array in self.record._asdict().items()}
                    stream.block(name, first_position=start, policy_version=0, **part)
                first += length
        return run, self.client.fetch_top_k(run, list(LENGTHS))
