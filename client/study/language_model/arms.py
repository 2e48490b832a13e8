"""The trainers that are compared. What an arm does with a token's ratio is all that they differ in:
the service decides about every token in all of them, and counts."""

from typing import Any, Dict, NamedTuple, Type

import torch

from client.study.language_model import int4
from sis.trl import SisGRPOTrainer


class StaleTrainer(SisGRPOTrainer):
    """Gives vLLM new weights after a rollout instead of before it, as where a worker generates
    while the trainer trains: from the second rollout on they are those that the rollout before
    began to train. Its old log-probs are by SIS."""

    def __init__(self, *args: Any, rounds_to_int4: bool, seed: int, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._seed = seed
        self._rollout = 0
        self._generated_with = 0
        if rounds_to_int4:
            executor = self.vllm_generation.llm.llm_engine.model_executor
            _round_what_is_loaded(executor.driver_worker.model_runner.model)

    def _generate_single_turn(self, *args: Any, **kwargs: Any) -> Any:
        if self._last_loaded_step >= 0:
            self._generated_with = self._last_loaded_step
            # So TRL loads nothing. At first it must.
            self._last_loaded_step = self.state.global_step
        # The same uniforms in all arms.
        torch.manual_seed(1000 * self._seed + self._rollout)
        self._rollout += 1
        generated = super()._generate_single_turn(*args, **kwargs)
        if self._generated_with != self.state.global_step:
            self.vllm_generation.sync_weights()
        return generated

    def _sis_policy_version(self) -> int:
        return self._generated_with


class SampledTrainer(StaleTrainer):
    """TRL on the log-probs that tokens were sampled with. The service decides about every token,
    and counts; nothing is made of what it decides."""

    old_log_probs = "sampling_per_token_logps"

    def _sis_old_log_probs(self, inputs: Dict[str, Any], *given: torch.Tensor) -> torch.Tensor:
        super()._sis_old_log_probs(inputs, *given)
        return inputs[self.old_log_probs]


class TruncatedTrainer(SampledTrainer):
    """TRL's own correction: old log-probs are the trainer's, from before the first update, and
    every token's loss is multiplied by their ratio to those that it was sampled with, up to TRL's
    limit."""

    old_log_probs = "old_per_token_logps"

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # Refused where SIS corrects too; here it only counts.
        self.vllm_importance_sampling_correction = True


class Arm(NamedTuple):
    trainer: Type[StaleTrainer]
    # Of GRPOConfig, and of SisConfig.
    settings: Dict[str, Any] = {}
    sis: Dict[str, Any] = {}


# By the design's names.
ARMS = {
    "grpo": Arm(SampledTrainer),
    "grpo+tis": Arm(TruncatedTrainer, {"vllm_importance_sampling_mode": "token_truncate"}),
    "grpo+sampled": Arm(StaleTrainer),
    # It takes the place of the clip, which TRL's cispo has from above only.
    "soft_acceptance+sampled": Arm(
        StaleTrainer, {"loss_type": "cispo", "epsilon_high": 1e9}, {"soft_acceptance": True}
    ),
}


def _round_what_is_loaded(model: Any) -> None:
    """Whatever weights vLLM's `model` is given from now on."""
    load = model.load_weights

    def load_rounded(weights: Any) -> Any:
        return load(
            (name, int4.rounded(weight.float()) if int4.is_linear_of_decoder(name) else weight)
            for name, weight in weights
        )

    model.load_weights = load_rounded
