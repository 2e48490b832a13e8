"""Makes old log-probs and advantages of decisions, for losses that do not know SIS."""

from __future__ import annotations

from typing import NamedTuple

import torch

from sis.engines._adapter import LOWEST_LOG_PROB
from sis.integrations._config import SisConfig

# exp32 of a larger value is limited to exp32 of this one (docs/algorithms.md).
_LARGEST_LOG_RATIO = 88.0


class Decided(NamedTuple):
    """Tokens and the service's decisions about them: tensors of one shape.

    Attributes:
        log_probs: float32, the current policy's log-probs, in nats.
        sampling: float32, the log-probs that the tokens were sampled with, in nats.
        accepted: bool. False where nothing is recorded or no server answers.
        probabilities: float32, acceptance probabilities; 0 where nothing is recorded or no server answers.
    """

    log_probs: torch.Tensor
    sampling: torch.Tensor
    accepted: torch.Tensor
    probabilities: torch.Tensor

    def usable(self) -> Decided:
        """Returns the same without gradients, and with the current log-prob where the sampler gave none, such as NaN or
        -9999. Such tokens have no ratio, and weigh 1."""
        log_probs = self.log_probs.detach()
        known = self.sampling.isfinite() & (self.sampling >= LOWEST_LOG_PROB)
        return self._replace(log_probs=log_probs, sampling=self.sampling.where(known, log_probs))

    def old_log_probs(self, config: SisConfig) -> torch.Tensor:
        """Returns the old log-probs, in nats, for which exp(log_probs - old) is the weight of every token.

        With a rule the weight is 1: no loss clips that ratio, and its gradient is that of advantage * log p.
        """
        if config.rule is not None:
            return self.log_probs.detach()
        of = self.usable()
        if config.weight == "sampled":
            return of.log_probs.where(of.accepted, of.sampling)
        mean = of.probabilities + (1 - of.probabilities) * (of.log_probs - of.sampling).exp()
        return (of.log_probs - mean.log()).where(of.probabilities > 0, of.sampling)

    def advantages(self, config: SisConfig, advantages: torch.Tensor) -> torch.Tensor:
        """Returns the advantages, times the rule's coefficients if there is a rule.

        Args:
            config: Settings.
            advantages: Tensor of the tokens' shape, or one that broadcasts to it.
        """
        if config.rule is None:
            return advantages
        of = self.usable()
        ratio = (of.log_probs - of.sampling).clamp(max=_LARGEST_LOG_RATIO).exp()
        if config.damped_truncation:
            # Where there is no ratio, as in padding, 1 too.
            weight = ratio.masked_fill(~(ratio < 1), 1.0)
        elif config.weight == "sampled":
            weight = ratio.masked_fill(of.accepted, 1.0)
        else:
            weight = of.probabilities + (1 - of.probabilities) * ratio
        outward = (ratio - 1) * advantages > 0
        damped = ratio.minimum(1 / ratio) if config.damped_truncation == "without_sets" else of.probabilities
        return advantages * (weight * damped).where(outward, weight)
