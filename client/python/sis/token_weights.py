"""What a trainer makes of decisions: old log-probs and advantages for a loss that knows nothing of SIS."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Optional, Tuple, Union

if TYPE_CHECKING:
    # Settings are read where there is no PyTorch too.
    import torch

# exp32 of more is limited to that of it (docs/algorithms.md).
_LARGEST_LOG_RATIO = 88.0
# Nats. Lower values are an engine's word for -inf, as in sis.engines.adapter.
_LOWEST_LOG_PROB = -1000.0


class Decided(NamedTuple):
    """Of tokens, all of one shape and without gradients."""

    # Nats: of the current policy, and as they were sampled with.
    log_probs: torch.Tensor
    sampling: torch.Tensor
    # bool, and acceptance probabilities. False and 0 where nothing is recorded, or no server answers.
    accepted: torch.Tensor
    probabilities: torch.Tensor

    def usable(self) -> Decided:
        """Returns the same with the current log-prob where the sampler gave none, such as NaN or -9999. Such
        tokens have no ratio, and weigh 1."""
        known = self.sampling.isfinite() & (self.sampling >= _LOWEST_LOG_PROB)
        return self._replace(sampling=self.sampling.where(known, self.log_probs))


def check_sets(sets: str) -> None:
    """Raises ValueError unless `sets`, whose most probable tokens are recorded, is "engine" or "trainer"."""
    if sets not in ("engine", "trainer"):
        raise ValueError(f"sets is {sets!r}, must be 'engine' or 'trainer'")


def check_cispo(arguments: Any) -> None:
    """Raises ValueError if these arguments of TRL or ms-swift limit weights to less than 1 by loss_type "cispo"."""
    limit = arguments.epsilon if arguments.epsilon_high is None else arguments.epsilon_high
    if arguments.loss_type == "cispo" and limit < 1:
        raise ValueError(
            f"epsilon_high is {limit} (epsilon, where it is not set): 'cispo' limits weights to it, "
            "and those of accepted tokens are 1. Set epsilon_high to at least 1"
        )


@dataclass(frozen=True)
class TokenWeights:
    """Settings of the same names in all trainers; docs/algorithms.md has the formulas. Here w is the importance
    ratio, a the acceptance probability; outward is a token that has already moved the way its advantage pushes."""

    # "sampled": an accepted token weighs 1, any other w. "expected": every token weighs a + (1 - a) w.
    weight: str = "sampled"
    # Outward tokens weigh a times as much.
    soft_acceptance: bool = False
    # Every token weighs min(w, 1), an outward one a times as much: nothing is drawn. "without_sets": with
    # min(w, 1/w) in the place of a, which needs no record.
    damped_truncation: Union[bool, str] = False

    def __post_init__(self) -> None:
        if self.weight not in ("sampled", "expected"):
            raise ValueError(f"weight is {self.weight!r}, must be 'sampled' or 'expected'")
        if self.damped_truncation not in (False, True, "without_sets"):
            raise ValueError(f"damped_truncation is {self.damped_truncation!r}, must be True, False or 'without_sets'")
        if self.damped_truncation and self.soft_acceptance:
            raise ValueError(
                "damped_truncation and soft_acceptance are both on, and each is a rule of its own: set one"
            )
        if self.damped_truncation and self.weight != "sampled":
            raise ValueError(
                f"weight is {self.weight!r}, but damped_truncation weighs by the importance ratio itself: leave it out"
            )

    @staticmethod
    def of(settings: Any) -> TokenWeights:
        """Of what has these settings among others."""
        return TokenWeights(settings.weight, settings.soft_acceptance, settings.damped_truncation)

    @property
    def rule(self) -> Optional[str]:
        """The setting that takes the place of the loss's clip, if one does."""
        if self.damped_truncation:
            return "damped_truncation"
        return "soft_acceptance" if self.soft_acceptance else None

    @property
    def outputs(self) -> Tuple[str, ...]:
        """Of Client.evaluate, that are needed for it."""
        if self.weight == "sampled" and self.rule is None:
            return ("accepted",)
        return ("accepted", "acceptance_probabilities")

    def old_log_probs(self, of: Decided) -> torch.Tensor:
        """What makes exp(log_probs - it) the weight of every token. With a rule that is 1: a ratio that no loss
        clips, and where each has the gradient of advantage * log p."""
        if self.rule is not None:
            return of.log_probs
        of = of.usable()
        if self.weight == "sampled":
            return of.log_probs.where(of.accepted, of.sampling)
        mean = of.probabilities + (1 - of.probabilities) * (of.log_probs - of.sampling).exp()
        return (of.log_probs - mean.log()).where(of.probabilities > 0, of.sampling)

    def advantages(self, of: Decided, advantages: torch.Tensor) -> torch.Tensor:
        """With a rule, times its coefficients; else as they are. advantages: of the same shape, or broadcast to
        it."""
        if self.rule is None:
            return advantages
        of = of.usable()
        ratio = (of.log_probs - of.sampling).clamp(max=_LARGEST_LOG_RATIO).exp()
        if self.damped_truncation:
            # Where there is no ratio, as in padding, 1 too.
            weight = ratio.masked_fill(~(ratio < 1), 1.0)
        elif self.weight == "sampled":
            weight = ratio.masked_fill(of.accepted, 1.0)
        else:
            weight = of.probabilities + (1 - of.probabilities) * ratio
        outward = (ratio - 1) * advantages > 0
        damped = ratio.minimum(1 / ratio) if self.damped_truncation == "without_sets" else of.probabilities
        return advantages * (weight * damped).where(outward, weight)
