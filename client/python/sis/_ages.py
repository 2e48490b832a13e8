"""Totals of a step by the age of its tokens."""

from __future__ import annotations

import functools
import math
import operator
from dataclasses import dataclass, replace
from typing import Dict, Iterable, Optional, Sequence, Tuple

from sis.v1 import ratio_service_pb2 as pb
from sis._totals import Scored, Weighed
from sis._wire.messages import read

# Tokens of a class; the advice ignores smaller ones.
_ENOUGH_TOKENS = 100
_SUMS = ("accepted", "rejected", "outside_top_k", "d", "d_sis", "weight", "weight_squared")


@dataclass(frozen=True)
class AgeTotals(Scored, Weighed):
    """Sums over the scored positions whose records were [from_, to] policy versions behind the current one when they
    were evaluated. Rates and means are NaN without positions.

    Attributes:
        from_: Fewest policy versions behind.
        to: Most policy versions behind. None: no bound.
        ahead: Whether the positions are of versions newer than the current one; then from_ and to are 0.
        accepted: Accepted positions.
        rejected: Rejected positions.
        outside_top_k: Positions whose token is not in V_k.
        d: Sum of D, nats.
        d_sis: Sum of D_SIS, nats.
        weight: Sum of the modified ratios.
        weight_squared: Sum of their squares.
        accept_rate: Share of scored positions that were accepted.
        mean_d: Mean of D, nats.
        mean_d_sis: Mean of D_SIS, nats.
    """

    from_: int = 0
    to: Optional[int] = None
    ahead: bool = False
    accepted: int = 0
    rejected: int = 0
    outside_top_k: int = 0
    d: float = 0.0
    d_sis: float = 0.0
    weight: float = 0.0
    weight_squared: float = 0.0

    @staticmethod
    def from_proto(totals: pb.AgeTotals) -> AgeTotals:
        return read(AgeTotals, totals, from_=getattr(totals, "from"))

    def __add__(self, other: AgeTotals) -> AgeTotals:
        return replace(self, **{name: getattr(self, name) + getattr(other, name) for name in _SUMS})

    @property
    def name(self) -> str:
        """The name of the class in metrics: "0", "4-7", "16+" or "ahead"."""
        if self.ahead:
            return "ahead"
        if self.to is None:
            return f"{self.from_}+"
        return str(self.to) if self.from_ == self.to else f"{self.from_}-{self.to}"


@dataclass(frozen=True)
class StalenessLimit:
    """Effect of a max_staleness on some steps."""

    # None: no limit.
    max_staleness: Optional[int]
    # Share of scored tokens left out. Share of known sequences that lose all tokens; NaN if none is known.
    tokens_left_out: float
    sequences_left_out: float
    # Shares of the tokens that are left, and nats.
    accept_rate: float
    d: float
    effective_sample_size: float


@dataclass(frozen=True)
class AgeAdvice:
    # Sentences; empty if nothing was scored.
    text: str = ""
    # The advised limit. None: none is advised.
    max_staleness: Optional[int] = None
    # Without a limit, then from the largest to the smallest that leaves tokens out; empty if no token is behind.
    limits: Tuple[StalenessLimit, ...] = ()


def age_advice(steps: Sequence[Iterable[AgeTotals]], sequences: Sequence[int] = ()) -> AgeAdvice:
    """Finds the age from which on most tokens are not accepted, and the effect of age limits.

    Args:
        steps: Step.ages of the steps to judge by.
        sequences: The age of the youngest token of each known sequence, in versions.
    """
    by_class: Dict[Tuple[bool, int], AgeTotals] = {}
    for age in (age for ages in steps for age in ages if age.scored):
        key = age.ahead, age.from_
        by_class[key] = by_class[key] + age if key in by_class else age
    ages = [by_class[key] for key in sorted(by_class)]
    if not ages:
        return AgeAdvice()
    limits = []
    # Tokens ahead of the current version are in every sum.
    ahead = [age for age in ages if age.ahead]
    behind = ages[: len(ages) - len(ahead)]
    everything = functools.reduce(operator.add, ages)
    for count in range(len(behind), 0, -1):
        left = functools.reduce(operator.add, [*ahead, *behind[:count]])
        # A whole class, so its sums are exact.
        limit = None if count == len(behind) else behind[count].from_ - 1
        old = sum(limit is not None and youngest > limit for youngest in sequences)
        limits.append(
            StalenessLimit(
                limit,
                1 - left.scored / everything.scored,
                old / len(sequences) if sequences else math.nan,
                left.accept_rate,
                left.mean_d,
                left.effective_sample_size / left.scored,
            )
        )
    half = next((age for age in behind if age.scored >= _ENOUGH_TOKENS and age.accept_rate < 0.5), None)
    advised = None if half is None else next((each for each in limits if each.max_staleness == half.from_ - 1), None)
    return AgeAdvice(
        _text(half, advised, everything, len(steps)),
        None if advised is None else advised.max_staleness,
        tuple(limits) if len(limits) > 1 else (),
    )


def _text(half: Optional[AgeTotals], limit: Optional[StalenessLimit], everything: AgeTotals, steps: int) -> str:
    """half: The youngest age of which less than half is accepted. limit: The one below it."""
    scored = everything.scored
    of = f"of the {scored} tokens of the last {steps} steps" if steps > 1 else f"of {scored} tokens"
    if half is None:
        return f"At every age at least half {of} are accepted."
    found = f"At age {half.name}, in policy versions, {half.accept_rate:.1%} are accepted: less than half."
    if limit is None:
        return f"{found} There are no younger tokens, so max_staleness does not help."
    return (
        f"{found} max_staleness {limit.max_staleness} would leave out {limit.tokens_left_out:.1%} {of}; of the others "
        f"{limit.accept_rate:.1%} are accepted, and without it {everything.accept_rate:.1%} of all."
    )
