"""TorchRL: GRPOLoss, and what is derived from it, with accepted tokens at ratio 1.

    old = OldLogProbs(client, client.create_run("my-training", seed=0, vocabulary_size=V, top_k=20))
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
from sis.old_log_probs import OldLogProbs
from sis.token_weights import Decided
from sis.versions import warn_unless_tested

# Of the names of the sequences, in a batch: one per row.
SEQUENCE = "sis_sequence"

# GRPOLoss, to type checkers.
_Loss: Any = object


class SisLossMixin(_Loss):
    """Goes before GRPOLoss, or a subclass of it such as CISPOLoss, among the bases.

    A batch has names under SEQUENCE. Position 0 of a sequence is the row's first token in the loss.
    The actor's log-probs are at temperature 1, so rollouts must be as well.
    """

    def __init__(self, *args: Any, old_log_probs: OldLogProbs, **kwargs: Any) -> None:
        warn_unless_tested("rl", "torchrl")
        super().__init__(*args, **kwargs)
        network = self.actor_network
        if not isinstance(network, torch.nn.Module) or not any(True for _ in network.parameters()):
            raise ValueError(f"actor_network {type(network).__name__} has no parameters: it must be the trained model")
        self._sis = old_log_probs
        # While a loss is computed, [B, T] each.
        self._sis_decided: Optional[Decided] = None

    @torch.no_grad()
    def record(self, tensordict: TensorDictBase, names: Sequence[str]) -> None:
        """Names the rows, and takes the actor as it is for what they were sampled with: for
        rollouts of which no engine's log-probs are recorded. The batch's own sampling log-probs are
        replaced."""
        log_probs, dist, _ = super()._get_cur_log_prob(tensordict)
        tensordict.set(SEQUENCE, NonTensorStack(*names))
        batch = self._sis_batch(tensordict, dist, log_probs)
        recorded = self._sis.record(batch, self._sis_tokens(tensordict), dist.logits)
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
        self._sis_decided = self._sis.decided(batch, tokens, dist.logits, log_probs, sampling)
        old = self._sis.weights.old_log_probs(self._sis_decided)
        # Where the sampler has none, as in a prompt, TorchRL knows by that.
        tensordict.set(key, torch.where(torch.isfinite(sampling), old, sampling))
        return log_probs, dist, is_composite

    def _compute_policy_objective(self, log_weight: torch.Tensor, advantage: torch.Tensor) -> Any:
        # [B, T, 1]: the loss takes it before it asks for log-probs.
        decided, self._sis_decided = self._sis_decided, None
        assert decided is not None
        weighed = self._sis.weights.advantages(decided, advantage[..., 0])[..., None]
        known = torch.isfinite(decided.sampling)[..., None]
        return super()._compute_policy_objective(log_weight, torch.where(known, weighed, advantage))

    def _log_weight(self, tensordict: TensorDictBase, *args: Any, **kwargs: Any) -> Any:
        # What comes after the weights, as kl_to_inference, is of what was sampled with.
        key = self.tensor_keys.sample_log_prob
        sampling = tensordict.get(key)
        try:
            return super()._log_weight(tensordict, *args, **kwargs)
        finally:
            tensordict.set(key, sampling)


class SisGRPOLoss(SisLossMixin, GRPOLoss):
    """TorchRL's GRPOLoss with selective importance sampling."""
