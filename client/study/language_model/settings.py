"""What every run of the study has in common, in numbers; the design says what differs."""

import dataclasses
import math
from typing import Dict


@dataclasses.dataclass(frozen=True)
class Settings:
    # "+" or "-" between two numbers from `smallest` to `largest`, for "-" the larger one first.
    # `held_out` of the problems are for evaluation only.
    operation: str = "-"
    smallest: int = 10
    largest: int = 49
    held_out: int = 100

    # A rollout is `prompts` problems with `group` responses of at most `tokens` tokens each: a
    # space, two digits and the end of the line. It is used for `updates` mini-batches in one pass.
    rollouts: int = 24
    prompts: int = 16
    group: int = 8
    tokens: int = 4
    updates: int = 4
    learning_rate: float = 1e-5
    top_k: int = 20
    # What generates in the trainer's process: "transformers", or "vllm".
    engine: str = "transformers"
    # The trainer multiplies in bfloat16; its weights are float32.
    bf16: bool = True
    # The policy's own reward is measured every so many rollouts, and at the end.
    evaluated: int = 6
    # It ends after the rollout in which they are over, if there are more.
    seconds: float = math.inf

    @staticmethod
    def of(words: Dict[str, str]) -> "Settings":
        """As a design has them. KeyError or ValueError if there is no such setting or value."""
        parsers = {field.name: type(field.default) for field in dataclasses.fields(Settings)}
        parsers["bf16"] = {"true": True, "false": False}.__getitem__
        return Settings(**{name: parsers[name](value) for name, value in words.items()})

    @property
    def responses(self) -> int:
        """In one rollout."""
        return self.prompts * self.group
