"""Recordings to make faults of: of real engines, and of a model whose whole distributions are known.

A recording is a list of responses, a response a list of positions.
"""

import dataclasses
import itertools
import json
import math
import os
import pathlib
import random

from sis.diagnose import read_file

TESTDATA = pathlib.Path("client/python/tests/diagnose/testdata")
# Folder with recordings of further models, which the repository does not hold; None without it.
RECORDED = os.environ.get("SIS_RECORDED_DATA")
RESPONSES = 8


@dataclasses.dataclass
class Position:
    """One generated token, as an engine reports it. Log-probs in nats; lists are sorted, most probable first."""

    token: int
    log_prob: float
    top: list[tuple[int, float]]


@dataclasses.dataclass
class Base:
    """A recording without a fault, and how the logits of another engine differ from it."""

    responses: list[list[Position]]
    noise: list[float]  # differences of log-probs, nats, to be drawn from

    def __post_init__(self):
        self.noise = [value for value in self.noise if value != 0]


def as_text(responses):
    """As chat completions are, a response a line."""

    def content(position):
        return {
            "id": position.token,
            "token": f"t{position.token}",
            "logprob": position.log_prob,
            "top_logprobs": [{"id": i, "token": f"t{i}", "logprob": value} for i, value in position.top],
        }

    return "\n".join(json.dumps({"logprobs": {"content": list(map(content, response))}}) for response in responses)


def _read(path):
    """The responses of a file whose tokens have ids."""
    file = read_file(str(path))
    numbers = [token.id for token in file.tokens]
    listed = zip((numbers[token] for token in file.listed.tolist()), file.log_probs.tolist())
    tops = [sorted(itertools.islice(listed, count), key=lambda t: -t[1]) for count in file.counts.tolist()]
    # As engines write minus infinity.
    own = (max(-9999.0, value) for value in file.sampled_log_probs.tolist())
    positions = map(Position, (numbers[token] for token in file.sampled.tolist()), own, tops)
    return [list(itertools.islice(positions, length)) for length in file.lengths.tolist()]


def _differences(a, b):
    """Returns the differences of log-probs that both list, less their mean: a normaliser does not hide these."""
    differences = []
    for left, right in zip(a, b):
        others = dict(right.top)
        pairs = [(value, others[i]) for i, value in left.top if i in others]
        mean = sum(y - x for x, y in pairs) / max(1, len(pairs))
        differences += [y - x - mean for x, y in pairs] if len(pairs) > 1 else []
        if left.token != right.token:
            break
    return differences


def _large_model(name):
    """One long text on two devices, cut into responses. They soon sample different tokens, so the GPU's recording
    only gives the size of the noise. Gemma gets Qwen's noise, because its devices share just nine positions."""
    folder = pathlib.Path(RECORDED)
    (text,) = _read(folder / f"{name}_cpu.json")
    length = len(text) // RESPONSES
    (cpu,), (cuda,) = (_read(folder / f"qwen-3-1-7b_{device}.json") for device in ("cpu", "cuda"))
    return Base([text[i * length : (i + 1) * length] for i in range(RESPONSES)], _differences(cpu, cuda))


def _small_model():
    a, b = (_read(TESTDATA / f"smollm2_{engine}.jsonl") for engine in ("float32", "bfloat16"))
    return Base(a, [value for pair in zip(a, b, strict=True) for value in _differences(*pair)])


VOCABULARY = 600
LISTED = 20


def _synthetic():
    """Zipf's law for all tokens, a few that the context prefers, and at most positions one that it all but demands, as
    after training."""
    rng = random.Random(5)

    def response():
        positions = []
        for _ in range(100):
            logits = [-1.1 * math.log(rank + 2) + 0.7 * rng.gauss(0, 1) for rank in range(VOCABULARY)]
            for _ in range(8):
                logits[int(VOCABULARY ** rng.random()) - 1] += 3 * rng.random()
            logits[int(VOCABULARY ** rng.random()) - 1] += rng.choice([2, 5, 8, 10])
            peak = max(logits)
            total = peak + math.log(sum(math.exp(value - peak) for value in logits))
            log_probs = [value - total for value in logits]
            token = rng.choices(range(VOCABULARY), [math.exp(value) for value in log_probs])[0]
            top = sorted(enumerate(log_probs), key=lambda t: -t[1])
            positions.append(Position(token, log_probs[token], top))
        return positions

    return Base([response() for _ in range(RESPONSES)], [rng.gauss(0, 0.03) for _ in range(4000)])


def bases():
    """By name."""
    found = {"synthetic": _synthetic(), "SmolLM2-135M": _small_model()}
    if RECORDED:
        found["Qwen3-1.7B"] = _large_model("qwen-3-1-7b")
        found["Gemma 3 270M"] = _large_model("gemma-3-270m")
    return found
