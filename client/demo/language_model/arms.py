"""The arms that are compared."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Arm:
    name: str
    # The run's id, and what arm.py calls it.
    slug: str


ARMS = (Arm("GRPO", "grpo"), Arm("GRPO + SIS", "grpo-sis"))
