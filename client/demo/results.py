"""What was measured, arm by arm and seed by seed."""

import dataclasses
import math
from typing import List, Tuple

import numpy as np

from client.demo import trainer
from client.demo.arms import ARMS, PANELS, Arm
from client.demo.settings import Settings
from client.study.report import intervals


def total(totals, name):
    """The sum of one field over several sis.Totals."""
    return sum(getattr(part, name) for part in totals)


def scored(totals):
    return sum(part.scored for part in totals)


@dataclasses.dataclass(frozen=True)
class Results:
    settings: Settings
    # By seed, then by arm as in ARMS, then by rollout.
    learned: List[List[List[trainer.Learned]]]
    # A few lines of the server's /metrics.
    metrics: List[str]

    @property
    def rollouts(self):
        """What every run reached. Less than planned if the time was up."""
        return min(len(run) for seed in self.learned for run in seed)

    def _runs(self, arm):
        """By seed, then by rollout."""
        index = ARMS.index(arm)
        return [seed[index][: self.rollouts] for seed in self.learned]

    def by_rollout(self, arm, value):
        """float64 [seeds, rollouts] of value(Learned)."""
        return np.array([[value(item) for item in run] for run in self._runs(arm)], np.float64)

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
                for updates in zip(*(item.updates for item in run))
            ]
            for run in self._runs(arm)
        ])

    def by_top_k(self, arm, name):
        """[seeds, K]: mean of `expected_acceptance` or `residual_mass` per token, over the last
        updates of all rollouts."""
        return np.array([
            [
                total(points, name) / scored([item.updates[-1] for item in run])
                for points in zip(*(item.by_top_k for item in run))
            ]
            for run in self._runs(arm)
        ])

    def mean_reward(self, arm):
        """[seeds]: over all rollouts. What arms are compared by: it is known better than the
        reward at the end."""
        return self.reward(arm).mean(axis=1)

    def final_reward(self, arm):
        """[seeds]: mean over the last sixth of the rollouts."""
        return self.reward(arm)[:, -self.last_rollouts:].mean(axis=1)

    @property
    def last_rollouts(self):
        return max(1, self.rollouts // 6)

    def difference(self, arm, base):
        """Of the mean rewards, arm less base, an intervals.Difference. Seeds are paired: all arms
        saw the same problems."""
        return intervals.of_differences(self.mean_reward(arm) - self.mean_reward(base))


def comparisons() -> List[Tuple[str, Arm, Arm]]:
    """Name of the panel, arm, and the arm that it is compared with: the first of the panel, and
    where log-probs are recomputed that, too."""
    found = []
    for panel in PANELS:
        first, *others = panel.arms
        found += [(panel.name, arm, first) for arm in others]
        for base in others:
            if base.recomputes:
                found += [(panel.name, arm, base) for arm in others if arm != base]
    return found


def spread(values, form):
    """The mean over seeds and, of several, the range: "0.81 (0.79 to 0.84)"."""
    text = form.format(np.mean(values))
    if len(values) > 1:
        text += f" ({form.format(np.min(values))} to {form.format(np.max(values))})"
    return text


def table(results, panel):
    """Rows of text: a heading, then one row per quantity with a cell per arm of the panel."""
    rows = [[panel.name, *(arm.name for arm in panel.arms)]]

    def row(name, values):
        rows.append([name, *(values(arm) for arm in panel.arms)])

    row("reward of the first rollout", lambda arm: spread(results.reward(arm)[:, 0], "{:.3f}"))
    row("mean reward of all rollouts", lambda arm: spread(results.mean_reward(arm), "{:.3f}"))
    row(f"reward, last {results.last_rollouts} rollouts", lambda arm: spread(results.final_reward(arm), "{:.3f}"))
    row("accept rate", lambda arm: spread(results.accept_rate(arm).mean(axis=1), "{:.1%}"))
    row("D, nats per response", lambda arm: spread(results.deviation(arm, "d").mean(axis=1), "{:.3f}"))
    row("D_SIS, nats per response", lambda arm: spread(results.deviation(arm, "d_sis").mean(axis=1), "{:.3f}"))
    row(
        f"residual mass, K = {results.settings.top_k}",
        lambda arm: spread(results.by_top_k(arm, "residual_mass")[:, -1], "{:.2%}"),
    )
    return rows


def verdict(difference, arm, base):
    """What an interval says about two arms, and no more."""
    mean, half = difference.mean, difference.half
    if math.isnan(half):
        return f"{arm.name} less {base.name}: {mean:+.3f}; one seed can't tell that from chance."
    said = {
        1: f"{arm.name} is higher than {base.name}",
        -1: f"{arm.name} is lower than {base.name}",
        0: f"{arm.name} can't be told apart from {base.name}",
    }[difference.sign]
    return f"{said}: {mean:+.3f}, 95% interval {mean - half:+.3f} to {mean + half:+.3f}."


def verdicts(results):
    """By name of the panel, in order: its sentences."""
    sentences = {}
    for panel, arm, base in comparisons():
        sentences.setdefault(panel, []).append(verdict(results.difference(arm, base), arm, base))
    return sentences


def basis(results):
    """What the sentences rest on."""
    count = len(results.learned)
    seeds = "one seed" if count == 1 else f"{count} paired seeds"
    return (
        f"Of the mean reward of {results.rollouts} rollouts ({results.rollouts * results.settings.updates} updates) as "
        f"the worker generated them, over {seeds} from one warmed-up start. Every interval is 95% by itself; among "
        f"{len(comparisons())} one may well miss by chance. The study (docs/study.md) has another outcome, the answers of "
        "the trainer's own weights after twice as many updates, and many more seeds and cells."
    )
