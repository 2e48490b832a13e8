"""What the demonstration runs, in numbers."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Settings:
    # Every seed is one run of each arm.
    seed: int = 1
    seeds: int = 8
    # Hexadecimal digits of each summand.
    digits: int = 3

    # The warm-up ends at this accuracy, of samples at temperature 1, or after so many seconds.
    warm_up_accuracy: float = 0.3
    warm_up_seconds: float = 100
    warm_up_batch: int = 128
    warm_up_learning_rate: float = 2e-3
    # Leaves the policy something to explore, and V_K something to leave out.
    label_smoothing: float = 0.1

    # A rollout is `prompts` problems with `group` responses each, and is used for `updates`
    # mini-batches in one pass.
    rollouts: int = 60
    prompts: int = 64
    group: int = 8
    updates: int = 16
    learning_rate: float = 3e-4
    clip: float = 0.2
    top_k: int = 10

    # From the start of the warm-up on. No further seed is begun that would not end in time, and
    # training stops then.
    seconds: float = 270

    @property
    def responses(self):
        """In one rollout."""
        return self.prompts * self.group
