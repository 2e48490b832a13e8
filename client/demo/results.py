"""What was measured, arm by arm and seed by seed."""

import dataclasses
import math
from typing import List, Tuple

import numpy as np

from client.demo import trainer, warm_up
from client.demo.arms import ARMS
from client.demo.settings import Settings

# Student's t: 97.5 % quantiles by degrees of freedom, from 1 on.
_T = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26)


def total(totals, name):
    """The sum of one field over several sis.Totals."""
    return sum(getattr(part, name) for part in totals)


def scored(totals):
    return sum(part.scored for part in totals)


@dataclasses.dataclass(frozen=True)
class Results:
    settings: Settings
    warm_up: warm_up.WarmUp
    # By seed, then by arm as in ARMS, then by rollout.
    learned: List[List[List[trainer.Learned]]]
    # A few lines of the server's /metrics.
    metrics: List[str]

    @property
    def rollouts(self):
        """What every run reached. Less than planned if the time was up."""
        return min(len(run) for seed in self.learned for run in seed)

    def by_rollout(self, arm, value):
        """float64 [seeds, rollouts] of value(Learned)."""
        return np.array([[value(item) for item in seed[arm][: self.rollouts]] for seed in self.learned], np.float64)

    def accept_rate(self, arm):
        """[seeds, rollouts]"""
        return self.by_rollout(arm, lambda item: total(item.updates, "accepted") / scored(item.updates))

    def reward(self, arm):
        """[seeds, rollouts]"""
        return self.by_rollout(arm, lambda item: item.reward)

    def deviation(self, arm, name):
        """[seeds, rollouts]: `d` or `d_sis` in nats per response."""
        return self.by_rollout(arm, lambda item: total(item.updates, name) / item.responses)

    def accept_rate_by_staleness(self, arm):
        """[seeds, updates]: over all rollouts, by how many updates the policy is ahead of the
        behaviour policy."""
        return np.array([
            [
                total(updates, "accepted") / scored(updates)
                for updates in zip(*(item.updates for item in seed[arm][: self.rollouts]))
            ]
            for seed in self.learned
        ])

    def by_top_k(self, arm, name):
        """[seeds, K]: mean of `accepted` or `residual_mass` per token, over the last updates of all
        rollouts."""
        return np.array([
            [
                total(totals, name) / scored(totals)
                for totals in zip(*(item.by_top_k for item in seed[arm][: self.rollouts]))
            ]
            for seed in self.learned
        ])

    def final_reward(self, arm):
        """[seeds]: mean over the last sixth of the rollouts."""
        return self.reward(arm)[:, -self.last_rollouts:].mean(axis=1)

    @property
    def last_rollouts(self):
        return max(1, self.rollouts // 6)

    def difference(self) -> Tuple[float, float]:
        """Of the final rewards, with SIS less without: the mean over seeds, and half its 95 %
        interval (NaN if unknown).

        Seeds are paired: both arms saw the same problems.
        """
        differences = self.final_reward(1) - self.final_reward(0)
        if not 2 <= len(differences) <= len(_T) + 1:
            return float(differences.mean()), math.nan
        error = differences.std(ddof=1) / math.sqrt(len(differences))
        return float(differences.mean()), float(_T[len(differences) - 2] * error)


def spread(values, form):
    """The mean over seeds and, of several, the range: "0.81 (0.79 to 0.84)"."""
    text = form.format(np.mean(values))
    if len(values) > 1:
        text += f" ({form.format(np.min(values))} to {form.format(np.max(values))})"
    return text


def table(results):
    """Rows of text: a heading, then one row per quantity with a cell per arm."""
    rows = [["", *(arm.name for arm in ARMS)]]

    def row(name, values):
        rows.append([name, *(values(arm) for arm in range(len(ARMS)))])

    row("accept rate", lambda arm: spread(results.accept_rate(arm).mean(axis=1), "{:.1%}"))
    row("D, nats per response", lambda arm: spread(results.deviation(arm, "d").mean(axis=1), "{:.3f}"))
    row("D_SIS, nats per response", lambda arm: spread(results.deviation(arm, "d_sis").mean(axis=1), "{:.3f}"))
    row(
        f"residual mass, K = {results.settings.top_k}",
        lambda arm: spread(results.by_top_k(arm, "residual_mass")[:, -1], "{:.2%}"),
    )
    row("reward of the first rollout", lambda arm: spread(results.reward(arm)[:, 0], "{:.3f}"))
    row(f"reward, last {results.last_rollouts} rollouts", lambda arm: spread(results.final_reward(arm), "{:.3f}"))
    return rows


def verdict(results):
    """What the numbers say about the reward, and no more."""
    mean, half = results.difference()
    count = len(results.learned)
    if math.isnan(half):
        return f"The final reward differs by {mean:+.3f} with SIS. One seed can't tell that from chance."
    interval = f"{mean:+.3f} with SIS (95 % interval {mean - half:+.3f} to {mean + half:+.3f}, {count} paired seeds)"
    if abs(mean) <= half:
        return f"The final reward differs by {interval}: not to be told from chance here."
    return f"The final reward differs by {interval}: {'higher' if mean > 0 else 'lower'} with SIS in this experiment."
