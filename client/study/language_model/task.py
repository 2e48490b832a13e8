"""The verifiable task: adding two numbers, with the sum as the whole line.

The model has seen sums, but at first is often wrong, and often goes on writing.
"""

import random
from typing import Any, Dict, List, Sequence, Tuple

_EXAMPLE = "1 + 2 = 3\n"
# What ends a response.
END = "\n"

# As TRL's datasets have them: a prompt, and its answer.
Problem = Dict[str, str]


def problem(left: int, right: int) -> Problem:
    return {"prompt": f"{_EXAMPLE}{left} + {right} =", "answer": str(left + right)}


def split(largest: int, held_out: int, seed: int) -> Tuple[List[Problem], List[Problem]]:
    """All problems there are, in a random order: those to learn from, and `held_out` others."""
    numbers = range(1, largest + 1)
    there = [problem(left, right) for left in numbers for right in numbers]
    random.Random(seed).shuffle(there)
    return there[held_out:], there[:held_out]


def response(answer: str) -> str:
    """The one that is right."""
    return f" {answer}{END}"


def reward(completions: Sequence[str], answer: Sequence[str], **_: Any) -> List[float]:
    """As TRL calls it: 1 if a line is the answer and nothing else, else 0."""
    return [float(text == response(right)) for text, right in zip(completions, answer)]
