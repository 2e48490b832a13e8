"""The arms that are compared."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Arm:
    name: str
    # The run's id.
    slug: str
    use_sis: bool


ARMS = (Arm("GRPO", "grpo", False), Arm("GRPO + SIS", "grpo-sis", True))
