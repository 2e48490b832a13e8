"""vLLM's asynchronous engine, as verl's rollout servers use it, with what it generates recorded."""

from __future__ import annotations

import asyncio
import collections
import copy
import hashlib
import time
from typing import Any, AsyncIterator, Callable, Dict, List, NamedTuple, Optional, Tuple

import numpy as np

from sis import errors
from sis.engines.recorder import Recorder
from sis.engines.vllm import VllmAdapter, check_engine, of_the_sampled
from sis.engines.vllm import sampling as sampling_of
from sis.outage import Outage
from sis.run import Run, Sampling
from sis.verl.names import SESSION, name_in, name_of
from sis.verl.settings import Settings

# Of aborted requests that nobody has continued, and of names that were recorded; then the oldest
# is forgotten.
_KEPT = 1 << 14
# Seconds between attempts to open the run, and between sending.
_RETRY_AFTER = 5.0
_INTERVAL = 0.1


class _Part(NamedTuple):
    """What one request generated."""

    output: Any
    # Of the weights when it began.
    policy_version: int
    sampled_ids: List[int]
    # float32 [T], nats.
    log_probs: np.ndarray


class _Unfinished(NamedTuple):
    """An aborted request and those that it continued."""

    # What the first of them was asked to continue.
    prompt: List[int]
    parts: List[_Part]


class RecordingEngine:
    """An AsyncLLM whose `generate` also records. All else is the engine's own.

    Only requests that ask for log-probs and draw their tokens are recorded, once they end: under the
    name of `name_in` if they tell their session, else, and where that is taken, that of `name_of`. A
    request that was aborted waits for the one that continues it. Of what goes wrong here each outage
    warns once, and generation goes on. To be used on one event loop.
    """

    def __init__(
        self, engine: Any, settings: Settings, vocabulary_size: int, policy_version: Callable[[], Optional[int]]
    ) -> None:
        """`policy_version`: of the weights that the engine has; None before the first.

        ValueError if the engine returns logits instead of log-probs, or decodes speculatively.
        """
        check_engine(engine)
        self._engine = engine
        self._settings = settings
        self._vocabulary_size = vocabulary_size
        self._policy_version = policy_version
        self._client = settings.client()
        self._outage = Outage()
        self._run: Optional[Run] = None
        self._next_attempt = 0.0
        self._opening = asyncio.Lock()
        self._recorders: Dict[Sampling, Recorder] = {}
        # By session and digest of all tokens so far, the oldest first.
        self._unfinished: collections.OrderedDict[Tuple[str, bytes], _Unfinished] = collections.OrderedDict()
        self._recorded: collections.OrderedDict[str, None] = collections.OrderedDict()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    async def generate(
        self, prompt: Any, sampling_params: Any, request_id: str, *arguments: Any, **named: Any
    ) -> AsyncIterator[Any]:
        """As AsyncLLM.generate, with what was asked for."""
        if sampling_params.logprobs is None or sampling_params.temperature == 0:
            async for output in self._engine.generate(prompt, sampling_params, request_id, *arguments, **named):
                yield output
            return
        changed = sampling_params.clone()
        changed.logprobs = max(self._settings.top_k, changed.logprobs)
        changed.flat_logprobs = True
        version = self._policy_version() or 0
        last = None
        async for output in self._engine.generate(prompt, changed, request_id, *arguments, **named):
            last = output
            if sampling_params.logprobs == 0 and not sampling_params.flat_logprobs and output.finished:
                yield _as_asked(output)
            else:
                yield output
        if last is not None and last.finished and last.outputs:
            try:
                await self._ended(changed, last, version)
            except Exception as error:  # Any: generation goes on.
                self._lost("record", error)

    async def flush(self) -> None:
        """Returns when all that has ended is stored, or given up."""
        for recorder in list(self._recorders.values()):
            try:
                await asyncio.to_thread(recorder.flush)
            except Exception as error:  # Any: generation goes on.
                self._lost("flush", error)
            else:
                self._outage.succeeded("flush")

    async def advance_version(self, policy_version: int) -> None:
        """Tells the service that the weights of a version are there."""
        try:
            try:
                await self._advance_version(policy_version)
            except errors.FailedPrecondition:
                # The training has begun anew: this is of a run that is no longer there.
                await self._forget_run()
                await self._advance_version(policy_version)
        except errors.Error as error:
            self._lost("version", error)

    async def close(self) -> None:
        await self.flush()
        await self._forget_run()
        self._client.close()

    async def _advance_version(self, policy_version: int) -> None:
        run = await self._opened()
        if run is not None:
            await asyncio.to_thread(self._client.advance_version, run, policy_version)
            self._outage.succeeded("version")

    async def _forget_run(self) -> None:
        recorders, self._recorders = list(self._recorders.values()), {}
        self._run, self._next_attempt = None, 0.0
        self._recorded.clear()
        for recorder in recorders:
            await asyncio.to_thread(recorder.abandon)

    def _lost(self, what: str, error: Exception) -> None:
        self._outage.lost(what, f"sis.verl: {what}: generation goes on, not recorded: {error}")

    async def _ended(self, sampling_params: Any, output: Any, version: int) -> None:
        completion = output.outputs[0]
        before, tokens = list(output.prompt_token_ids), list(completion.token_ids)
        if not tokens:
            return
        listed = completion.logprobs
        firsts = np.asarray(listed.start_indices)
        log_probs = np.asarray(listed.logprobs, np.float32)[firsts]
        session = (sampling_params.extra_args or {}).get(SESSION, "")
        earlier = self._unfinished.pop((session, _digest(before)), None) or _Unfinished(before, [])
        parts = [*earlier.parts, _Part(output, version, tokens, log_probs)]
        if completion.finish_reason in ("abort", "error"):
            self._unfinished[session, _digest(before + tokens)] = _Unfinished(earlier.prompt, parts)
            if len(self._unfinished) > _KEPT:
                self._unfinished.popitem(last=False)
            return
        recorder = await self._recorder(sampling_params)
        if recorder is None:
            return
        sampled = [token for part in parts for token in part.sampled_ids]
        name = name_of(earlier.prompt, sampled, np.concatenate([part.log_probs for part in parts]))
        if session and name_in(session, earlier.prompt) not in self._recorded:
            name = name_in(session, earlier.prompt)
        if name in self._recorded:
            return
        while recorder.must_wait:
            await asyncio.sleep(_INTERVAL)
        for part in parts:
            recorder.add(name, part.output, policy_version=part.policy_version)
        recorder.forget(name)
        self._outage.succeeded("record")
        self._recorded[name] = None
        if len(self._recorded) > _KEPT:
            self._recorded.popitem(last=False)

    async def _recorder(self, sampling_params: Any) -> Optional[Recorder]:
        run = await self._opened()
        if run is None:
            return None
        key = sampling_of(self._engine, sampling_params)
        if key not in self._recorders:
            adapter = VllmAdapter(self._engine, sampling_params)
            self._recorders[key] = Recorder(
                self._client, run, adapter, worker="verl", interval=_INTERVAL, outage=self._outage
            )
        return self._recorders[key]

    async def _opened(self) -> Optional[Run]:
        # Others wait for the one that asks.
        async with self._opening:
            if self._run is None and time.monotonic() >= self._next_attempt:
                try:
                    self._run = await asyncio.to_thread(self._settings.create_run, self._client, self._vocabulary_size)
                except errors.Error as error:
                    self._lost("open", error)
                else:
                    self._outage.succeeded("open")
                self._next_attempt = time.monotonic() + _RETRY_AFTER
        return self._run


def _as_asked(output: Any) -> Any:
    """`output` with the sampled tokens' log-probs only."""
    made = copy.copy(output)
    made.outputs = [copy.copy(completion) for completion in output.outputs]
    for completion in made.outputs:
        completion.logprobs = of_the_sampled(completion.logprobs)
    return made


def _digest(tokens: List[int]) -> bytes:
    return hashlib.blake2b(np.asarray(tokens, np.int64).tobytes(), digest_size=16).digest()
