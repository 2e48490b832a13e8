"""TorchRL: GRPOLoss, and what is derived from it, with accepted tokens at ratio 1.

old = OldLogProbs(SisConfig("localhost:50051", run="my-training"), vocabulary_size=V)
loss = SisGRPOLoss(actor, old_log_probs=old)
loss.record(batch, names)         # or its records are an engine's; once, before the updates
loss(batch).loss_objective.backward(); optimizer.step(); metrics = old.stepped()
"""

from __future__ import annotations

from typing import Any, Optional, Sequence

import torch
from tensordict import NonTensorStack, TensorDictBase
from torchrl.modules import LLMMaskedCategorical
from torchrl.objectives.llm import GRPOLoss

import sis.torch
from sis.integrations._config import SisConfig
from sis.integrations._decided import Decided
from sis.integrations._old_log_probs import OldLogProbs
from sis._versions import warn_unless_tested

__all__ = ["SEQUENCE", "OldLogProbs", "SisConfig", "SisGRPOLoss", "SisLossMixin"]

# The key of a batch under which its rows have the names of their sequences.
SEQUENCE = "sis_sequence"

# GRPOLoss, to type checkers.
_Loss: Any = object


class SisLossMixin(_Loss):
    """Selective importance sampling for a subclass of GRPOLoss: put it first among the bases.

        class SisCISPOLoss(SisLossMixin, CISPOLoss): ...

    A batch has names under SEQUENCE. Position 0 of a sequence is the row's first token in the loss.
    The actor's log-probs are at temperature 1, so rollouts must be as well.
    """

    def __init__(self, *args: Any, old_log_probs: OldLogProbs, **kwargs: Any) -> None:
        """Makes the loss.

        Args:
            args, kwargs: Arguments of GRPOLoss.
            old_log_probs: The run and its settings.

        Raises:
            ValueError: `actor_network` has no parameters.
        """
        warn_unless_tested("rl", "torchrl")
        super().__init__(*args, **kwargs)
        network = self.actor_network
        if not isinstance(network, torch.nn.Module) or not any(True for _ in network.parameters()):
            raise ValueError(f"actor_network {type(network).__name__} has no parameters: it must be the trained model")
        self._sis = old_log_probs
        # [B, T], while a loss is computed.
        self._sis_decided: Optional[Decided] = None

    @torch.no_grad()
    def record(self, tensordict: TensorDictBase, names: Sequence[str]) -> None:
        """Names the rows and records the actor as it is as the policy that sampled them, for rollouts of engines
        whose log-probs are not recorded.

        Args:
            tensordict: A batch; its sampling log-probs are replaced, unless the settings say `observe`.
            names: One name per row, used once.
        """
        log_probs, dist, _ = super()._get_cur_log_prob(tensordict)
        tensordict.set(SEQUENCE, NonTensorStack(*names))
        batch = self._sis_batch(tensordict, dist, log_probs)
        recorded = self._sis.record(batch, self._sis_tokens(tensordict), dist.logits)
        if not self._sis.config.observe:
            tensordict.set(self.tensor_keys.sample_log_prob, recorded)

    def _sis_batch(self, tensordict: TensorDictBase, dist: Any, sampling: torch.Tensor) -> sis.torch.PaddedBatch:
        if not isinstance(dist, LLMMaskedCategorical) or not dist.position_level_masking:
            raise ValueError(
                f"the actor's distribution is {type(dist).__name__}: SIS needs logits, and one mask per token"
            )
        names = tensordict.get(SEQUENCE, None)
        if names is None:
            raise ValueError(f"the batch has no {SEQUENCE!r}: call record, or name its rows as they are recorded")
        mask = dist.mask & torch.isfinite(sampling)
        return sis.torch.PaddedBatch(names.tolist(), mask, mask.int().argmax(dim=1))

    def _sis_tokens(self, tensordict: TensorDictBase) -> torch.Tensor:
        return tensordict.get(self.tensor_keys.action, as_padded_tensor=True, padding_side="left", padding_value=0)

    def _get_cur_log_prob(self, tensordict: TensorDictBase) -> Any:
        log_probs, dist, is_composite = super()._get_cur_log_prob(tensordict)
        key = self.tensor_keys.sample_log_prob
        sampling = tensordict.get(key, as_padded_tensor=True, padding_side="left", padding_value=0.0)
        batch = self._sis_batch(tensordict, dist, sampling)
        tokens = self._sis_tokens(tensordict)
        advantages = tensordict.get(
            self.tensor_keys.advantage, as_padded_tensor=True, padding_side="left", padding_value=0.0
        )[..., 0]
        decided = self._sis.decided(batch, tokens, dist.logits, log_probs, sampling, advantages)
        if self._sis.config.observe:
            return log_probs, dist, is_composite
        self._sis_decided = decided
        old = decided.old_log_probs(self._sis.config)
        # TorchRL recognises a prompt by log-probs that are not finite.
        tensordict.set(key, torch.where(torch.isfinite(sampling), old, sampling))
        return log_probs, dist, is_composite

    def _compute_policy_objective(self, log_weight: torch.Tensor, advantage: torch.Tensor) -> Any:
        # [B, T, 1]: the loss takes it before it asks for log-probs.
        decided, self._sis_decided = self._sis_decided, None
        if decided is None:
            return super()._compute_policy_objective(log_weight, advantage)
        weighed = decided.advantages(self._sis.config, advantage[..., 0])[..., None]
        known = torch.isfinite(decided.sampling)[..., None]
        return super()._compute_policy_objective(log_weight, torch.where(known, weighed, advantage))

    def _log_weight(self, tensordict: TensorDictBase, *args: Any, **kwargs: Any) -> Any:
        # kl_to_inference, which is computed after the weights, reads the log-probs that were sampled with.
        key = self.tensor_keys.sample_log_prob
        sampling = tensordict.get(key)
        try:
            return super()._log_weight(tensordict, *args, **kwargs)
        finally:
            tensordict.set(key, sampling)


class SisGRPOLoss(SisLossMixin, GRPOLoss):
    """TorchRL's GRPOLoss with selective importance sampling."""
