"""The trainers that are compared. What an arm does with a token's ratio is all that they differ in:
the service decides about every token in all of them, and counts."""

from typing import Any, Dict, NamedTuple, Tuple, Type

import torch
from trl import GRPOTrainer

from client.study.language_model.stale import ENGINES, StaleTrainer


class Sampled(StaleTrainer):
    """TRL on the log-probs that tokens were sampled with. The service decides about every token,
    and counts; nothing is made of what it decides."""

    old_log_probs = "sampling_per_token_logps"

    def _sis_old_log_probs(self, inputs: Dict[str, Any], *given: torch.Tensor) -> torch.Tensor:
        super()._sis_old_log_probs(inputs, *given)
        return inputs[self.old_log_probs]


class Truncated(Sampled):
    """TRL's own correction: old log-probs are the trainer's, from before the first update, and
    every token's loss is multiplied by their ratio to those that it was sampled with, up to TRL's
    limit."""

    old_log_probs = "old_per_token_logps"

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # Refused where SIS corrects too; here it only counts. TRL corrects what vLLM tells.
        self.use_vllm = self.vllm_importance_sampling_correction = True

    def _get_per_token_logps_and_entropies(self, *args: Any, **kwargs: Any) -> Any:
        if self._sis_scores:
            # The pass before the first update, which SIS leaves out as it has no use for it.
            return GRPOTrainer._get_per_token_logps_and_entropies(self, *args, **kwargs)
        return super()._get_per_token_logps_and_entropies(*args, **kwargs)


class Arm(NamedTuple):
    over: Tuple[Type[StaleTrainer], ...] = ()
    # Of GRPOConfig, and of SisConfig.
    settings: Dict[str, Any] = {}
    sis: Dict[str, Any] = {}

    def trainer(self, engine: str) -> Type[StaleTrainer]:
        return type("Trainer", (*self.over, ENGINES[engine]), {})


# Of a rule in the place of the clip, which TRL's cispo has from above only.
_WITHOUT_CLIP = {"loss_type": "cispo", "epsilon_high": 1e9}

# By the designs' names.
ARMS = {
    "grpo": Arm((Sampled,)),
    "grpo+tis": Arm((Truncated,), {"vllm_importance_sampling_mode": "token_truncate"}),
    "grpo+sampled": Arm(),
    "soft_acceptance+sampled": Arm((), _WITHOUT_CLIP, {"soft_acceptance": True}),
    "damped_truncation": Arm((), _WITHOUT_CLIP, {"damped_truncation": True}),
    "soft_acceptance+expected": Arm(
        (), _WITHOUT_CLIP, {"soft_acceptance": True, "weight": "expected", "sets": "trainer"}
    ),
}
