"""A small RatioService in this process, for tests of what a client sends and reads, and of a server that refuses, waits or
goes away: it keeps records and follows the API, slowly. It decides nothing: every other position is accepted.
"""

import itertools
import time
import unittest
import zlib
from concurrent import futures

import grpc
import numpy as np

import sis
from sis import _blocks, _ragged
from sis.v1 import ratio_service_pb2 as pb
from sis.v1 import ratio_service_pb2_grpc

OK = 0
INVALID_ARGUMENT = 3
ALREADY_EXISTS = 6
RESOURCE_EXHAUSTED = 8
FAILED_PRECONDITION = 9

GAP_REASONS = (
    pb.MISSING_REASON_INVALID_LOG_PROB,
    pb.MISSING_REASON_NO_LOG_PROB,
    pb.MISSING_REASON_INFINITE_LOG_PROB,
    pb.MISSING_REASON_UNKNOWN_VERSION,
)


def block_arrays(rows, top_k, seed=0):
    """Arguments of a block of a vocabulary of 32."""
    rng = np.random.default_rng(seed)
    log_probs = (-np.sort(rng.exponential(size=(rows, top_k)), axis=1) - 1.5).astype(np.float32)
    ids = np.argsort(rng.random((rows, 32)), axis=1)[:, :top_k]
    return {
        "sampled_ids": ids[:, 1].copy(), "sampled_log_probs": log_probs[:, 1].copy(), "top_k_ids": ids,
        "top_k_log_probs": log_probs,
    }  # fmt: skip


class Sequence:
    def __init__(self):
        # position -> (sampled id, its log-prob, ids [K], log-probs [K]), all as bytes
        self.rows = {}
        # position -> reason
        self.gaps = {}
        self.sealed = None

    @property
    def committed(self):
        return max([*self.rows, *self.gaps], default=-1) + 1


class FakeService:
    """`refuse(entry)` may return (code, message, retry_seconds) for an entry before it is applied,
    or None."""

    def __init__(self):
        self.refuse = lambda entry: None
        self.before_batch = lambda batch: None
        self.runs = {}
        self.sequences = {}
        self.headers = []
        self.batches = []
        self.evaluations = []
        # By draw, of any run.
        self.steps = {}
        # Whether it answers nothing that is about a run.
        self.unavailable = False

    def answer(self, context):
        if self.unavailable:
            context.abort(grpc.StatusCode.UNAVAILABLE, "away")

    def run_of(self, ref, context):
        self.answer(context)
        run = self.runs.get(ref.run_id)
        if run is None:
            context.abort(grpc.StatusCode.NOT_FOUND, f"run '{ref.run_id}' is unknown")
        if ref.incarnation not in (0, run.incarnation):
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, f"incarnation {ref.incarnation} is not present")
        return run

    def CreateRun(self, request, context):
        self.answer(context)
        run = self.runs.get(request.run_id)
        if run is not None and request.incarnation in (0, run.incarnation):
            if run.config != request.config:
                context.abort(grpc.StatusCode.ALREADY_EXISTS, "config differs")
            return pb.CreateRunResponse(incarnation=run.incarnation, created=False)
        if run is not None and request.incarnation < run.incarnation:
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, "incarnation of the past")
        if request.config.top_k == 0:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, "config.top_k is 0")
        self.runs[request.run_id] = pb.Run(
            run_id=request.run_id, incarnation=request.incarnation or 1, config=request.config
        )
        self.sequences = {key: value for key, value in self.sequences.items() if key[0] != request.run_id}
        return pb.CreateRunResponse(incarnation=request.incarnation or 1, created=True)

    def DeleteRun(self, request, context):
        run = self.runs.get(request.run.run_id)
        if run is None or request.run.incarnation not in (0, run.incarnation):
            return pb.DeleteRunResponse(deleted=False)
        del self.runs[run.run_id]
        held = self.sequences.items()
        self.sequences = {key: value for key, value in held if key[0] != run.run_id}
        return pb.DeleteRunResponse(deleted=True)

    def AdvanceVersion(self, request, context):
        run = self.run_of(request.run, context)
        if request.policy_version < run.policy_version:
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, "policy_version would go back")
        if request.label:
            named = pb.VersionLabel(label=request.label, policy_version=request.policy_version)
            if any(
                (kept.label == named.label) != (kept.policy_version == named.policy_version)
                for kept in run.version_labels
            ):
                context.abort(grpc.StatusCode.ALREADY_EXISTS, f"label '{request.label}' or its version is taken")
            if named not in run.version_labels:
                run.version_labels.append(named)
        run.policy_version = request.policy_version
        return pb.AdvanceVersionResponse(dropped_sequences=0)

    def state(self, run):
        run.sequences = sum(key[0] == run.run_id for key in self.sequences)
        return run

    def GetRun(self, request, context):
        return pb.GetRunResponse(run=self.state(self.run_of(pb.RunRef(run_id=request.run_id), context)))

    def ListRuns(self, request, context):
        return pb.ListRunsResponse(runs=[self.state(self.runs[name]) for name in sorted(self.runs)])

    def GetStep(self, request, context):
        self.run_of(request.run, context)
        if request.draw not in self.steps:
            context.abort(grpc.StatusCode.NOT_FOUND, f"nothing was counted for draw {request.draw}")
        return self.steps[request.draw]

    def ListSteps(self, request, context):
        self.run_of(request.run, context)
        return pb.ListStepsResponse()

    def Append(self, requests, context):
        header = next(requests).header
        self.headers.append(header)
        run = self.run_of(header.run, context)
        if header.vocabulary_size != run.config.vocabulary_size:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, "vocabulary_size is not the run's")
        for request in requests:
            self.answer(context)
            self.batches.append(request.batch)
            self.before_batch(request.batch)
            yield pb.AppendResponse(acks=[self.apply(run, entry) for entry in request.batch.entries])

    def apply(self, run, entry):
        kind = entry.WhichOneof("entry")
        change = getattr(entry, kind)
        key = (run.run_id, entry.sequence.id, entry.sequence.attempt)
        sequence = self.sequences.setdefault(key, Sequence())
        refused = self.refuse(entry)
        if refused is None:
            refused = getattr(self, kind)(run, sequence, change)
        code, message, retry_seconds = refused or (OK, "", 0.0)
        return pb.Ack(
            sequence=entry.sequence,
            committed_length=sequence.committed,
            code=code,
            message=message,
            retry_seconds=retry_seconds,
        )

    def block(self, run, sequence, block):
        read = _blocks.Block(block)
        first = read.header.first_position
        if sequence.sealed is not None and first + read.header.positions > sequence.sealed:
            return FAILED_PRECONDITION, f"sealed at {sequence.sealed}", 0.0
        columns = (
            read.sampled_ids(),
            read.sampled_log_probs,
            _ragged.widened(read.ids(), read.counts, read.header.slots, -1),
            _ragged.widened(read.log_probs(), read.counts, read.header.slots, -np.inf),
        )
        new = {first + index: tuple(value.tobytes() for value in row) for index, row in enumerate(zip(*columns))}
        for position, row in new.items():
            if sequence.rows.get(position, row) != row:
                return ALREADY_EXISTS, f"position {position} differs", 0.0
        sequence.rows.update(new)
        return None

    def gap(self, run, sequence, gap):
        if gap.length == 0 or gap.reason not in GAP_REASONS:
            return INVALID_ARGUMENT, f"gap: length {gap.length} or reason {gap.reason}", 0.0
        positions = range(gap.first_position, gap.first_position + gap.length)
        if sequence.sealed is not None and positions.stop > sequence.sealed:
            return FAILED_PRECONDITION, f"sealed at {sequence.sealed}", 0.0
        for position in positions:
            if position in sequence.rows:
                return ALREADY_EXISTS, f"position {position} is recorded", 0.0
        sequence.gaps.update(dict.fromkeys(positions, gap.reason))
        return None

    def seal(self, run, sequence, seal):
        if seal.length < sequence.committed or sequence.sealed not in (None, seal.length):
            return FAILED_PRECONDITION, f"cannot seal at {seal.length}", 0.0
        sequence.sealed = seal.length
        return None

    def Release(self, request, context):
        self.run_of(request.run, context)
        keys = [(request.run.run_id, s.id, s.attempt) for s in request.sequences]
        sequences = sum(self.sequences.pop(key, None) is not None for key in keys)
        return pb.ReleaseResponse(released_sequences=sequences, unknown=len(keys) - sequences)

    def sequence_of(self, run, part):
        return self.sequences.get((run.run_id, part.sequence.id, part.sequence.attempt), Sequence())

    def rows_of(self, run, part):
        sequence = self.sequence_of(run, part)
        end = sequence.committed if sequence.sealed is None else sequence.sealed
        length = part.length or max(0, end - part.first_position)
        return [sequence.rows.get(p) for p in range(part.first_position, part.first_position + length)]

    @staticmethod
    def digest(rows):
        return zlib.crc32(b"".join(b"".join(row) for row in rows if row))

    def missing(self, run, index, part, rows):
        gaps = self.sequence_of(run, part).gaps
        return [
            pb.MissingRange(slice=index, first_position=p, length=1, reason=gaps.get(p, pb.MISSING_REASON_NEVER_ARRIVED))
            for p, row in enumerate(rows, part.first_position)
            if row is None
        ]

    def FetchTopK(self, request, context):
        run = self.run_of(request.run, context)
        for index, part in enumerate(request.slices):
            rows = self.rows_of(run, part)
            made = pb.FetchedSlice(
                slice=index, blocks=self.blocks_of(run, part, rows), missing=self.missing(run, index, part, rows),
                length=len(rows), record_digest=self.digest(rows),
            )  # fmt: skip
            yield pb.FetchTopKResponse(slices=[made])

    def blocks_of(self, run, part, rows):
        made = []
        for there, found in itertools.groupby(enumerate(rows, part.first_position), lambda row: row[1] is not None):
            if there:
                positions, some = zip(*found)
                columns = [np.frombuffer(b"".join(column), dtype) for column, dtype in zip(zip(*some), "ifif")]
                columns[2:] = [column.reshape(len(some), -1) for column in columns[2:]]
                # It checks nothing: the slot of a sampled token may be rounded.
                made.append(_blocks._packed_by_numpy(_blocks.Records(positions[0], 0, *columns), run.config))
        return made

    def Evaluate(self, request, context):
        run = self.run_of(request.run, context)
        self.evaluations.append(request)
        if not request.slices:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, "slices must be there")
        response = pb.EvaluateResponse()
        recorded = []
        for index, part in enumerate(request.slices):
            rows = self.rows_of(run, part)
            response.missing.extend(self.missing(run, index, part, rows))
            response.slice_totals.add()
            recorded += [row is not None for row in rows]
        accepted = np.array(recorded) & (np.arange(len(recorded)) % 2 == 0)
        response.totals.accepted = int(accepted.sum())
        response.accept_bits = np.packbits(accepted, bitorder="little").tobytes()
        self.steps[request.draw] = pb.GetStepResponse(totals=response.totals)
        return response


def _handler(service):
    """The methods that `service` has; the others are UNIMPLEMENTED."""
    methods = {}
    for name, method in pb.methods().items():
        if hasattr(service, name):
            kinds = ("stream" if streams else "unary" for streams in (method.client_streaming, method.server_streaming))
            methods[name] = getattr(grpc, "_".join((*kinds, "rpc_method_handler")))(
                getattr(service, name),
                request_deserializer=pb.message_named(method.input_type).FromString,
                response_serializer=pb.message_named(method.output_type).SerializeToString,
            )
    return grpc.method_handlers_generic_handler(ratio_service_pb2_grpc.SERVICE, methods)


def start(service, address="127.0.0.1:0"):
    """A server of `service`, by default on a free port. Returns (grpc.Server, address)."""
    sizes = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]
    server = grpc.server(futures.ThreadPoolExecutor(8), options=sizes)
    server.add_generic_rpc_handlers([_handler(service)])
    port = server.add_insecure_port(address)
    server.start()
    return server, f"127.0.0.1:{port}"


class ServersTest(unittest.TestCase):
    def serve(self, service, *address):
        """As start(), until the test ends."""
        server, address = start(service, *address)
        self.addCleanup(lambda: server.stop(None).wait())
        return server, address


class ServiceTest(ServersTest):
    """With a service, its server, and a client."""

    def setUp(self):
        self.service = FakeService()
        self.server, self.address = self.serve(self.service)
        self.client = self.enterContext(sis.Client(self.address, timeout=20))

    def blocks(self, sequence):
        """First position, length and policy version of each block that was sent for a sequence."""
        entries = [entry for batch in self.service.batches for entry in batch.entries if entry.sequence.id == sequence]
        headers = [_blocks.Block(entry.block).header for entry in entries if entry.HasField("block")]
        return [(header.first_position, header.positions, header.policy_version) for header in headers]

    def wait_for(self, condition):
        deadline = time.monotonic() + 20
        while not condition():
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.01)

    def start_again(self):
        """Starts a server at the address of the stopped one."""
        self.server, _ = self.serve(self.service, self.address)
