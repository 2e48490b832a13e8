"""The calls of the service."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Dict, Iterable, NamedTuple, Optional, Sequence, Set, Tuple, Union

import grpc

from sis import append as append_module
from sis import export, spans
from sis.append import AppendStream, Source
from sis.append_streams import checked_entries
from sis.arrays import ArrayLike
from sis.credentials import Credentials
from sis.entries import AppendEntry
from sis.errors import Error
from sis.evaluate.call import EvaluateCall
from sis.evaluation import Evaluation, Step, Steps
from sis.export import Exported
from sis.inspection import ListedSequence, RunInspection, SequenceInspection, Sequences
from sis.options import EvaluateOptions
from sis.owner import Owner
from sis.records import SequenceLike, SequenceRef, Slice, TopKRecords, listed
from sis.run import Run, RunConfig, Runs, RunStatus, Sampling
from sis.server_state import ServerState
from sis.servers.circuit_breaker import CircuitBreaker
from sis.servers.replicas import Replicas
from sis.servers.single_server import SingleServer
from sis.v1 import ratio_service_pb2 as pb
from sis.wire import fetched_records
from sis.wire.messages import read


class Released(NamedTuple):
    """What Client.release gave back."""

    sequences: int
    # Sequences that were not there.
    unknown: int


class Client:
    """A connection to one server, or to several that share the sequences. A context manager;
    leaving the block closes it.

    Threads: every method may be called from any thread. Every call may be repeated: the service
    counts nothing twice. All calls raise sis.Error, or its subclass for the status code
    (sis.InvalidArgument, sis.NotFound, ...); an array of the wrong shape or type is a ValueError
    before anything is sent. Wherever arrays are taken, numpy arrays, sequences and tensors of
    PyTorch on any device will do; what is returned are numpy arrays.

    A server that comes back without memory is told again of the runs that this client opened or
    looked up: their positions are MISSING until workers append again, and training goes on.

    Processes: in one that is forked from the client's, calls raise a RuntimeError, and leaving the
    block does nothing. Make a client of its own there, and fork while no call is under way and no
    append stream is open: else older gRPC (1.51) may hang in the child. Processes that
    multiprocessing starts by "spawn" have none of this.
    """

    def __init__(
        self,
        address: Union[str, Sequence[str]],
        *,
        timeout: Optional[float] = 60.0,
        credentials: Union[Credentials, grpc.ChannelCredentials, None] = None,
        options: Sequence[Tuple[str, Any]] = (),
        reopen_runs: bool = True,
    ) -> None:
        """`address` is a gRPC target, host:port mostly, or a list of the replicas'. Nothing is sent
        yet.

        With a list, every call does what it does with one server that holds everything. Give all
        workers and trainers the same names (docs/concepts.md). While a replica gives no answer,
        its sequences are MISSING (STORE_DOWN), and for some seconds after that nobody waits for it.
        timeout: seconds that a call, or the ack of an appended batch, may take; None: for ever. What an
        evaluate sends to one server is one call.
        credentials: who the client is, and TLS; None: what the environment says
        (Credentials.from_environment), without which there is neither. Those of
        grpc.ssl_channel_credentials or the like will do too.
        options: gRPC channel arguments, besides unlimited message sizes and a short pause between
        attempts to connect.
        reopen_runs: whether a run that a server has lost is opened there again. A program that only reads
        leaves that to trainers and workers.
        """
        self._owner = Owner()
        self._servers: Union[SingleServer, Replicas]
        if isinstance(address, str):
            self._servers = SingleServer(address, timeout, credentials, options, reopen_runs=reopen_runs)
        else:
            names = list(address)
            servers = [
                SingleServer(name, timeout, credentials, options, CircuitBreaker(), reopen_runs) for name in names
            ]
            self._servers = Replicas(names, servers)

    @property
    def _service(self) -> Union[SingleServer, Replicas]:
        self._owner.check("client")
        return self._servers

    def close(self) -> None:
        """Closes the connections; calls in progress end with CANCELLED.

        A RuntimeWarning says how many entries of its append streams were not flushed.
        """
        # gRPC would end the parent's connections.
        if self._owner.here:
            append_module.warn_of_unflushed("its client was closed", self._service)
            self._service.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def create_run(
        self,
        run_id: str,
        *,
        seed: int,
        vocabulary_size: int,
        top_k: int,
        max_staleness: Optional[int] = None,
        time_to_live: float = 0.0,
        byte_quota: int = 0,
        log_prob_encoding: str = "fixed16",
        task: str = "",
        algorithm: str = "",
        model: str = "",
        evict_unread: bool = False,
        mass: float = 0.0,
        incarnation: int = 0,
    ) -> Run:
        """Opens a run, or finds it as it is; RunConfig says what the settings mean.

        incarnation 0 takes the one there is, or the first if the run is new; a larger one than the
        present starts clean. Raises AlreadyExists if the run is there with another configuration,
        FailedPrecondition for an incarnation of the past.
        """
        config = RunConfig(
            seed, vocabulary_size, top_k, max_staleness, time_to_live, byte_quota, log_prob_encoding, task, algorithm,
            model, evict_unread, mass,
        )  # fmt: skip
        request = pb.CreateRunRequest(run_id=run_id, config=config.to_proto(), incarnation=incarnation)
        incarnation = self._service.CreateRun(request).incarnation
        return Run(run_id, incarnation, config)

    def get_run(self, run_id: str) -> RunStatus:
        """A run's settings and what the server holds of it. `.run` is what the other calls take.
        Raises NotFound."""
        return RunStatus.from_proto(self._service.GetRun(pb.GetRunRequest(run_id=run_id)).run)

    def delete_run(self, run_id: str, *, incarnation: int = 0) -> bool:
        """Forgets a run with all that is held of it. Returns whether it was there. Idempotent.

        incarnation: only that one; 0: whichever is present. Calls of clients that still hold the
        run raise NotFound or FailedPrecondition. With several replicas all must answer: else
        Unavailable or DeadlineExceeded, and the call is to be repeated.
        """
        run = pb.RunRef(run_id=run_id, incarnation=incarnation)
        return self._service.DeleteRun(pb.DeleteRunRequest(run=run)).deleted

    def list_runs(self) -> Runs:
        """All runs, by run id.

        Here and in get_step, list_steps and inspect_run replicas that gave no answer are left out; `unanswered` says which these are.
        """
        response = self._service.ListRuns(pb.ListRunsRequest())
        return Runs(map(RunStatus.from_proto, response.runs), response.unanswered)

    def advance_version(self, run: Run, policy_version: int) -> int:
        """Tells the current policy version. Returns how many sequences were dropped because all of
        them became stale.

        Raises FailedPrecondition if the version would go back.
        """
        request = pb.AdvanceVersionRequest(run=run.to_proto(), policy_version=policy_version)
        return self._service.AdvanceVersion(request).dropped_sequences

    def get_step(self, run: Run, draw: int) -> Step:
        """The totals of one draw over all ranks, each position once. Raises NotFound if nothing was
        counted for it."""
        response = self._service.GetStep(pb.GetStepRequest(run=run.to_proto(), draw=draw))
        return Step.from_proto(response)

    def list_steps(self, run: Run, *, after: Optional[int] = None, limit: Optional[int] = None) -> Steps:
        """The totals of the draws that are kept, by draw, without distributions: of the last 4,096, or
        fewer where the server's memory is short. They come in the order in which they began; a trainer
        that resumed goes back to smaller ones.

        Args:
            after: Lists draws that began after this one. None, or a draw that is not kept: from the
                oldest one.
            limit: The most draws to list. None: all.
        """
        steps: Dict[int, Step] = {}
        unanswered: Set[int] = set()
        more = True
        while more and (limit is None or len(steps) < limit):
            # 0: as many as the server lists at most.
            page = 0 if limit is None else min(1000, limit - len(steps))
            response = self._service.ListSteps(pb.ListStepsRequest(run=run.to_proto(), after=after, limit=page))
            steps.update({kept.draw: Step.from_proto(kept.step) for kept in response.steps})
            unanswered.update(response.unanswered)
            more = response.more
            if more:
                after = response.steps[-1].draw
        return Steps(steps, sorted(unanswered))

    def get_servers(self) -> Tuple[Union[ServerState, Error], ...]:
        """What each server is, holds and did, in the order of the addresses; of one that gives no
        answer the error."""
        return tuple(
            answer if isinstance(answer, Error) else read(ServerState, answer) for answer in self._service.get_servers()
        )

    def list_sequences(self, run: Run, *, after: Optional[SequenceLike] = None, limit: int = 0) -> Sequences:
        """A page of what the servers have in memory, sequence by sequence: not what only a store has.

        after: the last sequence of the page before; it need not be there any more. limit: maximum number
        of sequences, at most 1000; 0: 1000. Listing a sequence does not count as reading it.
        """
        request = pb.ListSequencesRequest(run=run.to_proto(), limit=limit)
        if after is not None:
            request.after.CopyFrom(SequenceRef.of(after).to_proto())
        page = self._service.ListSequences(request)
        listed = (read(ListedSequence, sequence) for sequence in page.sequences)
        return Sequences(listed, page.more, page.unanswered, page.store_keeps_evicted)

    def inspect_run(self, run: Run) -> RunInspection:
        """What is worth a closer look: the sequences that inspect_sequence can open, the tokens that
        are accepted or rejected most, the largest ratios."""
        return read(RunInspection, self._service.InspectRun(pb.InspectRunRequest(run=run.to_proto())))

    def inspect_sequence(self, run: Run, sequence: SequenceLike) -> SequenceInspection:
        """The last evaluated values of a sequence, beside what is recorded. Raises NotFound if none
        are kept of it: the service keeps a sample."""
        request = pb.InspectSequenceRequest(run=run.to_proto(), sequence=SequenceRef.of(sequence).to_proto())
        return SequenceInspection.from_proto(self._service.InspectSequence(request))

    def export(self, run: Run, path: str, format: str = "parquet") -> Exported:
        """Writes what the servers have in memory of the run to a file, a row per position; sis.export
        says which columns. What only a store has is not among it.

        format: "parquet", "csv", or "json" (lines of JSON). Parquet needs pyarrow, otherwise
        ImportError. Records are read, and so leave their place among the unread ones. Decisions and
        ratios are those that inspect_sequence has: of a sample of sequences. Raises sis.Error as
        fetch_top_k does, and Unavailable if a replica or a store gives no answer: `path` is left as it
        was then.
        """
        return export.write(self, run, path, format)

    def append(self, run: Run, *, sampling: Sampling, worker: str = "", retry_timeout: float = 1200.0) -> AppendStream:
        """Opens a stream for behaviour log-probs that were made as `sampling` says.

        worker: a name for messages and metrics. retry_timeout: seconds for which an entry that
        finds no room on the server is tried again; longer than a server waits for a trainer that is
        gone (--reader_absence). What is wrong with run or sampling is raised by
        the first flush.
        """
        source = Source(run, sampling, worker, retry_timeout)
        stream = self._service.append(source)
        append_module.opened(stream, self._service)
        return stream

    def append_many(
        self,
        run: Run,
        entries: Iterable[AppendEntry],
        *,
        sampling: Sampling,
        worker: str = "",
        retry_timeout: float = 1200.0,
    ) -> Dict[SequenceRef, int]:
        """Appends blocks, gaps and seals of any sequences. Returns the committed length
        of each sequence, once all is stored and readable.

        It does what a stream does with the entries one by one, with the same arguments and the same
        refusals, in less time: its stream stays open for the next call, and blocks cost less.
        ValueError, with nothing sent, says which entry is wrong in shape or type; sis.AppendError
        lists those that were refused, and all others are stored. After any other sis.Error call
        again with all of them: the service takes a block twice.
        """
        made = checked_entries.checked(entries, run.config)
        with spans.client_span("append_many", run=run.id, entries=len(made)):
            return self._service.append_many(Source(run, sampling, worker, retry_timeout), made)

    def fetch_top_k(
        self,
        run: Run,
        slices: Iterable[Union[Slice, SequenceLike]],
        *,
        log_probs: bool = True,
        keep_seconds: float = 0.0,
    ) -> TopKRecords:
        """Reads recorded top-K sets back. A sequence instead of a slice stands for all that is
        committed of it.

        log_probs: whether to fetch those of the sets too, a third of the bytes: sis.gather does without,
        sis.reduce needs them.
        keep_seconds: the server keeps the sequences at least this long from now, and from each evaluate
        of these records, unless they are released. At most 3600; 0: as long as there is room.
        """
        request = pb.FetchTopKRequest(
            run=run.to_proto(),
            slices=[_slice(part).to_proto() for part in listed("slices", slices)],
            keep_seconds=keep_seconds,
            whole_blocks=log_probs,
        )
        with spans.client_span("fetch_top_k", run=run.id, sequences=len(request.slices)):
            fetched = self._service.fetch_top_k(request)
            records = fetched_records.assemble(fetched, run.config.top_k, log_probs)
        return replace(records, keep_seconds=keep_seconds, mass=run.config.mass)

    def evaluate(
        self,
        run: Run,
        records: Union[TopKRecords, Sequence[Slice]],
        *,
        draw: int,
        log_probs: ArrayLike,
        sampled_log_probs: ArrayLike,
        top_k: int = 0,
        outputs: Sequence[str] = ("accepted",),
        prefix_curve: Sequence[int] = (),
        total_variation: bool = False,
        options: EvaluateOptions = EvaluateOptions(),
    ) -> Evaluation:
        """Decides for N positions from the current policy's log-probs at the recorded ids.

        records: of fetch_top_k (or its `select`), which are kept for its keep_seconds again. If others
        are recorded on the server since then, generated again or added, that is FailedPrecondition.
        What has gone since is MISSING: stale, corrupt, or dropped, which is no error.
        Slices will do if each has a length, and no set has unused slots.
        draw: the optimiser step. The same draw decides the same way, another one independently.
        log_probs: float32 [N, K], nats, at records.ids; unused slots and missing positions may hold
        anything; or [S] at records.used_ids, which is what is sent.
        sampled_log_probs: float32 [N], of records.sampled_ids, from the same computation.
        sis.gather makes both. At missing positions NaN will do, unless options.own_log_probs are
        given.
        top_k: use only the k most probable slots; 0: all K.
        outputs: of "accepted" (always comes), "decisions", "ratios", "log_ratios",
        "acceptance_probabilities", "surrogates", "coefficients". Ratios of missing positions need options.own_log_probs, else
        FailedPrecondition. While a replica is away that is raised even with them: of its positions
        only decisions and acceptance probabilities are known.
        prefix_curve: at most 16 rising k, none above top_k: Evaluation.prefix_curve says of each
        what residual mass and expected acceptance would be if only so many slots were used.
        total_variation: also sum the policies' total variation on the sets.
        """
        call = EvaluateCall(self._service, run, records, draw, top_k, outputs, options, prefix_curve, total_variation)
        return call.gathered(log_probs, sampled_log_probs)

    def evaluate_reduced(
        self,
        run: Run,
        records: Union[TopKRecords, Sequence[Slice]],
        *,
        draw: int,
        sampled_log_probs: ArrayLike,
        log_envelopes: ArrayLike,
        covered_masses: ArrayLike,
        top_k: int = 0,
        outputs: Sequence[str] = ("accepted",),
        options: EvaluateOptions = EvaluateOptions(),
    ) -> Evaluation:
        """As evaluate, from 12 bytes per position, whatever K is. Slices will do as records, if each has a
        length.

        sampled_log_probs, log_envelopes and covered_masses: float32 [N]; sis.reduce makes the last
        two of the log-probs at the recorded ids, for the same top_k.
        """
        call = EvaluateCall(self._service, run, records, draw, top_k, outputs, options)
        return call.reduced(
            sampled_log_probs=sampled_log_probs, log_envelopes=log_envelopes, covered_masses=covered_masses
        )

    def release(self, run: Run, sequences: Iterable[SequenceLike]) -> Released:
        """Gives memory back at once, whoever fetched the sequences with keep_seconds. Idempotent."""
        names = [SequenceRef.of(sequence).to_proto() for sequence in listed("sequences", sequences)]
        response = self._service.Release(pb.ReleaseRequest(run=run.to_proto(), sequences=names))
        return Released(response.released_sequences, response.unknown)


def _slice(part: Union[Slice, SequenceLike]) -> Slice:
    if isinstance(part, Slice):
        return part
    sequence = SequenceRef.of(part)
    return Slice(sequence.id, attempt=sequence.attempt)
