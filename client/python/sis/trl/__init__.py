"""Selective importance sampling in TRL's GRPOTrainer.

    from sis.trl import SisConfig, SisGRPOTrainer

    trainer = SisGRPOTrainer(model=model, reward_funcs=reward, args=args, train_dataset=dataset, sis_config=SisConfig())
    trainer.train()

docs/trl.md says what it does, costs and refuses.
"""

from sis.trl.config import SisConfig
from sis.trl.trainer import SisGRPOTrainer, SisTrainerMixin

__all__ = ["SisConfig", "SisGRPOTrainer", "SisTrainerMixin"]
