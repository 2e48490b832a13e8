"""Several servers as one: places sequences (docs/concepts.md), splits batches, and merges answers."""

from __future__ import annotations

import functools
from concurrent import futures
from typing import Any, Callable, Dict, Iterable, List, Mapping, Optional, Sequence, Tuple, TypeVar, Union

import grpc
import numpy as np

from sis import _errors, _spans
from sis._append import Source
from sis._append_streams.replicated_append import ReplicatedAppendStream
from sis._evaluate.micro_batches import Request
from sis._records import MissingRange, Slice
from sis._servers.merged_answers import merged_inspections, merged_run, merged_steps
from sis._servers.placement import Placement
from sis._servers.single_server import SingleServer
from sis.v1 import ratio_service_pb2 as pb
from sis._wire import sums
from sis._wire.fetched_records import FetchedSlice
from sis._wire.messages import read

_Answer = TypeVar("_Answer")

# The record digest of a slice whose replica was down when it was fetched.
STORE_DOWN_DIGEST = 2**64 - 1

# In place of a replica's index.
_NOBODY = -1

# Number of sequences that a server lists.
_PAGE = 1000

# Outputs that a server computes for missing positions from the trainer's own log-probs. A client can't.
_OF_EVERY_POSITION = {pb.OUTPUT_RATIOS, pb.OUTPUT_LOG_RATIOS, pb.OUTPUT_SURROGATES, pb.OUTPUT_COEFFICIENTS}


class Replicas:
    """The calls of SingleServer over several servers. Thread-safe.

    Skips an unreachable replica, for a while without sending it anything. If the servers share a store, another
    replica serves its sequences; otherwise they are MISSING (STORE_DOWN). If all are unreachable, the call fails as
    with one server. Any other error of a replica is an error of the call.
    """

    micro_batch_bytes = SingleServer.micro_batch_bytes

    def __init__(self, names: Sequence[str], servers: Iterable[SingleServer]) -> None:
        """Raises ValueError without names, or if one occurs twice."""
        self._names = tuple(names)
        self._placement = _placement_over(self._names)
        self._servers = list(servers)
        # True if the servers share a store. None: not known yet.
        self._one_store: Optional[bool] = None
        self._pool = futures.ThreadPoolExecutor(16 * len(self._servers), thread_name_prefix="sis-replica")

    def close(self) -> None:
        for server in self._servers:
            server.close()
        self._pool.shutdown(wait=False)

    def CreateRun(self, request: pb.CreateRunRequest) -> pb.CreateRunResponse:
        answers, _ = self._ask_all(lambda server: server.CreateRun(request))
        incarnation = max(answer.incarnation for answer in answers.values())
        for server in self._servers:
            server.remember(pb.Run(run_id=request.run_id, config=request.config, incarnation=incarnation))
        agreed = pb.CreateRunRequest(run_id=request.run_id, config=request.config, incarnation=incarnation)
        behind = [index for index, answer in answers.items() if answer.incarnation < incarnation]
        self._ask({index: lambda server: server.CreateRun(agreed) for index in behind})
        self._learn_store()
        return pb.CreateRunResponse(incarnation=incarnation)

    def GetRun(self, request: pb.GetRunRequest) -> pb.GetRunResponse:
        answers, unanswered = self._ask_who_knows(lambda server: server.GetRun(request))
        run = merged_run([answer.run for answer in answers])
        for server in self._servers:
            server.remember(run)
        self._learn_store()
        return pb.GetRunResponse(run=run, unanswered=unanswered)

    def DeleteRun(self, request: pb.DeleteRunRequest) -> pb.DeleteRunResponse:
        """Raises if a replica without a shared store is unreachable, because it may still have the run."""
        answers, down = self._ask(dict.fromkeys(range(len(self._servers)), lambda server: server.DeleteRun(request)))
        for error in () if self._one_store else down.values():
            raise _errors.from_status(
                error.code,
                f"run '{request.run.run_id}': deleted, but perhaps not on {len(down)} of "
                f"{len(self._servers)} replicas: {error.message}",
            )
        return pb.DeleteRunResponse(deleted=any(answer.deleted for answer in answers.values()))

    def get_servers(self) -> List[Union[pb.GetServerResponse, _errors.Error]]:
        answers = self._pool.map(lambda server: server.get_servers(), self._servers)
        return [answer for (answer,) in answers]

    def ListRuns(self, request: pb.ListRunsRequest) -> pb.ListRunsResponse:
        by_id: Dict[str, List[pb.Run]] = {}
        answers, unanswered = self._ask_all(lambda server: server.ListRuns(request))
        for answer in answers.values():
            for run in answer.runs:
                by_id.setdefault(run.run_id, []).append(run)
        return pb.ListRunsResponse(runs=[merged_run(by_id[run_id]) for run_id in sorted(by_id)], unanswered=unanswered)

    def AdvanceVersion(self, request: pb.AdvanceVersionRequest) -> pb.AdvanceVersionResponse:
        answers, _ = self._ask_all(lambda server: server.AdvanceVersion(request))
        dropped = sum(answer.dropped_sequences for answer in answers.values())
        return pb.AdvanceVersionResponse(dropped_sequences=dropped)

    def GetStep(self, request: pb.GetStepRequest) -> pb.GetStepResponse:
        return self._merged("GetStep", request, sums.summed)

    def InspectRun(self, request: pb.InspectRunRequest) -> pb.InspectRunResponse:
        return self._merged("InspectRun", request, merged_inspections)

    def _merged(self, name: str, request: Any, merge: Callable[[Sequence[Any]], Any]) -> Any:
        answers, unanswered = self._ask_who_knows(lambda server: getattr(server, name)(request))
        merged = merge(answers)
        merged.unanswered[:] = unanswered
        return merged

    def ListSteps(self, request: pb.ListStepsRequest) -> pb.ListStepsResponse:
        """Requests all steps, because pages of two replicas may have different draws."""
        answers, unanswered = self._ask_who_knows(lambda server: _all_steps(server, request.run))
        steps = merged_steps(answers)
        begin = 0
        if request.HasField("after"):
            begin = next((i + 1 for i, kept in enumerate(steps) if kept.draw == request.after), 0)
        for kept in steps:
            kept.step.unanswered[:] = unanswered
        return pb.ListStepsResponse(steps=steps[begin:], unanswered=unanswered)

    def ListSequences(self, request: pb.ListSequencesRequest) -> pb.ListSequencesResponse:
        answers, unanswered = self._ask_who_knows(lambda server: server.ListSequences(request))
        by_name = {
            (kept.sequence.id.encode(), kept.sequence.attempt): kept for part in answers for kept in part.sequences
        }
        return pb.ListSequencesResponse(
            sequences=[by_name[name] for name in sorted(by_name)[:_PAGE]],
            more=len(by_name) > _PAGE or any(part.more for part in answers),
            unanswered=unanswered,
            store_keeps_evicted=any(part.store_keeps_evicted for part in answers),
        )

    def InspectSequence(self, request: pb.InspectSequenceRequest) -> pb.InspectSequenceResponse:
        index = self._placement.replica(request.run.run_id, request.sequence.id)
        return self._servers[index].InspectSequence(request)

    def Release(self, request: pb.ReleaseRequest) -> pb.ReleaseResponse:
        def release(numbers: Sequence[int]) -> Callable[[SingleServer], pb.ReleaseResponse]:
            part = pb.ReleaseRequest(run=request.run, sequences=[request.sequences[number] for number in numbers])
            return lambda server: server.Release(part)

        answers, _, failures = self._ask_for(
            request.run.run_id, [sequence.id for sequence in request.sequences], release
        )
        for failure in failures:
            raise failure
        released = sum(answer.released_sequences for _, answer in answers)
        return pb.ReleaseResponse(released_sequences=released, unknown=len(request.sequences) - released)

    def append(self, source: Source) -> ReplicatedAppendStream:
        return ReplicatedAppendStream(
            source.run.config,
            functools.partial(self._replica, source.run.id),
            self._servers,
            _spans.in_this_context(lambda server: server.append(source)),
            self._pool,
        )

    def fetch_top_k(self, request: pb.FetchTopKRequest) -> List[FetchedSlice]:
        if not request.slices:
            return self._servers[0].fetch_top_k(request)

        def fetch(numbers: Sequence[int]) -> Callable[[SingleServer], List[FetchedSlice]]:
            part = pb.FetchTopKRequest()
            part.CopyFrom(request)
            del part.slices[:]
            part.slices.extend(request.slices[number] for number in numbers)
            return lambda server: server.fetch_top_k(part)

        answers, unanswered, _ = self._ask_for(request.run.run_id, [part.sequence.id for part in request.slices], fetch)
        slices: Dict[int, FetchedSlice] = {}
        for numbers, fetched in answers:
            slices.update(zip(numbers, fetched))
        for number in unanswered:
            part = request.slices[number]
            part.record_digest = STORE_DOWN_DIGEST
            missing = read(MissingRange, _store_down(number, part))
            slices[number] = FetchedSlice(Slice.from_proto(part), [missing], [])
        return [slices[number] for number in range(len(request.slices))]

    def shares(self, request: pb.EvaluateRequest, slices: Sequence[Slice]) -> Dict[int, List[int]]:
        """Returns the numbers of the slices for each replica. Omits slices whose replica was unreachable when they
        were fetched."""
        if request.algorithm.HasField("clip_cov") and len(self._servers) > 1:
            raise _errors.from_status(
                grpc.StatusCode.INVALID_ARGUMENT,
                "algorithm.clip_cov: it chooses among all positions of a batch, which several "
                f"replicas share: there are {len(self._servers)}, must be one",
            )
        numbers: Dict[int, List[int]] = {}
        for number, part in enumerate(slices):
            if part.length:
                lost = part.record_digest == STORE_DOWN_DIGEST
                index = _NOBODY if lost else self._replica(request.run.run_id, part.sequence)
                numbers.setdefault(index, []).append(number)
        return numbers or {0: []}

    def evaluate_shares(
        self, run_id: str, requests: Mapping[int, Sequence[Callable[[], Request]]]
    ) -> List[pb.EvaluateResponse]:
        """Returns the answers to the requests of each share, in order. Keeps answers from before a replica failed."""
        answers: Dict[int, List[pb.EvaluateResponse]] = {index: [] for index in requests}
        calls = {index: _evaluating(run_id, requests[index], answers[index]) for index in requests if index != _NOBODY}
        _, down = self._ask(calls)
        for index, error in down.items():
            if not requests[index][0]().message.slices:
                raise error  # no replica in particular has failed
            if self._one_store:
                self._evaluate_elsewhere(index, run_id, requests[index], answers[index])
        for index, own in requests.items():
            answers[index] += [_store_down_answer(make().message) for make in own[len(answers[index]) :]]
        return [response for own in answers.values() for response in own]

    def _evaluate_elsewhere(
        self, gone: int, run_id: str, requests: Sequence[Callable[[], Request]], answers: List[pb.EvaluateResponse]
    ) -> None:
        """Sends the unanswered requests of the replica `gone` to others, and adds their answers."""
        for index in range(len(self._servers)):
            rest = requests[len(answers) :]
            if index != gone and rest:
                more: List[pb.EvaluateResponse] = []
                self._ask({index: _evaluating(run_id, rest, more)})
                answers += more

    def _learn_store(self) -> None:
        if self._one_store is None:
            shared = [state.shared_store for state in self.get_servers() if isinstance(state, pb.GetServerResponse)]
            self._one_store = all(shared) if shared else None

    def _replica(self, run_id: str, sequence_id: str) -> int:
        """Returns the index of the sequence's replica. If that one is skipped and the servers share a store, returns
        the one that would have the sequence without the skipped replicas."""
        index = self._placement.replica(run_id, sequence_id)
        if not self._one_store or self._is_asked(index):
            return index
        others = [other for other in range(len(self._servers)) if other != index and self._is_asked(other)]
        if not others:
            return index
        return others[_placement_over(tuple(self._names[other] for other in others)).replica(run_id, sequence_id)]

    def _is_asked(self, index: int) -> bool:
        try:
            self._servers[index].admit()
            return True
        except _errors.Error:
            return False

    def _ask_for(
        self,
        run_id: str,
        sequence_ids: Sequence[str],
        call: Callable[[Sequence[int]], Callable[[SingleServer], _Answer]],
    ) -> Tuple[List[Tuple[List[int], _Answer]], List[int], List[_errors.Error]]:
        """Calls each sequence's replica. `call` makes a call about some of the sequences, by their numbers.

        If the servers share a store, calls other replicas for the sequences of an unreachable one.

        Returns:
            The answers, each with its sequences' numbers, the numbers without an answer, and the errors of
            replicas whose store failed.
        """
        answers: List[Tuple[List[int], _Answer]] = []
        failures: List[_errors.Error] = []
        unanswered: List[int] = []
        left = list(range(len(sequence_ids)))
        for _ in self._servers:
            parts: Dict[int, List[int]] = {}
            for number in left:
                parts.setdefault(self._replica(run_id, sequence_ids[number]), []).append(number)
            answered, down = self._ask({index: call(numbers) for index, numbers in parts.items()})
            answers += [(parts[index], answer) for index, answer in answered.items()]
            left = []
            for index, error in down.items():
                again = self._one_store and _errors.is_unreachable(error)
                (left if again else unanswered).extend(parts[index])
                failures += [error] if error.answered else []
            if not left:
                break
        return answers, unanswered + left, failures

    def _ask(
        self, calls: Mapping[int, Callable[[SingleServer], _Answer]]
    ) -> Tuple[Dict[int, _Answer], Dict[int, _errors.Error]]:
        """Calls all replicas in parallel. Returns answers and errors by replica. Raises if no replica answers."""
        asked = {
            index: self._pool.submit(_spans.in_this_context(call), self._servers[index])
            for index, call in calls.items()
        }
        # Waits before it raises an error, because requests refer to the caller's arrays.
        futures.wait(asked.values())
        answers: Dict[int, _Answer] = {}
        down: Dict[int, _errors.Error] = {}
        for index, answer in asked.items():
            try:
                answers[index] = answer.result()
            except _errors.Error as error:
                if not _errors.is_away(error):
                    raise
                down[index] = error
        if len(down) == len(self._servers):
            raise down[0]
        return answers, down

    def _ask_all(self, call: Callable[[SingleServer], _Answer]) -> Tuple[Dict[int, _Answer], List[int]]:
        """Returns the answers by replica, and the unreachable replicas."""
        answers, down = self._ask({index: call for index in range(len(self._servers))})
        return answers, list(down)

    def _ask_who_knows(self, call: Callable[[SingleServer], _Answer]) -> Tuple[List[_Answer], List[int]]:
        """Returns the answers of replicas that have the requested object, and the indices of unreachable
        replicas. Raises sis.NotFound if no replica that answers has it."""
        unknown: List[_errors.NotFound] = []

        def ask(server: SingleServer) -> Optional[_Answer]:
            try:
                return call(server)
            except _errors.NotFound as error:
                unknown.append(error)
                return None

        answers, unanswered = self._ask_all(ask)
        found = [answer for answer in answers.values() if answer is not None]
        if not found:
            raise unknown[0]
        return found, unanswered


def _evaluating(
    run_id: str, requests: Sequence[Callable[[], Request]], answers: List[pb.EvaluateResponse]
) -> Callable[[SingleServer], None]:
    return lambda server: server.evaluate_all(run_id, requests, answers)


_placement_over = functools.lru_cache(maxsize=256)(Placement)


def _store_down(number: int, part: pb.Slice) -> pb.MissingRange:
    return pb.MissingRange(
        slice=number, first_position=part.first_position, length=part.length, reason=pb.MISSING_REASON_STORE_DOWN
    )


def _store_down_answer(request: pb.EvaluateRequest) -> pb.EvaluateResponse:
    """Returns the answer for an unreachable replica: all unmasked positions MISSING. Raises
    sis.FailedPrecondition if the request asks for ratios."""
    if request.slices and (_OF_EVERY_POSITION & set(request.outputs) or request.HasField("algorithm")):
        part = request.slices[0]
        raise _errors.from_status(
            grpc.StatusCode.FAILED_PRECONDITION,
            f"ratios of missing positions: sequence '{part.sequence.id}' attempt {part.sequence.attempt} "
            f"position {part.first_position} is missing (store_down)",
        )
    lengths = [part.length for part in request.slices]
    masked = np.frombuffer(request.mask, np.uint8) == 0 if request.mask else np.zeros(sum(lengths), bool)
    totals = [
        pb.Totals(missing=int((~own).sum()), masked=int(own.sum())) for own in np.split(masked, np.cumsum(lengths)[:-1])
    ]
    return pb.EvaluateResponse(
        accept_bits=bytes(-(-len(masked) // 8)),
        decisions=np.where(masked, np.uint8(pb.DECISION_MASKED), np.uint8(pb.DECISION_MISSING)).tobytes(),
        acceptance_probabilities=bytes(4 * len(masked)),
        slice_totals=totals,
        totals=sums.summed(totals),
        prefix_curve=[pb.PrefixPoint(top_k=top_k) for top_k in request.prefix_curve],
        missing=[_store_down(number, part) for number, part in enumerate(request.slices)],
    )


def _all_steps(server: SingleServer, run: pb.RunRef) -> List[pb.ListStepsResponse.Step]:
    answer = server.ListSteps(pb.ListStepsRequest(run=run))
    steps = list(answer.steps)
    while answer.more:
        answer = server.ListSteps(pb.ListStepsRequest(run=run, after=steps[-1].draw))
        steps.extend(answer.steps)
    return steps
