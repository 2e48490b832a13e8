"""The verifiable task: the sum of two numbers, as the whole line.

The model has seen such lines, but at first is often wrong, and often goes on writing.
"""

import random
from typing import Any, Dict, List, Sequence

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
