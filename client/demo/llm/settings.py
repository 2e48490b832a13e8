"""Settings of the language model's trainings, and their verifiable task: the sum of two numbers, as the whole line.

The model has seen such lines, but at first is often wrong, and often goes on writing.
"""

import dataclasses
import math
import random
from typing import Any, Dict, List, Sequence

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


# The end of a response.
END = "\n"

# As TRL's datasets have them: a prompt, and its answer.
Problem = Dict[str, str]


def problems(largest: int, seed: int) -> List[Problem]:
    """Returns the sums of all pairs of numbers from 1 to `largest`, in a random order."""
    numbers = range(1, largest + 1)
    made = [
        {"prompt": f"1 + 2 = 3\n{left} + {right} =", "answer": str(left + right)} for left in numbers for right in numbers
    ]
    random.Random(seed).shuffle(made)
    return made


def reward(completions: Sequence[str], answer: Sequence[str], **_: Any) -> List[float]:
    """Returns, as TRL calls it, 1 for each line that is the answer and nothing else, else 0."""
    return [float(text == f" {right}{END}") for text, right in zip(completions, answer)]
