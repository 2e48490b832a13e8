"""ms-swift: its GRPO trainer, with accepted tokens at ratio 1. A plug-in of two lines,

    import sis.ms_swift
    sis.ms_swift.use(address="localhost:50051", run="my-training")

goes to `swift rlhf --rlhf_type grpo --external_plugins FILE`. The sampler's policy is the trainer's
own before the first update on a batch, whichever engine generated it.
"""

from __future__ import annotations

import copy
import uuid
from typing import Any, ClassVar, Dict, List, Sequence, Union

import torch
from swift.rlhf_trainers import GRPOTrainer
from swift.trainers.trainer_factory import TrainerFactory

import sis.torch
from sis.client import Client
from sis.old_log_probs import OldLogProbs
from sis.run import check_id, label_of
from sis.token_weights import TokenWeights, check_cispo
from sis.versions import warn_unless_tested

# Their weights are of old log-probs alone.
_LOSSES = ("grpo", "bnpo", "dr_grpo", "dapo", "cispo", "sapo")

# GRPOTrainer, to type checkers.
_Trainer: Any = object


def use(
    address: Union[str, Sequence[str]],
    run: str,
    top_k: int = 20,
    weight: str = "sampled",
    soft_acceptance: bool = False,
    damped_truncation: Union[bool, str] = False,
    **settings: Any,
) -> None:
    """Lets `--rlhf_type grpo` train with SIS. address: of a server, or those of all replicas. run:
    names this training and no other. weight, soft_acceptance, damped_truncation:
    sis.token_weights.TokenWeights. top_k, settings: as in Client.create_run."""
    check_id(run)
    SisTrainerMixin.sis_weights = TokenWeights(weight, soft_acceptance, damped_truncation)
    SisTrainerMixin.sis_address, SisTrainerMixin.sis_run = address, run
    SisTrainerMixin.sis_settings = {"seed": 0, "time_to_live": 3600.0, "top_k": top_k, **settings}
    TrainerFactory.TRAINER_MAPPING["grpo"] = "sis.ms_swift.SisGRPOTrainer"


def check_arguments(arguments: Any, template: Any, weights: TokenWeights) -> None:
    """ValueError if SIS can't go with these GRPOConfig."""
    if weights.rule is not None and arguments.importance_sampling_level == "sequence":
        raise ValueError(
            f"importance_sampling_level is 'sequence', but {weights.rule} gives each token a weight: set it to 'token'"
        )
    if arguments.loss_type not in _LOSSES:
        raise ValueError(f"loss_type is {arguments.loss_type!r}, must be one of {', '.join(_LOSSES)}")
    check_cispo(arguments)
    for name, off in (
        ("rollout_importance_sampling_mode", None), ("off_policy_sequence_mask_delta", None),
        ("log_rollout_offpolicy_metrics", False), ("use_liger_kernel", False),
    ):  # fmt: skip
        value = getattr(arguments, name)
        if value not in (None, False):
            raise ValueError(f"{name} is {value!r}: it reads other old log-probs, or makes no logits. Set it to {off}")
    if template.padding_free:
        raise ValueError("padding_free is on: SIS needs rows of responses. Set it to False")
    if template.sequence_parallel_size > 1:
        raise ValueError(
            f"sequence_parallel_size is {template.sequence_parallel_size}: SIS needs whole sequences. Set it to 1"
        )


class SisTrainerMixin(_Trainer):
    """Goes before ms-swift's GRPOTrainer, or a subclass of it, among the bases."""

    sis_address: ClassVar[Union[None, str, Sequence[str]]] = None
    sis_run: ClassVar[str] = ""
    sis_settings: ClassVar[Dict[str, Any]] = {}
    sis_weights: ClassVar[TokenWeights] = TokenWeights()

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        warn_unless_tested("swift", "ms-swift")
        check_arguments(kwargs["args"], kwargs["template"], self.sis_weights)
        if self.sis_address is None:
            raise ValueError("no server is named: call sis.ms_swift.use in a file of external_plugins")
        super().__init__(*args, **kwargs)
        address = [self.sis_address] if isinstance(self.sis_address, str) else self.sis_address
        client = Client(list(address))
        config = self.model.config.get_text_config()
        model = label_of(str(getattr(self.model.config, "_name_or_path", "")))
        run = client.create_run(
            self.sis_run, vocabulary_size=config.vocab_size, algorithm=self.loss_type, model=model,
            **self.sis_settings,
        )  # fmt: skip
        self._sis = OldLogProbs(client, run, **vars(self.sis_weights))
        # While a loss is computed: its batch.
        self._sis_batch: Any = None

    def training_step(self, *args: Any, **kwargs: Any) -> Any:
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
        # ms-swift asks for old log-probs, then for a reference model's, then at each update.
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
        kept = grpo_batch.logits_to_keep
        # ms-swift has divided them by the temperature where they are.
        logits, tokens = outputs[0].detach()[:, -kept - 1 : -1], model_inputs["input_ids"][:, -kept:]
        mask = grpo_batch.completion_mask.bool()
        if is_old:
            grpo_batch.sis_names = [uuid.uuid4().hex for _ in range(len(mask))]
        batch = sis.torch.PaddedBatch(grpo_batch.sis_names, mask, mask.int().argmax(dim=1))
        if is_old:
            recorded = self._sis.record(batch, tokens, logits, self.temperature)
            return torch.where(mask, recorded, log_probs), entropies
        old = grpo_batch.old_per_token_logps
        decided = self._sis.decided(batch, tokens, logits, log_probs, old)
        grpo_batch.old_per_token_logps = self._sis.weights.old_log_probs(decided)
        grpo_batch.advantages = self._sis.weights.advantages(decided, grpo_batch.advantages)
        return log_probs, entropies


class SisGRPOTrainer(SisTrainerMixin, GRPOTrainer):
    """ms-swift's GRPOTrainer with selective importance sampling."""
