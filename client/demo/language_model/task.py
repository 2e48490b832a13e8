"""The verifiable task: adding two numbers, with the sum as the whole line.

The model has seen sums, but at first is often wrong, and often goes on writing.
"""

import random

_EXAMPLE = "1 + 2 = 3\n"
# What ends a response.
END = "\n"


def problems(count, largest, seed):
    """Dictionaries with the prompt and its answer, as TRL's datasets have them."""
    draw = random.Random(seed)
    pairs = [(draw.randint(1, largest), draw.randint(1, largest)) for _ in range(count)]
    return [{"prompt": f"{_EXAMPLE}{left} + {right} =", "answer": str(left + right)} for left, right in pairs]


def score(text, answer):
    """1 if the line is the answer and nothing else, else 0."""
    return float(text.endswith(END) and text.strip() == answer)
