"""What was measured, arm by arm."""

import dataclasses
from typing import Dict, List, Optional

import numpy as np

from client.demo.language_model.arms import ARMS
from client.demo.language_model.settings import Settings


@dataclasses.dataclass(frozen=True)
class Results:
    settings: Settings
    # By arm as in ARMS, then by update: what arm.py says of it.
    updates: List[List[Dict[str, Optional[float]]]]
    # A few lines of the server's /metrics.
    metrics: List[str]

    @property
    def rollouts(self):
        """Those that both arms have used up."""
        return min(map(len, self.updates)) // self.settings.updates

    def by_update(self, arm, name):
        """[rollouts, updates]"""
        used = self.updates[arm][: self.rollouts * self.settings.updates]
        return np.array([update[name] for update in used], np.float64).reshape(self.rollouts, -1)

    def by_rollout(self, arm, name):
        """[rollouts]: what is known when a rollout is made."""
        first = self.updates[arm][: self.rollouts * self.settings.updates : self.settings.updates]
        return np.array([update[name] for update in first], np.float64)

    @property
    def compared(self):
        """So many rollouts are the first ones, and the last ones."""
        return max(1, self.rollouts // 4)


def table(results):
    """Rows of text: a heading, then one row per quantity with a cell per arm."""
    rows = [["", *(arm.name for arm in ARMS)]]

    def row(name, form, value):
        rows.append([name, *(form.format(value(arm)) for arm in range(len(ARMS)))])

    def mean(name):
        return lambda arm: results.by_update(arm, name).mean()

    row("accept rate", "{:.1%}", mean("accept_rate"))
    row("D, nats per token", "{:.4f}", mean("d"))
    row("D_SIS, nats per token", "{:.4f}", mean("d_sis"))
    row(
        "D of the first update of a rollout, the engine's mismatch",
        "{:.4f}",
        lambda arm: results.by_update(arm, "d")[:, 0].mean(),
    )
    row(f"residual mass, K = {results.settings.top_k}", "{:.2%}", mean("residual_mass"))
    few = results.compared
    row(f"reward, first rollouts ({few})", "{:.3f}", lambda arm: results.by_rollout(arm, "reward")[:few].mean())
    row(f"reward, last rollouts ({few})", "{:.3f}", lambda arm: results.by_rollout(arm, "reward")[-few:].mean())
    return rows


def verdict(results):
    """What the numbers say about the reward, and no more."""
    few = results.compared
    rewards = [results.by_rollout(arm, "reward") for arm in range(len(ARMS))]
    without, with_sis = (f"{reward[:few].mean():.2f} to {reward[-few:].mean():.2f}" for reward in rewards)
    return (
        f"The reward went from {without} without SIS and from {with_sis} with it. The last ones differ by "
        f"{rewards[1][-few:].mean() - rewards[0][-few:].mean():+.3f}: one seed can't tell that from chance."
    )
