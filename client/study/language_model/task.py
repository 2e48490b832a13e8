"""The verifiable tasks: of two numbers the sum, or the difference, as the whole line.

The model has seen such lines, but at first is often wrong, and often goes on writing.
"""

import random
from typing import Any, Dict, List, Sequence, Tuple

from client.study.language_model.settings import Settings

# By what stands between the numbers.
_EXAMPLES = {"+": "1 + 2 = 3\n", "-": "15 - 11 = 4\n"}
# What ends a response.
END = "\n"

# As TRL's datasets have them: a prompt, and its answer.
Problem = Dict[str, str]


def problem(left: int, operation: str, right: int) -> Problem:
    answer = left + right if operation == "+" else left - right
    return {"prompt": f"{_EXAMPLES[operation]}{left} {operation} {right} =", "answer": str(answer)}


def split(settings: Settings, seed: int) -> Tuple[List[Problem], List[Problem]]:
    """All problems there are, in a random order: those to learn from, and `held_out` others."""
    numbers = range(settings.smallest, settings.largest + 1)
    there = [
        problem(left, settings.operation, right)
        for left in numbers
        for right in numbers
        if settings.operation == "+" or left > right
    ]
    random.Random(seed).shuffle(there)
    return there[settings.held_out :], there[: settings.held_out]


def response(answer: str) -> str:
    """The one that is right."""
    return f" {answer}{END}"


def reward(completions: Sequence[str], answer: Sequence[str], **_: Any) -> List[float]:
    """As TRL calls it: 1 if a line is the answer and nothing else, else 0."""
    return [float(text == response(right)) for text, right in zip(completions, answer)]
