"""Runs, and the sampling of their behaviour policy."""

from __future__ import annotations

import enum
import re
from dataclasses import asdict, dataclass
from typing import Dict, Iterable, List, Optional, Tuple

from sis._evaluation import Totals
from sis.v1 import ratio_service_pb2 as pb
from sis._wire.messages import read

_ENCODINGS = {"float32": pb.LOG_PROB_ENCODING_FLOAT32, "fixed16": pb.LOG_PROB_ENCODING_FIXED16}


def check_id(run_id: str) -> None:
    """Raises ValueError for an id that servers refuse, to find it early."""
    if not re.fullmatch("[A-Za-z0-9._-]{1,256}", run_id):
        raise ValueError(f"run is {run_id!r}, must be 1 to 256 characters of [A-Za-z0-9._-]")


def label_of(text: str) -> str:
    """Returns the end of a text, within the length limit of task, algorithm and model. The end distinguishes paths."""
    return text.encode(errors="replace")[-256:].decode(errors="ignore")


@dataclass(frozen=True)
class RunConfig:
    """The configuration of a run, which never changes. Limits are in RunConfig of proto/sis/v1/run.proto.

    Attributes:
        seed: Keys the accept/reject draws.
        vocabulary_size: Token ids are in [0, vocabulary_size).
        top_k: K, the slots per position.
        max_staleness: Maximum staleness in policy versions; older positions are MISSING (STALE). None: no limit.
        time_to_live: Seconds after which an untouched sequence is dropped. 0: never.
        byte_quota: Maximum bytes of the run's sequences. 0: only the server's budget limits them.
        log_prob_encoding: Encoding of the log-probs of V_K: "float32" (exact), or "fixed16" (16 bits, rounded down).
        task: Name of the task, for people and dashboards.
        algorithm: Name of the algorithm, for people and dashboards.
        model: Name of the model, for people and dashboards.
        evict_unread: True: when memory is short, evict the least recently used sequences. False: evict only sequences
            that a trainer has read, and others only if nothing of the run was fetched or evaluated for long.
        mass: Strictly between 0 and 1: each set is cut where its probabilities reach this sum. It then has only the
            slots that the position needs, at most top_k. 0 and 1: no cut.
    """

    seed: int
    vocabulary_size: int
    top_k: int
    max_staleness: Optional[int] = None
    time_to_live: float = 0.0
    byte_quota: int = 0
    log_prob_encoding: str = "fixed16"
    task: str = ""
    algorithm: str = ""
    model: str = ""
    evict_unread: bool = False
    mass: float = 0.0

    def __post_init__(self) -> None:
        if self.log_prob_encoding not in _ENCODINGS:
            raise ValueError(f"log_prob_encoding is {self.log_prob_encoding!r}, must be one of {sorted(_ENCODINGS)}")

    def to_proto(self) -> pb.RunConfig:
        fields = asdict(self)
        fields["time_to_live_seconds"] = fields.pop("time_to_live")
        fields["log_prob_encoding"] = _ENCODINGS[self.log_prob_encoding]
        return pb.RunConfig(**fields)

    @staticmethod
    def from_proto(config: pb.RunConfig) -> RunConfig:
        encoding = next(name for name, value in _ENCODINGS.items() if value == config.log_prob_encoding)
        return read(RunConfig, config, time_to_live=config.time_to_live_seconds, log_prob_encoding=encoding)


@dataclass(frozen=True)
class Run:
    """One incarnation of a run, the argument of other calls. Calls of a superseded incarnation are refused.

    Attributes:
        id: The run's id.
        incarnation: Number of the incarnation, from 1.
        config: The run's settings.
    """

    id: str
    incarnation: int
    config: RunConfig

    def to_proto(self) -> pb.RunRef:
        return pb.RunRef(run_id=self.id, incarnation=self.incarnation)


class Verdict(enum.IntEnum):
    """The health of a run.

    Attributes:
        UNSPECIFIED: Not given.
        HEALTHY: Nothing is wrong.
        WORTH_A_LOOK: Something is unusual.
        BROKEN: Something is wrong.
    """

    UNSPECIFIED = pb.VERDICT_UNSPECIFIED
    HEALTHY = pb.VERDICT_HEALTHY
    WORTH_A_LOOK = pb.VERDICT_WORTH_A_LOOK
    BROKEN = pb.VERDICT_BROKEN


@dataclass(frozen=True)
class Finding:
    """A problem of a run.

    Attributes:
        rule: The name of the rule's alert and of its runbook.
        verdict: How bad it is.
        reason: What was measured, for people.
        action: What to do, for people.
    """

    rule: str
    verdict: Verdict
    reason: str
    action: str


@dataclass(frozen=True)
class RunStatus:
    """A run and its state on the server.

    Attributes:
        run: The run.
        policy_version: The current policy version.
        sequences: Sequences held.
        sealed_sequences: Sequences held that are sealed.
        positions: Number of positions.
        bytes: Bytes charged to quota and budget.
        kept_sequences: Number of sequences kept because of keep_seconds.
        last_draw: The last evaluated draw; None before the first.
        last_totals: Totals of the last draw.
        last_evaluated_at: Time of the last evaluation, in seconds since 1970-01-01 00:00 UTC.
        unread_sequences: Number of sequences that no fetch or evaluation has named yet. 0 if the server has a store.
        owner: The creator of the run; empty on a server without authentication.
        verdict: The verdict of the worst finding.
        findings: What is wrong, the worst first.
        sampling: The sampling of the append stream opened last; None if none was opened since the server started.
        version_labels: Policy versions by the label that the trainer announced them with; the last 1,024.
    """

    run: Run
    policy_version: int
    sequences: int
    sealed_sequences: int
    positions: int
    bytes: int
    kept_sequences: int
    last_draw: Optional[int]
    last_totals: Optional[Totals]
    last_evaluated_at: Optional[float]
    unread_sequences: int
    owner: str
    verdict: Verdict
    findings: Tuple[Finding, ...]
    sampling: Optional[Sampling]
    version_labels: Dict[str, int]

    @staticmethod
    def from_proto(run: pb.Run) -> RunStatus:
        own = Run(run.run_id, run.incarnation, RunConfig.from_proto(run.config))
        sampling = Sampling.from_proto(run.sampling) if run.HasField("sampling") else None
        labels = {named.label: named.policy_version for named in run.version_labels}
        return read(RunStatus, run, run=own, owner=run.config.owner, sampling=sampling, version_labels=labels)


class Runs(List[RunStatus]):
    """Runs in the order of their ids."""

    def __init__(self, runs: Iterable[RunStatus] = (), unanswered: Iterable[int] = ()) -> None:
        """Makes a list.

        Args:
            runs: By run id.
            unanswered: Indices, in the client's list of addresses, of unreachable servers: their sequences are not
                counted.
        """
        super().__init__(runs)
        # The indices, in the client's list of addresses, of unreachable replicas, whose runs are missing here.
        self.unanswered: Tuple[int, ...] = tuple(unanswered)


# Values of filters that exclude nothing.
_NO_FILTER = {"top_p": (None, 1.0), "top_k": (None, 0, -1), "min_p": (None, 0.0)}
_LOG_PROBS = {"raw": pb.Sampling.LOG_PROBS_RAW, "processed": pb.Sampling.LOG_PROBS_PROCESSED}


@dataclass(frozen=True)
class Sampling:
    """The sampling settings behind the recorded log-probs. None means neutral.

    `log_probs` is "processed" (of the distribution that the token was drawn from, after
    temperature, penalties and filters) or "raw" (log-softmax of the logits). Raw ones are the
    behaviour policy's only if all settings are neutral and the temperature is 1; the service refuses
    other settings.

    Attributes:
        log_probs: "processed": of the distribution that the token was drawn from. "raw": log-softmax of the logits.
        temperature: Temperature.
        top_p: Nucleus filter.
        top_k: Number of tokens that a filter leaves.
        min_p: Filter by probability relative to the largest.
        presence_penalty: Penalty of tokens that have occurred.
        frequency_penalty: Penalty by the number of occurrences.
        repetition_penalty: Factor of tokens that have occurred.
        logit_bias: Whether logits were biased.
        grammar: Whether a grammar restricted the tokens.
    """

    log_probs: str
    temperature: float = 1.0
    top_p: Optional[float] = None
    top_k: Optional[int] = None
    min_p: Optional[float] = None
    presence_penalty: Optional[float] = None
    frequency_penalty: Optional[float] = None
    repetition_penalty: Optional[float] = None
    logit_bias: bool = False
    grammar: bool = False

    def __post_init__(self) -> None:
        if self.log_probs not in _LOG_PROBS:
            raise ValueError(f"log_probs is {self.log_probs!r}, must be 'raw' or 'processed'")

    @property
    def truncates(self) -> bool:
        """Returns True if a filter excludes tokens, which renormalises the log-probs of the others."""
        return bool(self.filters)

    @property
    def filters(self) -> Dict[str, float]:
        """Returns the filters that exclude tokens, with their values."""
        return {name: getattr(self, name) for name, off in _NO_FILTER.items() if getattr(self, name) not in off}

    def to_proto(self) -> pb.Sampling:
        return pb.Sampling(**{**asdict(self), "log_probs": _LOG_PROBS[self.log_probs]})

    @staticmethod
    def from_proto(sampling: pb.Sampling) -> Sampling:
        return read(Sampling, sampling, log_probs="raw" if sampling.log_probs == pb.Sampling.LOG_PROBS_RAW else "processed")
