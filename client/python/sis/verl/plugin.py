"""What verl loads by its entry point `verl.plugins`: a training whose configuration has
`actor_rollout_ref.rollout.custom.sis` is refused before it starts if it can't work with that, else its
actors and vLLM servers use SIS; all others are as they were."""

from __future__ import annotations

import functools
import logging
from typing import Any, Callable

from sis.verl import token_tables
from sis.verl.names import SESSION, session_of
from sis.verl.refusals import check_training
from sis.verl.settings import Settings, rollouts_record, truncates

_log = logging.getLogger(__name__)


def _install() -> None:
    import verl.utils.config
    from verl.experimental.agent_loop.agent_loop import AgentLoopWorker
    from verl.workers.engine_workers import ActorRolloutRefWorker
    from verl.workers.rollout.replica import RolloutReplicaRegistry

    # What verl's programs import later, and call before they start anything.
    verl.utils.config.validate_config = _checking(verl.utils.config.validate_config)
    ActorRolloutRefWorker.init_model = _attaching(ActorRolloutRefWorker.init_model)
    AgentLoopWorker._run_agent_loop = _telling_the_session(AgentLoopWorker._run_agent_loop)
    RolloutReplicaRegistry.register("vllm", _recording_replica)
    token_tables.install()


def _checking(validate_config: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(validate_config)
    def checked(config: Any, *arguments: Any, **named: Any) -> Any:
        if Settings.of(config.actor_rollout_ref.rollout.get("custom")) is not None:
            check_training(config)
        return validate_config(config, *arguments, **named)

    return checked


def _attaching(init_model: Callable[..., Any]) -> Callable[..., Any]:
    # What verl's decorators noted at the method stays noted.
    @functools.wraps(init_model)
    def attached(self: Any, *arguments: Any, **named: Any) -> Any:
        rollout = self.config.rollout
        settings = Settings.of(rollout.get("custom"))
        truncated = rollouts_record(rollout.get("custom")) and truncates(self.config.actor, rollout)
        result = init_model(self, *arguments, **named)
        if settings is not None and self.actor is not None:
            from sis.verl.training import attach

            settings = settings.for_rollouts(rollout)
            self.sis = attach(self.actor, settings, truncated)
        return result

    return attached


def _telling_the_session(run_agent_loop: Callable[..., Any]) -> Callable[..., Any]:
    """Where samples go through TransferQueue: their keys are of prompt and session, which actors see too."""

    @functools.wraps(run_agent_loop)
    async def told(self: Any, sampling_params: Any, *arguments: Any, **named: Any) -> Any:
        used = rollouts_record(self.config.actor_rollout_ref.rollout.get("custom"))
        if used and "uid" in named and "session_id" in named:
            session = session_of(named["uid"], named["session_id"])
            extra = {**(sampling_params.get("extra_args") or {}), SESSION: session}
            sampling_params = {**sampling_params, "extra_args": extra}
        return await run_agent_loop(self, sampling_params, *arguments, **named)

    return told


def _recording_replica() -> Any:
    from sis.verl.replica import RecordingReplica

    return RecordingReplica


try:
    _install()
except Exception:
    # verl itself says nothing.
    _log.warning("sis.verl can't be used with this verl", exc_info=True)
    raise
