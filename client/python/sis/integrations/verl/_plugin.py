"""verl's entry point `verl.plugins`. A training whose configuration has `actor_rollout_ref.rollout.custom.sis` is refused
before it starts if SIS does not support it; otherwise its actors and vLLM servers use SIS. Others are unchanged."""

from __future__ import annotations

import logging
from typing import Any, Callable

from sis.integrations._names import SESSION, session_of
from sis.integrations.verl import _token_tables
from sis.integrations.verl._settings import (
    check_training, config_of, for_rollouts, replace_function, rollouts_record, truncates,
)  # fmt: skip

_log = logging.getLogger(__name__)


def _install() -> None:
    import verl.utils.config
    from verl.experimental.agent_loop.agent_loop import AgentLoopWorker
    from verl.workers.engine_workers import ActorRolloutRefWorker
    from verl.workers.rollout.replica import RolloutReplicaRegistry

    # verl's programs import this function later, and call it before they start anything.
    replace_function(verl.utils.config, "validate_config", _check)
    replace_function(ActorRolloutRefWorker, "init_model", _attach)
    replace_function(AgentLoopWorker, "_run_agent_loop", _tell_the_session)
    RolloutReplicaRegistry.register("vllm", _recording_replica)
    _token_tables.install()


def _check(validate_config: Callable[..., Any], config: Any, *arguments: Any, **named: Any) -> Any:
    check_training(config)
    return validate_config(config, *arguments, **named)


def _attach(init_model: Callable[..., Any], worker: Any, *arguments: Any, **named: Any) -> Any:
    rollout = worker.config.rollout
    sis_config = config_of(rollout.get("custom"))
    result = init_model(worker, *arguments, **named)
    if sis_config is not None and worker.actor is not None:
        from sis.integrations.verl._training import attach

        recorded = sis_config.sets == "engine"
        truncated = recorded and truncates(worker.config.actor, rollout, sis_config.observe)
        worker.sis = attach(worker.actor, for_rollouts(sis_config, rollout), truncated)
    return result


async def _tell_the_session(
    run_agent_loop: Callable[..., Any], worker: Any, sampling_params: Any, *arguments: Any, **named: Any
) -> Any:
    """For samples that go through TransferQueue: their keys have prompt and session, which actors see too."""
    used = rollouts_record(worker.config.actor_rollout_ref.rollout.get("custom"))
    if used and "uid" in named and "session_id" in named:
        session = session_of(named["uid"], named["session_id"])
        extra = {**(sampling_params.get("extra_args") or {}), SESSION: session}
        sampling_params = {**sampling_params, "extra_args": extra}
    return await run_agent_loop(worker, sampling_params, *arguments, **named)


def _recording_replica() -> Any:
    from sis.integrations.verl._replica import RecordingReplica

    return RecordingReplica


try:
    _install()
except Exception:
    # verl itself logs nothing.
    _log.warning("sis.integrations.verl does not work with this verl", exc_info=True)
    raise
