"""Selective importance sampling in TRL's GRPOTrainer and AsyncGRPOTrainer.

    from sis.integrations.trl import SisConfig, SisGRPOTrainer

    trainer = SisGRPOTrainer(model=model, reward_funcs=reward, args=args, train_dataset=dataset, sis_config=SisConfig())
    trainer.train()

docs/trl.md says what it does, costs and refuses.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from sis.integrations._config import SisConfig
from sis.integrations.trl._trainer import SisGRPOTrainer, SisTrainerMixin

if TYPE_CHECKING:
    from sis.integrations.trl._async_grpo import SisAsyncGRPOTrainer, SisAsyncTrainerMixin
    from sis.integrations.trl._async_rollouts import SisRolloutLoopMixin

__all__ = [
    "SisAsyncGRPOTrainer", "SisAsyncTrainerMixin", "SisConfig", "SisGRPOTrainer", "SisRolloutLoopMixin",
    "SisTrainerMixin",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    # TRL's asynchronous trainer is experimental, and not in every release.
    if name in __all__:
        module = "_async_rollouts" if name == "SisRolloutLoopMixin" else "_async_grpo"
        return getattr(importlib.import_module(f"sis.integrations.trl.{module}"), name)
    raise AttributeError(f"module 'sis.integrations.trl' has no attribute {name!r}")
