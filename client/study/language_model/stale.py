"""Trainers whose engine lags behind, as where a worker generates while the trainer trains."""

import collections
from typing import Any, Deque, Dict, NamedTuple

import torch

from client.study.language_model import int4
from sis.trl import SisGRPOTrainer


class Engine(NamedTuple):
    """What the design says of a cell."""

    # "bfloat16" or "int4": what weights are rounded to before they generate.
    weights: str = "bfloat16"
    # How many rollouts before these weights were the trainer's.
    lag: int = 1


class StaleTrainer(SisGRPOTrainer):
    """Old log-probs are by SIS; subclasses say which weights generate."""

    def __init__(self, *args: Any, engine: Engine, seed: int, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._engine = engine
        self._seed = seed
        self._rollout = 0

    def _generate_single_turn(self, *args: Any, **kwargs: Any) -> Any:
        # The same uniforms in all arms.
        torch.manual_seed(1000 * self._seed + self._rollout)
        self._rollout += 1
        return super()._generate_single_turn(*args, **kwargs)


class _Kept(NamedTuple):
    step: int
    weights: Dict[str, torch.Tensor]


class TransformersTrainer(StaleTrainer):
    """transformers generates, in bfloat16, with weights of the trainer that it had `lag` rollouts before, or
    at first."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # The oldest first.
        self._kept: Deque[_Kept] = collections.deque(maxlen=self._engine.lag + 1)

    def _generate_single_turn(self, *args: Any, **kwargs: Any) -> Any:
        self._kept.append(_Kept(self.state.global_step, self._rounded_weights()))
        # TRL corrects what vLLM tells, and asks vLLM where it does.
        corrects, self.use_vllm = self.use_vllm, False
        own = {name: parameter.data for name, parameter in self._sis_model().named_parameters()}
        try:
            self._set_weights(self._kept[0].weights)
            return super()._generate_single_turn(*args, **kwargs)
        finally:
            self._set_weights(own)
            self.use_vllm = corrects

    def _rounded_weights(self) -> Dict[str, torch.Tensor]:
        made = int4.rounded_if_linear if self._engine.weights == "int4" else lambda name, weight: weight
        # In the host's memory, as there may be many.
        return {
            name: made(name, parameter.data).bfloat16().cpu()
            for name, parameter in self._sis_model().named_parameters()
        }

    def _set_weights(self, weights: Dict[str, torch.Tensor]) -> None:
        for name, parameter in self._sis_model().named_parameters():
            parameter.data = weights[name].to(parameter.device)

    def _sis_policy_version(self) -> int:
        return self._kept[0].step


class VllmTrainer(StaleTrainer):
    """Gives vLLM new weights after a rollout instead of before it: from the second rollout on they are those
    that the rollout before began to train."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self._engine.lag != 1:
            raise ValueError(f"lag is {self._engine.lag}, must be 1 with vLLM")
        if self._engine.weights == "int4":
            executor = self.vllm_generation.llm.llm_engine.model_executor
            _round_what_is_loaded(executor.driver_worker.model_runner.model)
        self._generated_with = 0

    def _generate_single_turn(self, *args: Any, **kwargs: Any) -> Any:
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


def _round_what_is_loaded(model: Any) -> None:
    """Whatever weights vLLM's `model` is given from now on."""
    load = model.load_weights
    model.load_weights = lambda weights: load(
        (name, int4.rounded_if_linear(name, weight.float())) for name, weight in weights
    )


ENGINES = {"transformers": TransformersTrainer, "vllm": VllmTrainer}
