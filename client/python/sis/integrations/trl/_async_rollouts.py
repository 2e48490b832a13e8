"""Records the rollouts of TRL's asynchronous trainer, in the process that generates and scores them."""

from __future__ import annotations

import asyncio
import itertools
import uuid
import warnings
from typing import Any, Dict, List, NamedTuple, Optional

import numpy as np
from trl.experimental.async_grpo.async_rollout_worker import _AsyncRolloutLoop

from sis import _entries
from sis.engines._adapter import Piece
from sis.engines.vllm import OpenAiAdapter
from sis.integrations._config import SisConfig
from sis.integrations._service import Service
from sis.integrations.trl._sampled import entries_of_tokens, sampled
from sis._run import Run, Sampling

# Name of the metric of a sample that has the number, and so the name, of its sequence: only metrics come to the trainer
# unchanged.
SEQUENCE = "sis/sequence"
# The mode of vLLM's server, which the trainer checks.
_LOGPROBS_MODE = "processed_logprobs"

# _AsyncRolloutLoop, to type checkers.
_Loop: Any = object


class Recording(NamedTuple):
    """The run and settings of the process that records; pickled."""

    config: SisConfig
    run: Run


class SisRolloutLoopMixin(_Loop):
    """Recording for a subclass of TRL's _AsyncRolloutLoop that generates by the same requests: put it first among the
    bases."""

    def __init__(self, *, sis_recording: Recording, **settings: Any) -> None:
        """Makes the loop.

        Args:
            sis_recording: The run and settings, from SisAsyncTrainerMixin.
            settings: Arguments of TRL's loop.
        """
        super().__init__(**settings)
        self._sis_run, config = sis_recording.run, sis_recording.config
        self._sis_service = Service(config, config.client(), self._sis_run)
        self._sis_sampling: Optional[Sampling] = None

    async def _post(self, path: str, payload: Dict[str, Any], *args: Any, **settings: Any) -> Any:
        if path != "/v1/completions":
            return await super()._post(path, payload, *args, **settings)
        top_k = self._sis_run.config.top_k
        request = {**payload, "logprobs": top_k, "return_tokens_as_token_ids": True}
        version = self._sis_version(payload["model"])
        answer = await super()._post(path, request, *args, **settings)
        (choice,) = answer["choices"]
        if choice["token_ids"]:
            adapter = OpenAiAdapter(request, _LOGPROBS_MODE)
            self._sis_sampling = adapter.sampling
            piece = Piece(choice, 0, len(choice["token_ids"]))
            record, faults = adapter.read([piece], top_k, self._sis_run.config.vocabulary_size)
            for fault in faults:
                warnings.warn(f"SIS: position {fault.row} of an answer is not recorded: {fault.why}", RuntimeWarning)
            told = choice["logprobs"] or {}
            values = told["token_logprobs"] if self._sis_service.config.observe else None
            # If newer weights came before the answer, tokens are of several versions, and each is recorded with the
            # distribution that it was drawn from.
            choice["logprobs"] = {**told, "token_logprobs": sampled(record, version, values)}
        return answer

    def _sis_version(self, model: str) -> int:
        """Returns the policy version of a request to this model. With LoRA each adapter has a name of its own. Without,
        the answer may be of a newer version: its tokens then count as older than they are, never as newer."""
        if self.lora_name is None:
            return int(self.model_version)
        return int(model[len(f"{self.lora_name}-v") :])

    async def _score_group(self, group: Any) -> List[Any]:
        rows = list(itertools.chain.from_iterable(group.completions_sequences))
        # 63 random bits, which fit into a tensor: no two are equal, even in another training of the same run.
        numbers = [uuid.uuid4().int >> 65 for _ in rows]
        recorded = [entry for number, row in zip(numbers, rows) for entry in _entries_of_row(str(number), row)]
        await asyncio.to_thread(self._sis_service.append, recorded, self._sis_sampling)
        samples = await super()._score_group(group)
        for number, sample in zip(numbers, samples, strict=True):
            sample.metrics[SEQUENCE] = number
        return samples


def _entries_of_row(name: str, row: Any) -> List[_entries.AppendEntry]:
    """Returns the entries of a TrainingSequence of TRL. Position 0 is its first trained token."""
    trained = np.flatnonzero(row.completion_mask)
    if not len(trained):
        return []
    begin = int(trained[0])
    seal = _entries.Seal(name, int(trained[-1]) + 1 - begin)
    return [*entries_of_tokens(name, row.completion_mask, row.old_log_probs, begin), seal]


class SisRolloutLoop(SisRolloutLoopMixin, _AsyncRolloutLoop):
    """TRL's loop, with records."""
