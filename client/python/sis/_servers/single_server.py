"""The calls of one server as messages. Reopens runs on a server that restarts without its memory."""

from __future__ import annotations

import collections
import dataclasses
import threading
from typing import Any, Callable, Deque, Dict, List, Mapping, Optional, Sequence, TypeVar, Union

import grpc

from sis import _errors, _owner
from sis._append import Source
from sis._append_streams.server_append import ServerAppendStream
from sis._credentials import Credentials
from sis._evaluate.micro_batches import Request
from sis._records import Slice
from sis._servers.circuit_breaker import CircuitBreaker
from sis.v1 import ratio_service_pb2 as pb
from sis.v1 import ratio_service_pb2_grpc
from sis._wire import fetched_records
from sis._wire.fetched_records import FetchedSlice

_Answer = TypeVar("_Answer")

_CHANNEL_OPTIONS = (
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    # Separate connections per client. Otherwise gRPC in a forked process would use its parent's.
    ("grpc.use_local_subchannel_pool", 1),
    # Sends large messages in few frames; the default is 16 KiB.
    ("grpc.http2.max_frame_size", 1 << 20),
    # Finds a restarted server, perhaps at another address, within about a second; by default it may take
    # minutes. An unanswered attempt to connect ends after 3 seconds, the minimum between attempts; by
    # default after 20.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 3000),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.dns_min_time_between_resolutions_ms", 500),
    # gRPC itself resends calls that the server has not processed. Older versions (1.51) may then lose a
    # stream's first large message.
    ("grpc.enable_retries", 0),
)

# Concurrent Evaluate calls of one batch. The server works on one while others are being transferred.
_EVALUATES_AT_ONCE = 2

# Deadline of a breaker's probe, in seconds.
_PROBE_TIMEOUT = 1.0

# Maximum number of labels that a server keeps per run.
_MAX_LABELS = 1024


@dataclasses.dataclass(eq=False)
class _KnownRun:
    """A run that this client has opened or looked up, so that it can reopen it."""

    # Names the incarnation.
    request: pb.CreateRunRequest
    policy_version: int = 0
    # By policy version.
    labels: Dict[int, str] = dataclasses.field(default_factory=dict)
    # True if the server is known to have the run with that version.
    confirmed: bool = False


def _about_a_run(name: str) -> Callable[[SingleServer, Any], Any]:
    """Returns the method for the call `name`, whose requests name a run."""
    return lambda server, request: server._call_about(request.run.run_id, getattr(server._stub, name), request)


class SingleServer:
    """The calls of RatioService over one connection. They raise sis.Error. Thread-safe.

    If the server has lost a run, or has an older incarnation, reopens the run with its policy version and repeats the
    call once (docs/decisions.md, 2). The records are lost, but training continues.
    """

    # A larger Evaluate is sent as several calls of about this size, in parallel.
    micro_batch_bytes = 4 << 20

    def __init__(
        self,
        address: str,
        timeout: Optional[float],
        credentials: Optional[Credentials],
        breaker: Optional[CircuitBreaker] = None,
        reopen_runs: bool = True,
    ) -> None:
        """Connects to a server.

        Args:
            credentials: None means Credentials.from_environment().
            breaker: For one of several replicas.
            reopen_runs: See sis.Client.
        """
        self._channel = (credentials or Credentials.from_environment()).channel(address, _CHANNEL_OPTIONS)
        self._stub = ratio_service_pb2_grpc.RatioServiceStub(self._channel)
        self._timeout = timeout
        self._breaker = breaker
        self._reopen_runs = reopen_runs
        self._lock = threading.Lock()
        # By run id; guarded by _lock.
        self._known: Dict[str, _KnownRun] = {}

    def close(self) -> None:
        self._channel.close()
        _owner.call_ended()

    def CreateRun(self, request: pb.CreateRunRequest) -> pb.CreateRunResponse:
        response = self._call(self._stub.CreateRun, request)
        run = pb.Run(run_id=request.run_id, config=request.config, incarnation=response.incarnation)
        self.remember(run, confirmed=True)
        return response

    def GetRun(self, request: pb.GetRunRequest) -> pb.GetRunResponse:
        response = self._call_about(request.run_id, self._stub.GetRun, request)
        self.remember(response.run, confirmed=True)
        return response

    def DeleteRun(self, request: pb.DeleteRunRequest) -> pb.DeleteRunResponse:
        with self._lock:
            known = self._known.get(request.run.run_id)
            # Don't reopen the run, even if the call gets no answer.
            if known is not None and request.run.incarnation in (0, known.request.incarnation):
                del self._known[request.run.run_id]
        return self._call(self._stub.DeleteRun, request)

    def get_servers(self) -> List[Union[pb.GetServerResponse, _errors.Error]]:
        try:
            return [self._call(self._stub.GetServer, pb.GetServerRequest())]
        except _errors.Error as error:
            return [error]

    def ListRuns(self, request: pb.ListRunsRequest) -> pb.ListRunsResponse:
        return self._call(self._stub.ListRuns, request)

    def AdvanceVersion(self, request: pb.AdvanceVersionRequest) -> pb.AdvanceVersionResponse:
        version, label = request.policy_version, request.label
        with self._lock:
            known = self._known.get(request.run.run_id)
            if known is not None and request.run.incarnation in (0, known.request.incarnation):
                known.policy_version = max(known.policy_version, version)
                if label:
                    _keep_labels(known, {version: label})
        try:
            return self._call_about(request.run.run_id, self._stub.AdvanceVersion, request)
        except _errors.AlreadyExists:
            if known is not None:
                with self._lock:
                    known.labels.pop(version, None)
            raise

    GetStep = _about_a_run("GetStep")
    ListSteps = _about_a_run("ListSteps")
    ListSequences = _about_a_run("ListSequences")
    InspectRun = _about_a_run("InspectRun")
    InspectSequence = _about_a_run("InspectSequence")
    Release = _about_a_run("Release")

    def fetch_top_k(self, request: pb.FetchTopKRequest) -> List[FetchedSlice]:
        def send() -> List[FetchedSlice]:
            return fetched_records.gathered(request, self._stub.FetchTopK(request, timeout=self._timeout))

        return self._send_about(request.run.run_id, send)

    def shares(self, request: pb.EvaluateRequest, slices: Sequence[Slice]) -> Dict[int, List[int]]:
        """Returns the numbers of the slices for each server: this one gets all that are not empty."""
        return {0: [number for number, part in enumerate(slices) if part.length]}

    def evaluate_shares(
        self, run_id: str, requests: Mapping[int, Sequence[Callable[[], Request]]]
    ) -> List[pb.EvaluateResponse]:
        """Returns the answers to the requests of the only share, in order."""
        (own,) = requests.values()
        answers: List[pb.EvaluateResponse] = []
        self.evaluate_all(run_id, own, answers)
        return answers

    def evaluate_all(
        self, run_id: str, requests: Sequence[Callable[[], Request]], answers: List[pb.EvaluateResponse]
    ) -> None:
        """Appends the answers to `answers` in order. After an error, the earlier answers are there. Makes each request
        just before it is sent, because many large ones would need much memory."""

        def send() -> None:
            if len(requests) == 1:
                answers.append(self._stub.Evaluate(requests[0]().serialized(), timeout=self._timeout))
                return
            calls: Deque[Any] = collections.deque()
            try:
                for make in requests[len(answers) :]:
                    if len(calls) == _EVALUATES_AT_ONCE:
                        answers.append(calls.popleft().result())
                    calls.append(self._stub.Evaluate.future(make().serialized(), timeout=self._timeout))
                while calls:
                    answers.append(calls.popleft().result())
            finally:
                for call in calls:
                    call.cancel()

        self._send_about(run_id, send)

    def append(self, source: Source) -> ServerAppendStream:
        try:
            self._send_about(source.run.id, lambda: None, confirm=True)
        except _errors.Error as error:
            # A server that comes back between the two calls would refuse a stream of a run that it does not know.
            if _errors.is_away(error):
                raise
            # After any other error the stream fails in the same way, and raises at its first flush.
        return ServerAppendStream(self._stub.Append, source, self._timeout)

    def remember(self, run: pb.Run, *, confirmed: bool = False) -> None:
        """Remembers a run, to reopen it if the server loses it. `confirmed`: the server has just named it."""
        if not self._reopen_runs:
            return
        request = pb.CreateRunRequest(run_id=run.run_id, config=run.config, incarnation=run.incarnation)
        with self._lock:
            known = self._known.get(run.run_id)
            if known is None or known.request.incarnation < run.incarnation:
                known = self._known[run.run_id] = _KnownRun(request)
            if known.request.incarnation > run.incarnation:
                return
            if confirmed:
                known.confirmed = run.policy_version >= known.policy_version
            elif run.policy_version > known.policy_version:
                known.confirmed = False
            known.policy_version = max(known.policy_version, run.policy_version)
            _keep_labels(known, {named.policy_version: named.label for named in run.version_labels})

    def admit(self) -> None:
        """Raises sis.Unavailable while the circuit breaker is open: see CircuitBreaker."""
        if self._breaker is not None:
            self._breaker.admit(self._probe)

    def failed(self, error: _errors.Error, began: float) -> None:
        """Notes that an append stream got no answer since `began` on time.monotonic()."""
        if self._breaker is not None:
            self._breaker.failed(error, began)

    def _probe(self) -> None:
        timeout = _PROBE_TIMEOUT if self._timeout is None else min(self._timeout, _PROBE_TIMEOUT)
        self._send_unguarded(lambda: self._stub.ListRuns(pb.ListRunsRequest(), timeout=timeout))

    def _send(self, send: Callable[[], _Answer]) -> _Answer:
        if self._breaker is None:
            return self._send_unguarded(send)
        return self._breaker.call(lambda: self._send_unguarded(send), self._probe)

    def _send_unguarded(self, send: Callable[[], _Answer]) -> _Answer:
        try:
            return send()
        except grpc.RpcError as rpc_error:
            error = _errors.from_rpc(rpc_error)
            if _errors.is_away(error):
                # The server may restart without the run, or may not have got the request.
                with self._lock:
                    for known in self._known.values():
                        known.confirmed = False
            raise error from rpc_error
        finally:
            _owner.call_ended()

    def _call(self, method: Callable[..., Any], request: Any) -> Any:
        return self._send(lambda: method(request, timeout=self._timeout))

    def _call_about(self, run_id: str, method: Callable[..., Any], request: Any) -> Any:
        return self._send_about(run_id, lambda: method(request, timeout=self._timeout))

    def _send_about(self, run_id: str, send: Callable[[], _Answer], *, confirm: bool = False) -> _Answer:
        with self._lock:
            known = self._known.get(run_id)
        if known is not None and (confirm or not known.confirmed):
            self._open_again(known)
        try:
            return self._send(send)
        except (_errors.NotFound, _errors.FailedPrecondition):
            if known is None:
                raise
        self._open_again(known)
        return self._send(send)

    def _open_again(self, known: _KnownRun) -> None:
        with self._lock:
            version, labels = known.policy_version, dict(known.labels)
        try:
            created = self._call(self._stub.CreateRun, known.request).created
            # A server that still has the run has all labels, except perhaps the last one.
            versions = sorted({*(labels if created else ()), version})
            run = pb.RunRef(run_id=known.request.run_id, incarnation=known.request.incarnation)
            for each in versions:
                if each or each in labels:
                    self._announce(pb.AdvanceVersionRequest(run=run, policy_version=each, label=labels.get(each, "")))
        except _errors.PermissionDenied:
            pass  # Only trainers may create runs and announce versions. The call itself raises an error if needed.
        known.confirmed = True

    def _announce(self, request: pb.AdvanceVersionRequest) -> None:
        try:
            self._call(self._stub.AdvanceVersion, request)
        except (_errors.FailedPrecondition, _errors.AlreadyExists):
            pass  # Another client has announced a later version, or another label.


def _keep_labels(known: _KnownRun, labels: Mapping[int, str]) -> None:
    """Adds labels, and drops those of the oldest versions if there are too many."""
    known.labels.update(labels)
    for version in sorted(known.labels)[:-_MAX_LABELS]:
        del known.labels[version]
