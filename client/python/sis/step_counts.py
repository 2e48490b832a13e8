"""What a trainer counts on each rank until it logs a step of its optimiser."""

from __future__ import annotations

import collections
import math
import warnings
from typing import Callable, Counter, Dict, List, Optional

import torch

from sis.evaluation import Evaluation, Totals
from sis.records import MissingReason, TopKRecords
from sis.step_metrics import missing_counts, missing_shares, step_metrics


class StepCounts:
    """Of this rank, since the last step."""

    def __init__(self, *others: str) -> None:
        """`others`: names of further sums over positions, scored and missing ones, of which means are
        logged too."""
        self._names = others
        self._told = False
        self.clear()

    def clear(self) -> None:
        self.others = dict.fromkeys(self._names, 0)
        self._totals = Totals()
        self._missing: Counter[MissingReason] = collections.Counter()
        self._incomplete = 0

    def add(self, evaluation: Optional[Evaluation], positions: int) -> None:
        """evaluation: of so many positions that count; None: no server answered, and they are missing, without
        a reason."""
        self._totals += Totals(missing=positions) if evaluation is None else evaluation.totals
        self._missing.update({} if evaluation is None else missing_counts(evaluation.missing))

    def add_replayed(self, records: TopKRecords, complete: torch.Tensor, mask: Optional[torch.Tensor] = None) -> None:
        """Counts positions that were recorded, but not known with all that the sampler kept. Warns once.
        complete: of sis.torch.Replayed. mask: bool [N], on the CPU, of those that count; None: all."""
        lacking = ~complete.cpu() & torch.from_numpy(records.ids[:, 0] >= 0)
        count = int((lacking if mask is None else lacking & mask).sum())
        self._incomplete += count
        if count and not self._told:
            self._told = True
            warnings.warn(
                f"SIS: of {count} of {len(records)} positions the {records.ids.shape[1]} recorded tokens are not known "
                "to be all that the sampler kept: there ratios are of the whole current policy to a truncated one, so "
                "too small. Record more (top_k of SisConfig, or of rollout.custom.sis), or filter more; sis/incomplete "
                "counts them",
                RuntimeWarning,
                stacklevel=3,
            )

    def metrics(self, summed: Callable[[List[float]], List[float]], truncated: bool) -> Dict[str, float]:
        """Of all ranks, whose numbers `summed` adds up: step_metrics, missing_shares, the means of others and, if
        rollouts are truncated, "incomplete", a number. NaN where there is nothing. Counts from 0 again."""
        own = [*vars(self._totals).values(), *(self._missing[reason] for reason in MissingReason)]
        numbers = iter(summed([*own, *self.others.values(), self._incomplete]))
        totals = Totals(*(next(numbers) for _ in vars(self._totals)))
        missing = {reason: next(numbers) for reason in MissingReason}
        seen = totals.scored + totals.missing
        metrics = {**step_metrics(totals), **missing_shares(missing, totals)}
        metrics.update({name: next(numbers) / seen if seen else math.nan for name in self.others})
        if truncated:
            metrics["incomplete"] = next(numbers)
        self.clear()
        return metrics
