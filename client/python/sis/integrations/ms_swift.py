"""ms-swift: its GRPO trainer, with accepted tokens at ratio 1. A plug-in of two lines,

    import sis.integrations.ms_swift
    sis.integrations.ms_swift.use(address="localhost:50051", run="my-training")

goes to `swift rlhf --rlhf_type grpo --external_plugins FILE`. The sampler's policy is the trainer's
own before the first update on a batch, whichever engine generated it.
"""

from __future__ import annotations

import copy
import uuid
from typing import Any, ClassVar, List, Optional

import torch
from swift.rlhf_trainers import GRPOTrainer
from swift.trainers.trainer_factory import TrainerFactory

import sis.torch
from sis.integrations._config import SisConfig, vocabulary_size
from sis.integrations._old_log_probs import OldLogProbs
from sis.integrations._refusals import Needed, check, check_cispo
from sis._run import label_of
from sis._versions import warn_unless_tested

# Losses whose weights depend on old log-probs alone.
_LOSSES = ("grpo", "bnpo", "dr_grpo", "dapo", "cispo", "sapo")

_NEEDED: Needed = {"use_liger_kernel": (False, "it makes no logits")}
_CORRECTIONS: Needed = {
    "rollout_importance_sampling_mode": (None, "it corrects a second time"),
    "off_policy_sequence_mask_delta": (None, "it reads old log-probs that are no longer there"),
    "log_rollout_offpolicy_metrics": (False, "it reads old log-probs that are no longer there"),
}
_OF_TEMPLATE: Needed = {
    "padding_free": (False, "SIS needs rows of responses"),
    "sequence_parallel_size": (1, "SIS needs whole sequences"),
}

# GRPOTrainer, to type checkers.
_Trainer: Any = object


def use(**settings: Any) -> None:
    """Lets `--rlhf_type grpo` train with SIS.

    Args:
        settings: Fields of sis.integrations.SisConfig; `address` and `run` are required.

    Raises:
        ValueError: A field is unknown, missing or has a wrong value.
    """
    SisTrainerMixin.sis_config = SisConfig.of(settings, "use")
    TrainerFactory.TRAINER_MAPPING["grpo"] = "sis.integrations.ms_swift.SisGRPOTrainer"


def _check_arguments(arguments: Any, template: Any, config: SisConfig) -> None:
    """Raises ValueError if SIS does not support these arguments."""
    check(arguments, {**_NEEDED, **({} if config.observe else _CORRECTIONS)})
    if config.rule is not None:
        check(arguments, {"importance_sampling_level": ("token", f"{config.rule} gives each token a weight")})
    check(template, _OF_TEMPLATE)
    if arguments.loss_type not in _LOSSES and not config.observe:
        raise ValueError(f"loss_type is {arguments.loss_type!r}, must be one of {', '.join(_LOSSES)}")
    if not config.observe:
        check_cispo(arguments)


class SisTrainerMixin(_Trainer):
    """Selective importance sampling for ms-swift's GRPOTrainer: put it first among the bases of a subclass.

    Attributes:
        sis_config: Settings, which `use` sets.
    """

    sis_config: ClassVar[Optional[SisConfig]] = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Makes the trainer from the arguments of ms-swift's.

        Raises:
            ValueError: The arguments do not suit SIS, or `use` was not called.
        """
        warn_unless_tested("swift", "ms-swift")
        config = self.sis_config
        if config is None:
            raise ValueError("no server is named: call sis.integrations.ms_swift.use in a file of external_plugins")
        _check_arguments(kwargs["args"], kwargs["template"], config)
        super().__init__(*args, **kwargs)
        model = label_of(str(getattr(self.model.config, "_name_or_path", "")))
        self._sis = OldLogProbs(config, vocabulary_size(self.model.config), algorithm=self.loss_type, model=model)
        # The batch of the loss that is being computed.
        self._sis_batch: Any = None

    def training_step(self, *args: Any, **kwargs: Any) -> Any:
        """Makes ms-swift's step, and logs the metrics after each step of the optimiser.

        Args:
            args, kwargs: Arguments of ms-swift's.

        Returns:
            The loss.
        """
        self._sis.step = self.state.global_step
        loss = super().training_step(*args, **kwargs)
        if self.accelerator.sync_gradients:
            for name, value in self._sis.stepped().items():
                self._metrics["train"][f"sis/{name}"].append(value)
        return loss

    def _compute_loss_and_metrics(self, model: Any, model_inputs: Any, grpo_batch: Any) -> Any:
        if not self.model.training:
            return super()._compute_loss_and_metrics(model, model_inputs, grpo_batch)
        if not hasattr(grpo_batch, "sis_names"):
            raise ValueError("a multi-turn scheduler made several samples of a response: SIS needs one")
        # A copy: the trainer keeps its own for the next iteration.
        self._sis_batch = copy.copy(grpo_batch)
        try:
            return super()._compute_loss_and_metrics(model, model_inputs, self._sis_batch)
        finally:
            self._sis_batch = None

    def _get_per_token_logps_and_entropies(
        self, model: Any, model_inputs: Any, grpo_batch: Any, *args: Any, **kwargs: Any
    ) -> Any:
        # ms-swift asks for old log-probs, then for those of a reference model, then at each update.
        is_old = model is self.model and self.model.training and not hasattr(grpo_batch, "sis_names")
        if not is_old and grpo_batch is not self._sis_batch:
            return super()._get_per_token_logps_and_entropies(model, model_inputs, grpo_batch, *args, **kwargs)
        outputs: List[torch.Tensor] = []
        hook = model.register_forward_hook(lambda *call: outputs.append(call[-1].logits))
        try:
            log_probs, entropies = super()._get_per_token_logps_and_entropies(
                model, model_inputs, grpo_batch, *args, **kwargs
            )
        finally:
            hook.remove()
        if len(outputs) != 1:
            raise ValueError(f"the model was run {len(outputs)} times for a batch: SIS needs the logits of one")
        kept, observe = grpo_batch.logits_to_keep, self._sis.config.observe
        # ms-swift has divided them by the temperature in place.
        logits, tokens = outputs[0].detach()[:, -kept - 1 : -1], model_inputs["input_ids"][:, -kept:]
        mask = grpo_batch.completion_mask.bool()
        if is_old:
            grpo_batch.sis_names = [uuid.uuid4().hex for _ in range(len(mask))]
        batch = sis.torch.PaddedBatch(grpo_batch.sis_names, mask, mask.int().argmax(dim=1))
        if is_old:
            recorded = self._sis.record(batch, tokens, logits, self.temperature)
            return log_probs if observe else torch.where(mask, recorded, log_probs), entropies
        old, advantages = grpo_batch.old_per_token_logps, grpo_batch.advantages
        decided = self._sis.decided(batch, tokens, logits, log_probs, old, advantages.view(len(mask), -1))
        if not observe:
            grpo_batch.old_per_token_logps = decided.old_log_probs(self._sis.config)
            grpo_batch.advantages = decided.advantages(self._sis.config, advantages)
        return log_probs, entropies


class SisGRPOTrainer(SisTrainerMixin, GRPOTrainer):
    """ms-swift's GRPOTrainer with selective importance sampling."""
