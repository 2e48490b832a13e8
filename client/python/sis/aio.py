"""The client for asyncio: rollout workers and agent loops that must not block their event loop.

    async with sis.aio.Client(address) as client:
        run = await client.create_run("run", seed=1, vocabulary_size=64, top_k=10)

Every call runs the call of sis.Client in a thread, with the same arguments, results and errors. A call whose task is
cancelled still runs to its end, at most for the client's `timeout`. Every call may be repeated.
"""

from __future__ import annotations

import asyncio
import collections
import functools
from concurrent import futures
from typing import Any, Awaitable, Callable, Dict, Iterable, Optional, Tuple, TypeVar

import sis._append
import sis._client
from sis import _spans
from sis.engines._adapter import Adapter
from sis.engines._recorder import Recorder as BlockingRecorder
from sis._owner import Owner
from sis._records import MissingReason, SequenceRef
from sis._run import Run

_Result = TypeVar("_Result")
_Self = TypeVar("_Self")

# Maximum number of concurrent calls; others wait for a thread.
MAX_CALLS = 64


async def _in_thread(pool: futures.Executor, call: Callable[..., _Result], *arguments: Any, **named: Any) -> _Result:
    bound = functools.partial(_spans.in_this_context(call), *arguments, **named)
    return await asyncio.get_running_loop().run_in_executor(pool, bound)


def _awaited(method: Callable[..., _Result]) -> Callable[..., Awaitable[_Result]]:
    """Returns a method that calls the method of self.blocking with the same name in a thread."""

    @functools.wraps(method)
    async def call(self: Any, *arguments: Any, **named: Any) -> _Result:
        return await _in_thread(self._pool, getattr(self.blocking, method.__name__), *arguments, **named)

    return call


def _passed_on(method: Callable[..., _Result]) -> Callable[..., _Result]:
    """Returns a method that calls that of self.blocking with the same name, which never waits, without a thread."""

    @functools.wraps(method)
    def call(self: Any, *arguments: Any, **named: Any) -> _Result:
        return getattr(self.blocking, method.__name__)(*arguments, **named)

    return call


class _Threads(futures.ThreadPoolExecutor):
    """Threads of the process that made them. A forked process has none of them."""

    def __init__(self) -> None:
        super().__init__(MAX_CALLS, thread_name_prefix="sis-aio")
        self._owner = Owner()

    def submit(self, *arguments: Any, **named: Any) -> futures.Future[Any]:
        self._owner.check("client")
        return super().submit(*arguments, **named)


class _Flushed:
    """An async context manager that calls `close` on exit, or `abandon` after an exception."""

    close: Callable[..., Awaitable[None]]
    abandon: Callable[..., Awaitable[None]]

    async def __aenter__(self: _Self) -> _Self:
        return self

    async def __aexit__(self, exception_type: Optional[type], *_: object) -> None:
        await (self.close() if exception_type is None else self.abandon())


class AppendStream(_Flushed):
    """sis.AppendStream: an async context manager. Entries of one sequence are applied in order if
    each call is awaited before the next."""

    def __init__(self, blocking: sis._append.AppendStream, pool: futures.Executor) -> None:
        """Makes a stream. Client.append calls it.

        Args:
            blocking: The stream that makes the calls.
            pool: Threads for the calls.
        """
        self.blocking = blocking
        self._pool = pool

    block = _awaited(sis._append.AppendStream.block)
    gap = _awaited(sis._append.AppendStream.gap)
    seal = _awaited(sis._append.AppendStream.seal)
    append_many = _awaited(sis._append.AppendStream.append_many)
    flush = _awaited(sis._append.AppendStream.flush)
    close = _awaited(sis._append.AppendStream.close)
    abandon = _awaited(sis._append.AppendStream.abandon)


class Client:
    """sis.Client: an async context manager, with the same arguments and methods."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        # The client that makes the calls; thread-safe, and closed with this one.
        self.blocking = sis._client.Client(*arguments, **named)
        self._pool = _Threads()

    functools.update_wrapper(__init__, sis._client.Client.__init__)

    create_run = _awaited(sis._client.Client.create_run)
    get_run = _awaited(sis._client.Client.get_run)
    delete_run = _awaited(sis._client.Client.delete_run)
    list_runs = _awaited(sis._client.Client.list_runs)
    advance_version = _awaited(sis._client.Client.advance_version)
    list_steps = _awaited(sis._client.Client.list_steps)
    get_servers = _awaited(sis._client.Client.get_servers)
    list_sequences = _awaited(sis._client.Client.list_sequences)
    inspect_run = _awaited(sis._client.Client.inspect_run)
    inspect_sequence = _awaited(sis._client.Client.inspect_sequence)
    fetch_top_k = _awaited(sis._client.Client.fetch_top_k)
    evaluate = _awaited(sis._client.Client.evaluate)
    release = _awaited(sis._client.Client.release)

    async def append(self, *arguments: Any, **named: Any) -> AppendStream:
        """Opens a stream, as sis.Client.append.

        Returns:
            The stream, an async context manager.
        """
        stream = await _in_thread(self._pool, self.blocking.append, *arguments, **named)
        return AppendStream(stream, self._pool)

    async def close(self) -> None:
        """Closes the connections, as sis.Client.close."""
        await _in_thread(self._pool, self.blocking.close)
        self._pool.shutdown(wait=False)

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


@functools.wraps(sis._client.append_many)
async def append_many(client: Client, *arguments: Any, **named: Any) -> Dict[SequenceRef, int]:
    """Does the same as sis.append_many, in a thread.

    Args:
        client: The client.

    Returns:
        The committed length of each sequence, in positions.
    """
    return await _in_thread(client._pool, sis._client.append_many, client.blocking, *arguments, **named)


class Recorder(_Flushed):
    """sis.engines.Recorder: an async context manager."""

    def __init__(self, client: Client, run: Run, adapter: Adapter, **named: Any) -> None:
        """Makes a recorder.

        Args:
            client: The client.
            run: The run.
            adapter: The engine's adapter.
            named: As in sis.engines.Recorder.
        """
        self.blocking = BlockingRecorder(client.blocking, run, adapter, **named)
        self._pool = client._pool

    @property
    def policy_version(self) -> Optional[int]:
        """Version of the weights that generate the outputs."""
        return self.blocking.policy_version

    @policy_version.setter
    def policy_version(self, version: Optional[int]) -> None:
        self.blocking.policy_version = version

    @property
    def unusable(self) -> collections.Counter[MissingReason]:
        """Counts as in sis.engines.Recorder."""
        return self.blocking.unusable

    async def add(
        self, sequence: str, output: Any, *, more: bool = False, policy_version: Optional[int] = None
    ) -> None:
        """Adds an engine's output, as sis.engines.Recorder.add. Leaves the event loop only where it must wait for the
        server.

        Args:
            sequence, output, more, policy_version: As in sis.engines.Recorder.add.
        """
        named: Dict[str, Any] = {"more": more, "policy_version": policy_version}
        if self.blocking.must_wait:
            await _in_thread(self._pool, self.blocking.add, sequence, output, **named)
        else:
            self.blocking.add(sequence, output, **named)

    async def add_many(self, outputs: Iterable[Tuple[str, Any]], *, policy_version: Optional[int] = None) -> None:
        """Adds several outputs. Leaves the event loop only where it must wait for the server.

        Args:
            outputs, policy_version: As in sis.engines.Recorder.add_many.
        """
        if self.blocking.must_wait:
            await _in_thread(self._pool, self.blocking.add_many, outputs, policy_version=policy_version)
        else:
            self.blocking.add_many(outputs, policy_version=policy_version)

    skip = _passed_on(BlockingRecorder.skip)
    retry = _passed_on(BlockingRecorder.retry)
    forget = _passed_on(BlockingRecorder.forget)
    flush = _awaited(BlockingRecorder.flush)
    close = _awaited(BlockingRecorder.close)
    abandon = _awaited(BlockingRecorder.abandon)
