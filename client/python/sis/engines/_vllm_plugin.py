"""Records what `vllm serve` generates: the plug-in `sis` of vLLM. It does nothing unless SIS_ADDRESS and SIS_RUN are set."""

from __future__ import annotations

import collections
import functools
import os
import threading
import warnings
from typing import Any, Callable, Deque, Dict, List, NamedTuple, Optional, Sequence

from sis import _errors
from sis._client import Client
from sis._run import Run, Sampling
from sis.engines import _vllm_arrays
from sis.engines._recorder import Recorder
from sis.engines.vllm import VllmAdapter, check_engine

# Seconds between attempts to find the run, and between flushes, which show what the server refused.
_INTERVAL = 1.0
# Requests with more kinds of sampling parameters at a time are not recorded: each kind has a thread.
_MAX_RECORDERS = 16
# Aborted requests that may go on; the oldest ones are forgotten.
_MAX_ABORTED = 1 << 14
# Seconds for storing the rest when the engine ends.
_LAST_FLUSH = 10.0

_registered = False


def register() -> None:
    """Called by vLLM in each of its processes. Only the AsyncLLM of an API server records."""
    global _registered
    address, run_id = os.environ.get("SIS_ADDRESS"), os.environ.get("SIS_RUN")
    if not address or not run_id or _registered:
        return
    _registered = True
    from vllm.v1.engine.async_llm import AsyncLLM

    make = AsyncLLM.__init__

    @functools.wraps(make)
    def made(self: Any, *arguments: Any, **named: Any) -> None:
        make(self, *arguments, **named)
        names = address.split(",")
        ServingRecorder(self, Client(names if len(names) > 1 else address, reopen_runs=False), run_id)

    AsyncLLM.__init__ = made


class _Begun(NamedTuple):
    """A request that is recorded when it ends."""

    # vLLM's RequestState.
    state: Any
    log_probs: _vllm_arrays.ArrayLogprobs
    recorder: Recorder


class ServingRecorder:
    """Records the requests of an AsyncLLM, each when it ends.

    The engine makes the log-probs of the run's top K for every request, and vLLM's answer has those that the client
    asked for. A sequence has the name of the request, see `name_of`. Requests that draw no token, that ask for all
    log-probs, or that come before the run is there are not recorded. Nothing here raises into vLLM.
    """

    def __init__(self, engine: Any, client: Client, run_id: str) -> None:
        """Begins at once. Closes `client` when the engine shuts down.

        Raises:
            ValueError: The engine returns no log-probs of the draw (check_engine), or is built in another way.
        """
        check_engine(engine)
        processor = _vllm_arrays.processor_of(engine)
        self._engine, self._client, self._run_id = engine, client, run_id
        self._states = processor.request_states
        self._begun: Dict[str, _Begun] = {}
        # Calls that forget an aborted request.
        self._aborted: Deque[Callable[[], None]] = collections.deque()
        # Guards the run and its recorders.
        self._lock = threading.Lock()
        self._run: Optional[Run] = None
        self._recorders: Dict[Sampling, Recorder] = {}
        self._closed = threading.Event()
        self._add_request, processor.add_request = processor.add_request, self.add_request
        self._process_outputs, processor.process_outputs = processor.process_outputs, self.process_outputs
        self._abort_requests, processor.abort_requests = processor.abort_requests, self.abort_requests
        self._shutdown, engine.shutdown = engine.shutdown, self.shutdown
        self._find_run()
        self._thread = threading.Thread(target=self._work, name="sis-vllm", daemon=True)
        self._thread.start()

    # In place of the methods of vLLM's OutputProcessor and AsyncLLM, in its event loop.

    def add_request(self, request: Any, *arguments: Any, **named: Any) -> None:
        known = request.request_id in self._states
        self._add_request(request, *arguments, **named)
        if not known:
            self._guarded(self._begin, request)

    def process_outputs(self, outputs: Sequence[Any], *arguments: Any, **named: Any) -> Any:
        processed = self._process_outputs(outputs, *arguments, **named)
        for output in outputs:
            if output.request_id in self._begun and output.request_id not in self._states:
                # Without a reason of the engine it ended at a stop string.
                self._guarded(self._end, output.request_id, str(output.finish_reason or "stop"))
        return processed

    def abort_requests(self, *arguments: Any, **named: Any) -> List[str]:
        aborted = self._abort_requests(*arguments, **named)
        for request_id in aborted:
            if request_id in self._begun:
                self._guarded(self._end, request_id, "abort")
        return aborted

    def shutdown(self, *arguments: Any, **named: Any) -> None:
        if not self._closed.is_set():
            self._closed.set()
            closing = threading.Thread(target=self._close, daemon=True)
            closing.start()
            closing.join(_LAST_FLUSH)
        self._shutdown(*arguments, **named)

    def _guarded(self, call: Callable[..., None], *arguments: Any) -> None:
        try:
            call(*arguments)
        except Exception as error:  # Any: vLLM serves on.
            _warn(f"a request is not recorded: {type(error).__name__}: {error}")

    def _begin(self, request: Any) -> None:
        params, run = request.sampling_params, self._run
        if run is None or params is None or params.logprobs == -1:
            return
        if getattr(request, "resumable", False) or getattr(params, "logprob_token_ids", None):
            return
        recorded = params.clone()
        recorded.logprobs = max(run.config.top_k, params.logprobs or 0)
        try:
            adapter = VllmAdapter(self._engine, recorded)
        except ValueError:
            return  # It draws no token.
        recorder = self._recorder(run, adapter)
        if recorder is None:
            return
        request.sampling_params = recorded
        state = self._states[request.request_id]
        log_probs = _vllm_arrays.ArrayLogprobs(run.config.top_k + 1)
        own = state.logprobs_processor
        answer = own._update_sample_logprobs
        own._update_sample_logprobs = functools.partial(_update, log_probs, answer, own.num_logprobs)
        self._begun[request.request_id] = _Begun(state, log_probs, recorder)

    def _recorder(self, run: Run, adapter: VllmAdapter) -> Optional[Recorder]:
        kind = adapter.sampling
        with self._lock:
            if kind not in self._recorders and run is self._run:
                if len(self._recorders) >= _MAX_RECORDERS:
                    _warn(f"requests have more than {_MAX_RECORDERS} kinds of sampling parameters; others are not recorded")
                    return None
                self._recorders[kind] = Recorder(self._client, run, adapter, worker="vllm serve")
            return self._recorders.get(kind)

    def _end(self, request_id: str, reason: str) -> None:
        state, log_probs, recorder = self._begun.pop(request_id)
        if not len(log_probs):
            return
        if recorder.must_wait:
            _warn("the server has no room: requests are not recorded until it has")
            return
        output = _vllm_arrays.whole(state, log_probs, reason)
        name = name_of(state)
        recorder.add(name, output)
        if reason in ("abort", "error"):
            self._aborted.append(functools.partial(recorder.forget, name))
            if len(self._aborted) > _MAX_ABORTED:
                self._aborted.popleft()()

    # In the thread.

    def _work(self) -> None:
        while not self._closed.wait(_INTERVAL):
            if self._run is None:
                self._find_run()
            for recorder in list(self._recorders.values()):
                try:
                    recorder.flush()
                except (_errors.FailedPrecondition, _errors.NotFound) as error:
                    _warn(f"run {self._run_id} has begun again, or is gone: {error}")
                    self._forget_run()
                    break
                except Exception as error:  # Any: what was recorded is refused, and vLLM serves on.
                    _warn(str(error))

    def _find_run(self) -> None:
        try:
            self._run = self._client.get_run(self._run_id).run
        except _errors.Error as error:
            _warn(f"nothing is recorded until run {self._run_id} is found: {error}")

    def _forget_run(self) -> None:
        with self._lock:
            recorders, self._recorders = self._recorders, {}
            self._run = None
        for recorder in recorders.values():
            recorder.abandon()

    def _close(self) -> None:
        self._thread.join()
        for recorder in list(self._recorders.values()):
            try:
                recorder.close()
            except Exception as error:  # Any: as above.
                _warn(str(error))
        self._client.close()


def name_of(state: Any) -> str:
    """Returns the name of the sequence of a vLLM RequestState: the request's id; with n > 1 also the choice's index."""
    name = state.external_req_id
    return name if state.parent_req is None else f"{name}/{state.request_index}"


def _update(log_probs: _vllm_arrays.ArrayLogprobs, answer: Any, asked: Optional[int], step: Any) -> None:
    """Replaces LogprobsProcessor._update_sample_logprobs.

    Args:
        log_probs: Takes the step's log-probs for the record.
        answer: Takes those that the client asked for.
        asked: Number of log-probs that it asked for, next to the sampled token's. None: it asked for none.
        step: vLLM's LogprobsLists.
    """
    ids, values, *others = step
    log_probs.add_step(ids, values)
    if asked is not None:
        answer(type(step)(ids[:, : asked + 1], values[:, : asked + 1], *others))


def _warn(text: str) -> None:
    """Python shows each text once."""
    warnings.warn(f"SIS: {text}", RuntimeWarning, stacklevel=2)
