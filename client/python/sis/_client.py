"""The calls of the service."""

from __future__ import annotations

from dataclasses import replace
from typing import Dict, Iterable, NamedTuple, NoReturn, Optional, Sequence, Set, Tuple, Union

from sis import _spans
from sis._append import AppendStream, Source
from sis._append_streams import checked_entries
from sis._arrays import ArrayLike
from sis._credentials import Credentials
from sis._entries import AppendEntry
from sis._errors import Error
from sis._evaluate.call import EvaluateCall
from sis._evaluation import Evaluation, Step, Steps
from sis._inspection import ListedSequence, RunInspection, SequenceInspection, Sequences
from sis._options import EvaluateOptions
from sis._owner import Owner
from sis._records import SequenceLike, SequenceRef, Slice, TopKRecords, listed
from sis._run import Run, RunConfig, Runs, RunStatus, Sampling
from sis._server_state import ServerState
from sis._servers.circuit_breaker import CircuitBreaker
from sis._servers.replicas import Replicas
from sis._servers.single_server import SingleServer
from sis.v1 import ratio_service_pb2 as pb
from sis._wire import fetched_records
from sis._wire.messages import read


class Released(NamedTuple):
    """Result of Client.release.

    Attributes:
        sequences: Sequences that were released.
        unknown: Sequences that were not there.
    """

    sequences: int
    unknown: int


class Client:
    """A connection to one server, or to several that share the sequences. A context manager;
    leaving the block closes it.

    Threads: every method may be called from any thread. Every call may be repeated: the service
    counts nothing twice. All calls raise sis.Error, or its subclass for the status code
    (sis.InvalidArgument, sis.NotFound, ...); an array of the wrong shape or type is a ValueError
    before anything is sent. Wherever arrays are taken, numpy arrays, sequences and tensors of
    PyTorch on any device will do; what is returned are numpy arrays.

    If a server comes back without memory, the client opens its runs there again. Their positions are
    MISSING until workers append again, and training goes on.

    Processes: make a client in each process. In a forked process, calls of the parent's client raise a RuntimeError.
    Fork while no call is under way and no append stream is open: otherwise older gRPC (1.51) may hang in the child. A
    client can't be pickled, so that multiprocessing's "spawn" and Ray refuse to send it. docs/faults.md lists what
    happens when something goes wrong.
    """

    def __init__(
        self,
        address: Union[str, Sequence[str]],
        *,
        timeout: Optional[float] = 60.0,
        credentials: Optional[Credentials] = None,
        reopen_runs: bool = True,
    ) -> None:
        """Makes a client. Sends nothing yet.

        With several addresses, every call works as with one server that holds everything. Give all workers and
        trainers the same addresses (docs/concepts.md). The sequences of an unreachable replica are MISSING
        (STORE_DOWN). The client does not ask that replica again for some seconds.

        Args:
            address: gRPC target, usually host:port, or a list of the replicas' targets.
            timeout: Seconds that a call, or the ack of an appended batch, may take; None: no limit. The messages of an
                evaluate to one server count as one call.
            credentials: TLS, and the identity of the client. None: those of the environment
                (Credentials.from_environment).
            reopen_runs: Whether to open a run again on a server that has lost it. A program that only reads leaves that
                to trainers and workers.
        """
        self._owner = Owner()
        self._servers: Union[SingleServer, Replicas]
        if isinstance(address, str):
            self._servers = SingleServer(address, timeout, credentials, reopen_runs=reopen_runs)
        else:
            names = list(address)
            servers = [SingleServer(name, timeout, credentials, CircuitBreaker(), reopen_runs) for name in names]
            self._servers = Replicas(names, servers)

    @property
    def _service(self) -> Union[SingleServer, Replicas]:
        self._owner.check("client")
        return self._servers

    def close(self) -> None:
        """Closes the connections; calls in progress end with CANCELLED."""
        # gRPC would end the parent's connections.
        if self._owner.here:
            self._service.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> NoReturn:
        raise TypeError("a sis.Client can't be sent to another process: make one there, with the same addresses")

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
        """Creates a run, or returns the existing one.

        Args:
            run_id: 1 to 256 characters of [A-Za-z0-9._-].
            seed, vocabulary_size, top_k, max_staleness, time_to_live, byte_quota: As in RunConfig.
            log_prob_encoding, task, algorithm, model, evict_unread, mass: As in RunConfig.
            incarnation: 0 takes the present incarnation, or the first if the run is new; a larger number starts clean.

        Returns:
            The run, which other calls take.

        Raises:
            sis.AlreadyExists: The run has another configuration.
            sis.FailedPrecondition: The incarnation is of the past.
        """
        config = RunConfig(
            seed, vocabulary_size, top_k, max_staleness, time_to_live, byte_quota, log_prob_encoding, task, algorithm,
            model, evict_unread, mass,
        )  # fmt: skip
        request = pb.CreateRunRequest(run_id=run_id, config=config.to_proto(), incarnation=incarnation)
        incarnation = self._service.CreateRun(request).incarnation
        return Run(run_id, incarnation, config)

    def get_run(self, run_id: str) -> RunStatus:
        """Returns a run's settings and what the servers hold of it.

        Args:
            run_id: The run's id.

        Returns:
            The status; its `run` is what other calls take.

        Raises:
            sis.NotFound: The run is unknown.
        """
        return RunStatus.from_proto(self._service.GetRun(pb.GetRunRequest(run_id=run_id)).run)

    def delete_run(self, run_id: str, *, incarnation: int = 0) -> bool:
        """Deletes a run with all that is held of it. Idempotent.

        Later calls of clients that still hold the run raise NotFound or FailedPrecondition.

        Args:
            run_id: The run's id.
            incarnation: Only this incarnation; 0: whichever is present.

        Returns:
            Whether the run was there.

        Raises:
            sis.Unavailable, sis.DeadlineExceeded: A replica is unreachable; repeat the call.
        """
        run = pb.RunRef(run_id=run_id, incarnation=incarnation)
        return self._service.DeleteRun(pb.DeleteRunRequest(run=run)).deleted

    def list_runs(self) -> Runs:
        """Lists all runs.

        The results of list_runs, list_steps and inspect_run leave out unreachable replicas, which `unanswered` lists.

        Returns:
            The runs, by run id.
        """
        response = self._service.ListRuns(pb.ListRunsRequest())
        return Runs(map(RunStatus.from_proto, response.runs), response.unanswered)

    def advance_version(self, run: Run, policy_version: int, label: str = "") -> int:
        """Sets the current policy version.

        Args:
            run: The run.
            policy_version: The version, not below the current one.
            label: The name that engines give these weights, if it is not the version's decimal number. At most 128
                bytes of UTF-8.

        Returns:
            How many sequences were dropped because all of their positions became stale.

        Raises:
            sis.FailedPrecondition: The version would go back.
            sis.AlreadyExists: The label names another version, or the version has another label.
        """
        request = pb.AdvanceVersionRequest(run=run.to_proto(), policy_version=policy_version, label=label)
        return self._service.AdvanceVersion(request).dropped_sequences

    def list_steps(self, run: Run, *, draws: Optional[Iterable[int]] = None, after: Optional[int] = None) -> Steps:
        """Lists the totals of draws over all ranks. Each position counts once.

        The server keeps the last 4,096 draws, or fewer if its memory is short.

        Args:
            run: The run.
            draws: The draws to return, with their distributions. None: all kept draws, without distributions, in the
                order in which they began. A trainer that resumed goes back to smaller draws.
            after: Only lists draws that began after this draw. None, or a draw that is not kept: from the oldest draw.

        Returns:
            The steps by draw.

        Raises:
            ValueError: `draws` is given together with `after`.
            sis.NotFound: Nothing was counted for one of `draws`, or the run is unknown.
        """
        steps: Dict[int, Step] = {}
        unanswered: Set[int] = set()
        if draws is not None:
            if after is not None:
                raise ValueError("draws: must not be given together with after")
            for draw in draws:
                response = self._service.GetStep(pb.GetStepRequest(run=run.to_proto(), draw=draw))
                steps[draw] = Step.from_proto(response)
                unanswered.update(response.unanswered)
            return Steps(steps, sorted(unanswered))
        more = True
        while more:
            listing = self._service.ListSteps(pb.ListStepsRequest(run=run.to_proto(), after=after))
            steps.update({kept.draw: Step.from_proto(kept.step) for kept in listing.steps})
            unanswered.update(listing.unanswered)
            more = listing.more
            if more:
                after = listing.steps[-1].draw
        return Steps(steps, sorted(unanswered))

    def get_servers(self) -> Tuple[Union[ServerState, Error], ...]:
        """Returns the state of each server.

        Returns:
            The state, or the error of an unreachable server, in the order of the addresses.
        """
        return tuple(
            answer if isinstance(answer, Error) else read(ServerState, answer) for answer in self._service.get_servers()
        )

    def list_sequences(self, run: Run, *, after: Optional[SequenceLike] = None) -> Sequences:
        """Lists sequences that the servers have in memory, page by page, at most 1000 in a page.

        Sequences that only a store has are not listed. Listing a sequence does not count as reading it.

        Args:
            run: The run.
            after: The last sequence of the page before; it may be gone.

        Returns:
            A page; its `more` is true if there are further sequences.
        """
        request = pb.ListSequencesRequest(run=run.to_proto())
        if after is not None:
            request.after.CopyFrom(SequenceRef.of(after).to_proto())
        page = self._service.ListSequences(request)
        listed = (read(ListedSequence, sequence) for sequence in page.sequences)
        return Sequences(listed, page.more, page.unanswered, page.store_keeps_evicted)

    def inspect_run(self, run: Run) -> RunInspection:
        """Returns what stands out in a run.

        Args:
            run: The run.

        Returns:
            The sequences that inspect_sequence can open, the tokens that are accepted or rejected most, and the largest
            ratios.
        """
        return read(RunInspection, self._service.InspectRun(pb.InspectRunRequest(run=run.to_proto())))

    def inspect_sequence(self, run: Run, sequence: SequenceLike) -> SequenceInspection:
        """Returns the last evaluated values of a sequence, with its records.

        Args:
            run: The run.
            sequence: The sequence, as a name or with an attempt.

        Returns:
            The values, position by position.

        Raises:
            sis.NotFound: No values of it are kept: the service keeps a sample.
        """
        request = pb.InspectSequenceRequest(run=run.to_proto(), sequence=SequenceRef.of(sequence).to_proto())
        return SequenceInspection.from_proto(self._service.InspectSequence(request))

    def append(self, run: Run, *, sampling: Sampling, worker: str = "", retry_timeout: float = 1200.0) -> AppendStream:
        """Opens a stream for behaviour log-probs.

        The first flush raises errors of `run` and `sampling`.

        Args:
            run: The run.
            sampling: How the log-probs were made.
            worker: Name for messages and metrics.
            retry_timeout: Seconds to retry an entry that the server has no space for. Must be longer than a server
                waits for an absent trainer (--reader_absence).

        Returns:
            The stream, a context manager.

        Raises:
            sis.Unavailable, sis.DeadlineExceeded: The only server is unreachable.
        """
        return self._service.append(Source(run, sampling, worker, retry_timeout))

    def fetch_top_k(
        self,
        run: Run,
        slices: Iterable[Union[Slice, SequenceLike]],
        *,
        log_probs: bool = True,
        keep_seconds: float = 0.0,
    ) -> TopKRecords:
        """Reads recorded top-K sets.

        Args:
            run: The run.
            slices: Ranges of positions. A sequence stands for all of its committed positions; more may come
                until it is sealed.
            log_probs: Whether to fetch the log-probs of the sets too, a third of the bytes. sis.reduce needs them,
                sis.gather does not.
            keep_seconds: Seconds that the server keeps the sequences at least, from now and from each evaluate of these
                records, unless they are released. At most 3600; 0: as long as there is space.

        Returns:
            The records, slice by slice.
        """
        request = pb.FetchTopKRequest(
            run=run.to_proto(),
            slices=[_slice(part).to_proto() for part in listed("slices", slices)],
            keep_seconds=keep_seconds,
            whole_blocks=log_probs,
        )
        with _spans.client_span("fetch_top_k", run=run.id, sequences=len(request.slices)):
            fetched = self._service.fetch_top_k(request)
            records = fetched_records.assemble(fetched, run.config.top_k, log_probs)
        return replace(records, keep_seconds=keep_seconds, mass=run.config.mass)

    def evaluate(
        self,
        run: Run,
        records: Union[TopKRecords, Sequence[Slice]],
        *,
        draw: int,
        sampled_log_probs: ArrayLike,
        log_probs: Optional[ArrayLike] = None,
        log_envelopes: Optional[ArrayLike] = None,
        covered_masses: Optional[ArrayLike] = None,
        top_k: int = 0,
        outputs: Sequence[str] = ("accepted",),
        prefix_curve: Sequence[int] = (),
        total_variation: bool = False,
        options: EvaluateOptions = EvaluateOptions(),
    ) -> Evaluation:
        """Decides about N positions from the current policy's log-probs.

        Takes either `log_probs` at the recorded ids, which sis.gather returns, or `log_envelopes` and `covered_masses`,
        which sis.reduce makes of them: 12 bytes per position for any K. Records that were evicted, expired or found
        stale or corrupt since they were fetched are MISSING, without an error.

        Args:
            run: The run.
            records: Result of fetch_top_k, or its `select`; they are kept for its keep_seconds again. A list of
                slices will do if each has a length and, with `log_probs`, no set has unused slots.
            draw: The optimiser step. The same draw gives the same decisions; other draws decide independently.
            sampled_log_probs: float32 [N], nats, of records.sampled_ids. NaN is accepted at missing positions without
                options.own_log_probs.
            log_probs: float32 [N, K], nats, at records.ids, from the same computation as `sampled_log_probs`; values
                of unused slots and missing positions are ignored. Or [S] at records.used_ids, as they are sent.
            log_envelopes: float32 [N], nats, reduced with the same `top_k`.
            covered_masses: float32 [N], reduced with the same `top_k`.
            top_k: Use only the k most probable slots; 0: all K.
            outputs: Of "accepted" (always present), "decisions", "ratios", "log_ratios", "acceptance_probabilities",
                "surrogates", "coefficients".
            prefix_curve: At most 16 ascending k, none above top_k. Evaluation.prefix_curve has the residual mass and
                expected acceptance with only that many slots. Needs `log_probs`.
            total_variation: Also sum the policies' total variation on the sets. Needs `log_probs`.
            options: Mask, advantages, algorithm and what else changes the outputs.

        Returns:
            The decisions and the requested outputs.

        Raises:
            ValueError: An array has the wrong shape or type, or the arrays are of both forms or of neither; nothing
                was sent.
            sis.FailedPrecondition: The server has other records for these positions than were fetched. Or outputs need
                ratios at missing positions and options.own_log_probs is unset, or ratios from an unreachable replica,
                for which only decisions and acceptance probabilities are returned.
        """
        given = (log_probs is not None, log_envelopes is not None, covered_masses is not None)
        if given not in ((True, False, False), (False, True, True)):
            raise ValueError("must be given either log_probs, or both log_envelopes and covered_masses")
        call = EvaluateCall(self._service, run, records, draw, top_k, outputs, options, prefix_curve, total_variation)
        if log_probs is not None:
            return call.gathered(log_probs, sampled_log_probs)
        return call.reduced(
            sampled_log_probs=sampled_log_probs, log_envelopes=log_envelopes, covered_masses=covered_masses
        )

    def release(self, run: Run, sequences: Iterable[SequenceLike]) -> Released:
        """Releases sequences: the server may delete them at once, whoever fetched them with keep_seconds. Idempotent.

        Args:
            run: The run.
            sequences: The sequences, as names or with attempts.

        Returns:
            How many sequences were there.
        """
        names = [SequenceRef.of(sequence).to_proto() for sequence in listed("sequences", sequences)]
        response = self._service.Release(pb.ReleaseRequest(run=run.to_proto(), sequences=names))
        return Released(response.released_sequences, response.unknown)


def append_many(
    client: Client,
    run: Run,
    entries: Iterable[AppendEntry],
    *,
    sampling: Sampling,
    worker: str = "",
    retry_timeout: float = 1200.0,
) -> Dict[SequenceRef, int]:
    """Appends blocks, gaps and seals of any sequences, and returns once all are stored and readable.

    Args:
        client: The client.
        run: The run.
        entries: Entries of any sequences; entries of one sequence are applied in order.
        sampling: How the log-probs were made.
        worker: Name for messages and metrics.
        retry_timeout: Seconds to retry an entry that the server has no space for.

    Returns:
        The committed length of each sequence, in positions.

    Raises:
        ValueError: An entry has a wrong shape or type; the message names it, and nothing was sent.
        sis.AppendError: The service refused entries; all others are stored.
        sis.Error: The call failed. Call again with all entries: the service accepts a block again.
    """
    made = checked_entries.checked(entries, run.config)
    with _spans.client_span("append_many", run=run.id, entries=len(made)):
        stream = client._service.append(Source(run, sampling, worker, retry_timeout))
        try:
            stream._put_checked(made, at_once=True)
            return stream._flush()
        finally:
            stream.abandon()


def _slice(part: Union[Slice, SequenceLike]) -> Slice:
    if isinstance(part, Slice):
        return part
    sequence = SequenceRef.of(part)
    return Slice(sequence.id, attempt=sequence.attempt)
