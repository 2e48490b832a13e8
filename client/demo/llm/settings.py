"""Settings of the language model's trainings."""

import dataclasses
import math


# By the names of the runs.
ARMS = {"grpo": "without SIS", "sis": "with SIS"}


@dataclasses.dataclass(frozen=True)
class Settings:
    # Sums of two numbers from 1 to `largest`.
    largest: int = 20

    # A rollout is `prompts` problems with `group` responses of at most `tokens` tokens each: a
    # space, two digits and the end of the line. It is used for `updates` mini-batches in one pass.
    rollouts: int = 16
    prompts: int = 8
    group: int = 8
    tokens: int = 4
    updates: int = 4
    learning_rate: float = 1e-5
    top_k: int = 20
    # Training ends after the rollout in which they are over, if there are more rollouts.
    seconds: float = math.inf

    @property
    def responses(self) -> int:
        """In one rollout."""
        return self.prompts * self.group
