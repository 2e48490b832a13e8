"""What TRL's asynchronous trainer generates, recorded as it is scored by the process that does both."""

from __future__ import annotations

import asyncio
import itertools
import uuid
import warnings
from typing import Any, Dict, List, NamedTuple, Optional

import numpy as np
from trl.experimental.async_grpo.async_rollout_worker import _AsyncRolloutLoop

from sis import entries
from sis.client import Client
from sis.engines.adapter import Piece, entries_of
from sis.engines.lists import stretches
from sis.engines.vllm import OpenAiAdapter
from sis.outage import Outage
from sis.run import Run, Sampling
from sis.top_k import TopK

# Where the metrics of a sample say which sequence of the run it is, by a number that is its name:
# they alone come to the trainer as they are.
SEQUENCE = "sis/sequence"
# Of vLLM's server, which the trainer asks whether it was started so.
_LOGPROBS_MODE = "processed_logprobs"

# _AsyncRolloutLoop, to type checkers.
_Loop: Any = object


class Recording(NamedTuple):
    """What the process needs to record; it is pickled."""

    addresses: List[str]
    run: Run


class _Turn:
    """One answer of the engine."""

    def __init__(self, record: TopK, policy_version: int) -> None:
        self.record = record
        # When it was asked. Newer weights may have come before it answered: tokens are then of several
        # versions, and each recorded with what it was drawn from.
        self.policy_version = policy_version

    def log_probs(self) -> List[_Sampled]:
        return [_Sampled(value, self, row) for row, value in enumerate(self.record.sampled_log_probs.tolist())]


class _Sampled(float):
    """The log-prob of a sampled token, that knows which row of which record it is of: so TRL, which cuts
    and joins turns, keeps rows and tokens together."""

    turn: _Turn
    row: int

    def __new__(cls, log_prob: float, turn: _Turn, row: int) -> _Sampled:
        made = super().__new__(cls, log_prob)
        made.turn, made.row = turn, row
        return made


class SisRolloutLoopMixin(_Loop):
    """Goes before TRL's _AsyncRolloutLoop, or a subclass of it that generates by the same requests, among
    the bases."""

    def __init__(self, *, sis_recording: Recording, **settings: Any) -> None:
        super().__init__(**settings)
        self._sis_run = sis_recording.run
        self._sis_client = Client(sis_recording.addresses)
        self._sis_outage = Outage()
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
            log_probs = _Turn(record, version).log_probs()
            choice["logprobs"] = {**(choice["logprobs"] or {}), "token_logprobs": log_probs}
        return answer

    def _sis_version(self, model: str) -> int:
        """Of the policy of a request to this model, that is about to be sent. Where an adapter is one, it has
        a name of its own. Else the answer may be of a newer one: then the tokens count as older than they
        are, never as newer."""
        if self.lora_name is None:
            return int(self.model_version)
        return int(model[len(f"{self.lora_name}-v") :])

    async def _score_group(self, group: Any) -> List[Any]:
        rows = list(itertools.chain.from_iterable(group.completions_sequences))
        # Of 63 bits, as a tensor has: no two are alike, also of another training of the same run.
        numbers = [uuid.uuid4().int >> 65 for _ in rows]
        recorded = [entry for number, row in zip(numbers, rows) for entry in _entries(str(number), row)]
        append = lambda: self._sis_client.append_many(self._sis_run, recorded, sampling=self._sis_sampling)
        if recorded:
            await asyncio.to_thread(self._sis_outage.asked, "rollouts are not recorded", append)
        samples = await super()._score_group(group)
        for number, sample in zip(numbers, samples, strict=True):
            sample.metrics[SEQUENCE] = number
        return samples


def _entries(name: str, row: Any) -> List[entries.AppendEntry]:
    """Of one of TRL's TrainingSequence. Position 0 is its first trained token."""
    made: List[entries.AppendEntry] = []
    mask = np.asarray(row.completion_mask)
    begin = int(mask.argmax())
    for first, last in stretches(mask):
        if not all(isinstance(log_prob, _Sampled) for log_prob in row.old_log_probs[first:last]):
            raise ValueError(
                "the rollout loop has log-probs from elsewhere than /v1/completions: they are not recorded"
            )
        of_turns = itertools.groupby(row.old_log_probs[first:last], lambda log_prob: log_prob.turn)
        for turn, log_probs in of_turns:
            rows = [log_prob.row for log_prob in log_probs]
            record = turn.record.part(rows)
            made += entries_of(name, first - begin, turn.policy_version, record)
            first += len(rows)
    if made:
        made.append(entries.Seal(name, last - begin))
    return made


class SisRolloutLoop(SisRolloutLoopMixin, _AsyncRolloutLoop):
    """TRL's, with records."""
