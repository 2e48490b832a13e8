"""What to use, by what the second confirming study shows: a rule that was fixed before its runs
were complete. confirmation.template has it in words."""

import dataclasses
from typing import Dict, Iterable, List, Tuple

GRPO, TIS = "grpo", "grpo+tis2"
WITHOUT_SETS, WITH_SETS = "damped_truncation+without_sets", "damped_truncation"
# Ours: that without sets, those without a draw, that with one.
RULES = (WITHOUT_SETS, WITH_SETS, "soft_acceptance+expected", "soft_acceptance+sampled")


@dataclasses.dataclass(frozen=True)
class Situation:
    # Of each of ours the forward passes of the trainer over the rollout: 0 or 1.
    passes: Dict[str, int]
    # (arm, arm that it is compared with) -> intervals.Difference.verdict. None with TIS where TIS
    # is GRPO.
    verdicts: Dict[Tuple[str, str], str]

    def instead_of(self, has: str) -> str:
        """What those use who have GRPO, and no pass to spare, or TIS: another arm, or that one."""
        free = [arm for arm in RULES if self.passes[arm] == 0]
        if has == GRPO:
            return self._cheapest(self._that_are("higher", GRPO, free), GRPO)
        lower = self._that_are("lower", GRPO, RULES)
        others = [arm for arm in RULES if arm not in lower]
        higher = self._that_are("higher", TIS, others)
        as_good = self._that_are("as good as", TIS, [arm for arm in others if arm in free])
        # What lies above TIS and below GRPO shows that GRPO is higher than TIS.
        grpo_is_higher = GRPO if self._that_are("higher", TIS, lower) else ""
        return (
            self._cheapest(self._that_are("higher", GRPO, higher))
            or grpo_is_higher
            or self._cheapest(higher)
            or self._cheapest(self._that_are("higher", GRPO, as_good))
            or self._cheapest(as_good, TIS)
        )

    def _that_are(self, verdict: str, base: str, arms: Iterable[str]) -> List[str]:
        return [arm for arm in arms if self.verdicts[arm, base] == verdict]

    def _cheapest(self, arms: List[str], without_any: str = "") -> str:
        if not arms:
            return without_any
        chosen = min(arms, key=lambda arm: (self.passes[arm], RULES.index(arm)))
        if chosen == WITHOUT_SETS and WITH_SETS in arms:
            # Sets cost something, and must be shown to be worth it.
            if self.verdicts[WITH_SETS, WITHOUT_SETS] == "higher":
                return WITH_SETS
        return chosen
