"""Selective importance sampling for verl's actors and vLLM rollouts.

With this package installed verl finds it by itself (entry point `verl.plugins`), and a training uses it if its
configuration has

    +actor_rollout_ref.rollout.custom.sis.address="sis:50051"
    +actor_rollout_ref.rollout.custom.sis.run=my-training
    actor_rollout_ref.rollout.calculate_log_probs=true
    algorithm.rollout_correction.bypass_mode=true

Without Ray, `attach(worker, SisConfig(...))` does the same for one TrainingWorker.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from sis.integrations._config import SisConfig
from sis.integrations._names import name_of

if TYPE_CHECKING:
    from sis.integrations.verl._rollout import RecordingEngine
    from sis.integrations.verl._training import Training, attach

__all__ = ["RecordingEngine", "SisConfig", "Training", "attach", "name_of"]


def __getattr__(name: str) -> Any:
    # Rollout servers need no PyTorch of ours, and trainers no engine.
    if name in __all__:
        module = "_rollout" if name == "RecordingEngine" else "_training"
        return getattr(importlib.import_module(f"sis.integrations.verl.{module}"), name)
    raise AttributeError(f"module 'sis.integrations.verl' has no attribute {name!r}")
