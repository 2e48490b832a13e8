"""Counts of one rank until the trainer logs a step of its optimiser."""

from __future__ import annotations

import collections
import math
import warnings
from typing import Any, Counter, Dict, Iterable, Optional

import torch

from sis._corrections import CorrectionTotals
from sis._evaluation import Evaluation, Totals
from sis._records import MissingReason, TopKRecords
from sis._step_metrics import missing_counts, missing_shares, step_metrics

_INCOMPLETE = "incomplete"


class StepCounts:
    """Counts of this rank since the last step."""

    def __init__(self, observed: Iterable[str] = ()) -> None:
        """observed: names of the corrections that are observed."""
        self._observed = tuple(observed)
        self._told = False
        self.clear()

    def clear(self) -> None:
        """Counts from 0 again."""
        # Sum over positions, scored and missing ones, of the optimiser steps since they were generated; None if
        # the trainer does not count them.
        self.staleness: Optional[int] = None
        # By field of Totals, by reason, and by name and field of a correction.
        fields = [(name, field) for name in self._observed for field in vars(CorrectionTotals())]
        keys = [*vars(Totals()), *MissingReason, *fields, _INCOMPLETE]
        self._sums: Counter[Any] = collections.Counter(dict.fromkeys(keys, 0))

    def add(self, evaluation: Optional[Evaluation], positions: int) -> None:
        """Adds an evaluation of positions of which `positions` count. None: no server answered, and they are
        missing without a reason."""
        if evaluation is None:
            self._sums["missing"] += positions
            return
        self._sums.update(vars(evaluation.totals))
        self._sums.update(missing_counts(evaluation.missing))
        for name in self._observed:
            self._sums.update({(name, field): value for field, value in vars(evaluation.corrections[name]).items()})

    def add_replayed(self, records: TopKRecords, complete: torch.Tensor, mask: Optional[torch.Tensor] = None) -> None:
        """Counts recorded positions whose record may lack tokens that the sampler kept. Warns once.

        Args:
            records: Records of N positions.
            complete: bool [N], of sis.torch.Replayed.
            mask: bool [N] on the CPU, the positions that count; None: all.
        """
        lacking = ~complete.cpu() & torch.from_numpy(records.ids[:, 0] >= 0)
        count = int((lacking if mask is None else lacking & mask).sum())
        self._sums[_INCOMPLETE] += count
        if count and not self._told:
            self._told = True
            warnings.warn(
                f"SIS: of {count} of {len(records)} positions the {records.ids.shape[1]} recorded tokens are not known "
                "to be all that the sampler kept: there ratios are of the whole current policy to a truncated one, so "
                "too small. Record more (top_k of SisConfig), or filter more; sis/incomplete counts them",
                RuntimeWarning,
                stacklevel=3,
            )

    def metrics(self, device: Any = None, truncated: bool = False) -> Dict[str, float]:
        """Returns metrics of the step by name, NaN where there is nothing, and counts from 0 again.

        Args:
            device: Where the ranks of torch.distributed add their numbers up; all must call this. None: metrics of this
                rank.
            truncated: Whether rollouts are filtered: adds "incomplete", a number.
        """
        everywhere = torch.tensor([*self._sums.values(), self.staleness or 0], dtype=torch.float64)
        if device is not None:
            everywhere = everywhere.to(device)
            torch.distributed.all_reduce(everywhere)
        *numbers, stale = everywhere.tolist()
        sums = dict(zip(self._sums, numbers))
        totals = Totals(**{field: sums[field] for field in vars(Totals())})
        metrics = {**step_metrics(totals), **missing_shares(sums, totals)}
        for name in self._observed:
            fields = {field: sums[name, field] for field in vars(CorrectionTotals())}
            metrics.update(_observed(name, CorrectionTotals(**fields)))
        seen = totals.scored + totals.missing
        if self.staleness is not None:
            metrics["staleness"] = stale / seen if seen else math.nan
        if truncated:
            metrics[_INCOMPLETE] = sums[_INCOMPLETE]
        self.clear()
        return metrics


def _observed(name: str, totals: CorrectionTotals) -> Dict[str, float]:
    values = {
        "touched": totals.touched,
        "zeroed": totals.zeroed,
        "d": totals.abs_log_weight,
        "effective": totals.effective_sample_size,
    }
    return {
        f"{name}/{key}": value / totals.positions if totals.positions else math.nan for key, value in values.items()
    }
