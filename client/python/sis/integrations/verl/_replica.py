"""verl's vLLM replica, whose servers record."""

from __future__ import annotations

from typing import Any, Dict

import ray
from verl.workers.rollout.vllm_rollout.vllm_async_server import vLLMHttpServer, vLLMReplica

from sis.integrations._config import SisConfig, vocabulary_size
from sis.integrations.verl._rollout import RecordingEngine
from sis.integrations.verl._settings import config_of, for_rollouts, rollouts_record


class RecordingServer(vLLMHttpServer):
    """A server whose engine records. Only the one of rank 0 of a replica's nodes has an engine that is asked."""

    engine: Any

    @property
    def _settings(self) -> SisConfig:
        settings = config_of(self.config.custom)
        assert settings is not None
        return for_rollouts(settings, self.config)

    def _preprocess_engine_kwargs(self, engine_kwargs: Dict[str, Any]) -> None:
        super()._preprocess_engine_kwargs(engine_kwargs)
        # vLLM's default is 20.
        engine_kwargs["max_logprobs"] = max(engine_kwargs.get("max_logprobs") or 20, self._settings.top_k)

    async def run_server(self, args: Any) -> None:
        await super().run_server(args)
        tokens = vocabulary_size(self.model_config.hf_config)
        self.engine = RecordingEngine(self.engine, self._settings, tokens, lambda: self.global_steps)

    async def sleep(self) -> None:
        # A trainer on the same machine begins next.
        if isinstance(getattr(self, "engine", None), RecordingEngine):
            await self.engine.flush()
        await super().sleep()

    async def set_global_steps(self, global_steps: int) -> None:
        await super().set_global_steps(global_steps)
        if isinstance(getattr(self, "engine", None), RecordingEngine):
            await self.engine.advance_version(global_steps)


class RecordingReplica(vLLMReplica):
    """A vLLMReplica whose servers record, except without SIS, and except models that judge or teach."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        if rollouts_record(self.config.custom) and not (self.is_reward_model or self.is_teacher_model):
            self.server_class = ray.remote(RecordingServer)
