"""What the demonstration with a language model runs, in numbers."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Settings:
    seed: int = 1
    # Both summands are between 1 and this.
    largest: int = 20

    # A rollout is `prompts` problems with `group` responses of at most `tokens` tokens each: a space, two digits and the
    # end of the line. It is used for `updates` mini-batches in one pass.
    prompts: int = 8
    group: int = 8
    tokens: int = 4
    updates: int = 4
    learning_rate: float = 1e-5
    top_k: int = 20

    # From the start on, with loading. Training stops after the update in which it is reached.
    seconds: float = 720

    @property
    def responses(self):
        """In one rollout."""
        return self.prompts * self.group
