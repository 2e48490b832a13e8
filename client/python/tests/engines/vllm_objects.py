"""Inputs and outputs of vLLM, as far as sis reads them."""

import copy
import dataclasses
import itertools


@dataclasses.dataclass
class FlatLogprobs:
    """vLLM's."""

    start_indices: list
    end_indices: list
    token_ids: list
    logprobs: list
    ranks: list
    decoded_tokens: list

    def __len__(self):
        return len(self.start_indices)

    @classmethod
    def of(cls, lists):
        """lists: of each position the log-probs of its tokens, by id, the sampled one first."""
        ends = list(itertools.accumulate(map(len, lists)))
        ids = [token for listed in lists for token in listed]
        values = [value for listed in lists for value in listed.values()]
        return cls([0, *ends[:-1]], ends, ids, values, [None] * len(ids), [None] * len(ids))


@dataclasses.dataclass
class SamplingParams:
    """vLLM's, as verl makes them."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logprobs: int = 0
    flat_logprobs: bool = False
    extra_args: dict = None
    max_tokens: int = 16

    def clone(self):
        return copy.deepcopy(self)
