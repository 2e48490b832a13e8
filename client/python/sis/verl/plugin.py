"""What verl loads by its entry point `verl.plugins`: actors and vLLM servers use SIS in a training
whose configuration has `actor_rollout_ref.rollout.custom.sis`; all others are as they were."""

from __future__ import annotations

import functools
import logging
from typing import Any, Callable

from sis.verl.settings import Settings, truncates

_log = logging.getLogger(__name__)


def _install() -> None:
    from verl.workers.engine_workers import ActorRolloutRefWorker
    from verl.workers.rollout.replica import RolloutReplicaRegistry

    ActorRolloutRefWorker.init_model = _attaching(ActorRolloutRefWorker.init_model)
    RolloutReplicaRegistry.register("vllm", _recording_replica)


def _attaching(init_model: Callable[..., Any]) -> Callable[..., Any]:
    # What verl's decorators noted at the method stays noted.
    @functools.wraps(init_model)
    def attached(self: Any, *arguments: Any, **named: Any) -> Any:
        settings = Settings.of(self.config.rollout.get("custom"))
        truncated = settings is not None and truncates(self.config.actor, self.config.rollout)
        result = init_model(self, *arguments, **named)
        if settings is not None and self.actor is not None:
            from sis.verl.training import attach

            self.sis = attach(self.actor, settings, truncated)
        return result

    return attached


def _recording_replica() -> Any:
    from sis.verl.replica import RecordingReplica

    return RecordingReplica


try:
    _install()
except Exception:
    # verl itself says nothing.
    _log.warning("sis.verl can't be used with this verl", exc_info=True)
    raise
