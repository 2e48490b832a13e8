"""verl: SIS for its actors and its vLLM rollouts.

With this package installed verl finds it by itself (entry point `verl.plugins`), and a training
uses it if its configuration has

    +actor_rollout_ref.rollout.custom.sis.address="sis:50051"
    +actor_rollout_ref.rollout.custom.sis.run=my-training
    actor_rollout_ref.rollout.calculate_log_probs=true
    algorithm.rollout_correction.bypass_mode=true

Without Ray, `sis.verl.training.attach(worker, Settings(...))` does the same for one TrainingWorker.
"""

from sis.verl.names import name_of
from sis.verl.settings import Settings

__all__ = ["Settings", "name_of"]
