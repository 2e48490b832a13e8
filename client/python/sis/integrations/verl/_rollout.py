"""vLLM's asynchronous engine, as verl's rollout servers use it, with a record of its rollouts."""

from __future__ import annotations

import asyncio
import collections
import copy
import functools
import time
from typing import Any, AsyncIterator, Awaitable, Callable, Dict, List, NamedTuple, Optional, TypeVar

import numpy as np

from sis import _errors
from sis.engines._recorder import Recorder
from sis.engines.vllm import VllmAdapter, check_engine, of_the_sampled
from sis.integrations._config import SisConfig
from sis.integrations._names import SESSION, name_in, name_of
from sis._outage import Outage
from sis._run import Run, Sampling

# Largest number of aborted requests that wait for their continuation, and of recorded names; the oldest ones go first.
_KEPT = 1 << 14
# Seconds between attempts to open the run, and between sending.
_RETRY_AFTER = 5.0
_INTERVAL = 0.1

_Answer = TypeVar("_Answer")


class _Part(NamedTuple):
    """The T tokens of one request.

    Attributes:
        output: vLLM's last output.
        policy_version: Version of the weights when the request began.
        sampled_ids: Token ids [T].
        log_probs: float32 [T], nats.
    """

    output: Any
    policy_version: int
    sampled_ids: List[int]
    log_probs: np.ndarray


class _Unfinished(NamedTuple):
    """An aborted request with the earlier ones that it continued: the first one's prompt, and all parts."""

    prompt: List[int]
    parts: List[_Part]


class RecordingEngine:
    """An AsyncLLM whose `generate` also records. All else is the engine's own.

    Only requests that ask for log-probs and draw their tokens are recorded, once they end: under the name of `name_in`
    if they have a session and that name is free, otherwise under that of `name_of`. An aborted request waits for the
    one that continues it. Each outage warns once, and generation continues. Use it on one event loop.
    """

    def __init__(
        self, engine: Any, settings: SisConfig, vocabulary_size: int, policy_version: Callable[[], Optional[int]]
    ) -> None:
        """Wraps an engine.

        Args:
            engine: vLLM's AsyncLLM.
            settings: Settings, with address and run.
            vocabulary_size: Number of tokens of the model's head.
            policy_version: Returns the version of the engine's weights; None before the first.

        Raises:
            ValueError: The engine returns logits instead of log-probs, or decodes speculatively.
        """
        check_engine(engine)
        self._engine = engine
        self._settings = settings
        self._vocabulary_size = vocabulary_size
        self._policy_version = policy_version
        self._client = settings.client(skips=False)
        self._outage = Outage()
        self._run: Optional[Run] = None
        self._next_attempt = 0.0
        self._opening = asyncio.Lock()
        self._recorders: Dict[Sampling, Recorder] = {}
        # By name_in of all tokens so far, the oldest first.
        self._unfinished: collections.OrderedDict[str, _Unfinished] = collections.OrderedDict()
        self._recorded: collections.OrderedDict[str, None] = collections.OrderedDict()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    async def generate(
        self, prompt: Any, sampling_params: Any, request_id: str, *arguments: Any, **named: Any
    ) -> AsyncIterator[Any]:
        """Generates as AsyncLLM.generate does, with the requested log-probs.

        Args:
            prompt, sampling_params, request_id, arguments, named: Arguments of AsyncLLM.generate.

        Yields:
            vLLM's outputs.
        """
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
            await self._tried("record", self._ended(changed, last, version))

    async def flush(self) -> None:
        """Returns when all ended requests are stored or given up."""
        for recorder in list(self._recorders.values()):
            await self._tried("flush", asyncio.to_thread(recorder.flush))

    async def advance_version(self, policy_version: int) -> None:
        """Tells the service that the engine has new weights.

        Args:
            policy_version: Version of the weights.
        """
        await self._tried("version", self._advance_version(policy_version))

    async def close(self) -> None:
        """Flushes, and closes the client."""
        await self.flush()
        await self._forget_run()
        self._client.close()

    async def _advance_version(self, policy_version: int) -> None:
        run = await self._opened()
        if run is None:
            return
        try:
            await asyncio.to_thread(self._client.advance_version, run, policy_version)
        except _errors.FailedPrecondition:
            # The training has begun again, with another incarnation of the run.
            await self._forget_run()
            await asyncio.to_thread(self._client.advance_version, await self._opened() or run, policy_version)

    async def _forget_run(self) -> None:
        recorders, self._recorders = list(self._recorders.values()), {}
        self._run, self._next_attempt = None, 0.0
        self._recorded.clear()
        for recorder in recorders:
            await asyncio.to_thread(recorder.abandon)

    async def _tried(self, what: str, call: Awaitable[_Answer]) -> Optional[_Answer]:
        """Returns the result of `call`; None if it fails in any way, because generation goes on."""
        try:
            answer = await call
        except Exception as error:
            self._outage.lost(what, f"SIS: {what}: generation goes on, not recorded: {error}")
            return None
        self._outage.succeeded(what)
        return answer

    async def _ended(self, sampling_params: Any, output: Any, version: int) -> None:
        completion = output.outputs[0]
        before, tokens = list(output.prompt_token_ids), list(completion.token_ids)
        if not tokens:
            return
        listed = completion.logprobs
        firsts = np.asarray(listed.start_indices)
        log_probs = np.asarray(listed.logprobs, np.float32)[firsts]
        session = (sampling_params.extra_args or {}).get(SESSION, "")
        earlier = self._unfinished.pop(name_in(session, before), None) or _Unfinished(before, [])
        parts = [*earlier.parts, _Part(output, version, tokens, log_probs)]
        if completion.finish_reason in ("abort", "error"):
            self._unfinished[name_in(session, before + tokens)] = _Unfinished(earlier.prompt, parts)
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
        self._recorded[name] = None
        if len(self._recorded) > _KEPT:
            self._recorded.popitem(last=False)

    async def _recorder(self, sampling_params: Any) -> Optional[Recorder]:
        run = await self._opened()
        if run is None:
            return None
        adapter = VllmAdapter(self._engine, sampling_params)
        if adapter.sampling not in self._recorders:
            self._recorders[adapter.sampling] = Recorder(
                self._client, run, adapter, worker="verl", interval=_INTERVAL, outage=self._outage
            )
        return self._recorders[adapter.sampling]

    async def _opened(self) -> Optional[Run]:
        # One call asks, the others wait for it.
        async with self._opening:
            if self._run is None and time.monotonic() >= self._next_attempt:
                create = functools.partial(self._settings.create_run, algorithm="verl")
                opening = asyncio.to_thread(create, self._client, self._vocabulary_size)
                self._run = await self._tried("open", opening)
                self._next_attempt = time.monotonic() + _RETRY_AFTER
        return self._run


def _as_asked(output: Any) -> Any:
    """Returns `output` with the log-probs of the sampled tokens only."""
    made = copy.copy(output)
    made.outputs = [copy.copy(completion) for completion in output.outputs]
    for completion in made.outputs:
        completion.logprobs = of_the_sampled(completion.logprobs)
    return made
