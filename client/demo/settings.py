"""What the demonstration runs, in numbers."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Settings:
    # Every seed is one run of each arm.
    seed: int = 1
    seeds: int = 16
    # Hexadecimal digits of each summand.
    digits: int = 3
    # Where supervision ends and reinforcement begins: the share of sampled answers that are right,
    # at least: it is looked at every 25 steps.
    warm_up_accuracy: float = 0.3

    # A rollout is `prompts` problems with `group` responses each, and is used for `updates`
    # mini-batches in one pass.
    rollouts: int = 30
    prompts: int = 64
    group: int = 8
    updates: int = 16
    learning_rate: float = 3e-4
    top_k: int = 10

    # From the start of the warm-up on. No further seed is begun that would not end in time, and
    # training stops then.
    seconds: float = 270

    @property
    def responses(self):
        """In one rollout."""
        return self.prompts * self.group
