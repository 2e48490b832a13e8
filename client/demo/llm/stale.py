"""TRL's trainer whose engine lags behind, as where a worker generates while the trainer trains."""

from typing import Any, Dict

import torch

from sis.integrations.trl import SisGRPOTrainer


class StaleTrainer(SisGRPOTrainer):
    """Gives vLLM new weights after a rollout instead of before it: from the second rollout on vLLM's weights are
    those that the rollout before began to train."""

    def __init__(self, *args: Any, seed: int, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._seed = seed
        self._rollout = 0
        self._generated_with = 0

    def _generate_single_turn(self, *args: Any, **kwargs: Any) -> Any:
        # The same uniforms in both arms.
        torch.manual_seed(1000 * self._seed + self._rollout)
        self._rollout += 1
        if self._last_loaded_step >= 0:
            self._generated_with = self._last_loaded_step
            # So TRL loads nothing. At first it must.
            self._last_loaded_step = self.state.global_step
        generated = super()._generate_single_turn(*args, **kwargs)
        if self._generated_with != self.state.global_step:
            self.vllm_generation.sync_weights()
        return generated

    def _sis_policy_version(self) -> int:
        return self._generated_with


class Watched(StaleTrainer):
    """TRL on the log-probs that tokens were sampled with. The service decides about every token, and counts; the
    trainer does not use its decisions."""

    def _sis_old_log_probs(self, inputs: Dict[str, Any], *given: torch.Tensor) -> torch.Tensor:
        super()._sis_old_log_probs(inputs, *given)
        return inputs["sampling_per_token_logps"]


# By the names of settings.ARMS.
TRAINERS = {"grpo": Watched, "sis": StaleTrainer}
