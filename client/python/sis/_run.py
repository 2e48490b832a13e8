"""Runs, and how their behaviour policy samples."""

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
    """ValueError for one that no server takes, where that is better known early."""
    if not re.fullmatch("[A-Za-z0-9._-]{1,256}", run_id):
        raise ValueError(f"run is {run_id!r}, must be 1 to 256 characters of [A-Za-z0-9._-]")


def label_of(text: str) -> str:
    """The end of a text, no longer than a server takes task, algorithm and model: of a path, what
    tells it from others."""
    return text.encode(errors="replace")[-256:].decode(errors="ignore")


@dataclass(frozen=True)
class RunConfig:
    """What a run is; fixed while it lives. Limits are in RunConfig of proto/sis/v1/run.proto."""

    # Keys the accept/reject draws.
    seed: int
    # Token ids are in [0, vocabulary_size).
    vocabulary_size: int
    # K, the slots per position.
    top_k: int
    # Positions more than so many policy versions behind are MISSING (STALE). None: no limit.
    max_staleness: Optional[int] = None
    # Seconds after which an untouched sequence is dropped. 0: never.
    time_to_live: float = 0.0
    # Bytes that the run's sequences use at most. 0: only the server's budget limits them.
    byte_quota: int = 0
    # How the log-probs of V_K are kept: "float32" (as sent), or "fixed16" (16 bits, rounded down).
    log_prob_encoding: str = "fixed16"
    # For people and dashboards.
    task: str = ""
    algorithm: str = ""
    model: str = ""
    # Where room is short: True evicts whatever was least recently used. False evicts what trainers
    # have read; what is unread goes only if nothing of the run was fetched or evaluated for long.
    evict_unread: bool = False
    # Strictly between 0 and 1: each set is cut where its probabilities reach this sum, so
    # that it is as long as the position needs and top_k the most it may be. 0 and 1: nowhere.
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
    """One incarnation of a run: what the other calls take. Calls of a superseded incarnation are
    refused."""

    id: str
    incarnation: int
    config: RunConfig

    def to_proto(self) -> pb.RunRef:
        return pb.RunRef(run_id=self.id, incarnation=self.incarnation)


class Verdict(enum.IntEnum):
    """How a run does."""

    UNSPECIFIED = pb.VERDICT_UNSPECIFIED
    HEALTHY = pb.VERDICT_HEALTHY
    WORTH_A_LOOK = pb.VERDICT_WORTH_A_LOOK
    BROKEN = pb.VERDICT_BROKEN


@dataclass(frozen=True)
class Finding:
    """What is wrong with a run."""

    # The name of the alert with this rule, and of its page.
    rule: str
    verdict: Verdict
    # For people: what was measured, and what to do.
    reason: str
    action: str


@dataclass(frozen=True)
class RunStatus:
    """A run and what the server holds of it."""

    run: Run
    policy_version: int
    # Sequences held, and how many of them are sealed.
    sequences: int
    sealed_sequences: int
    # Positions held.
    positions: int
    # Bytes held, as charged against quota and budget.
    bytes: int
    # Sequences that are held because of keep_seconds.
    kept_sequences: int
    # The draw that was evaluated last; None before the first.
    last_draw: Optional[int]
    # Its totals.
    last_totals: Optional[Totals]
    # Seconds since 1970-01-01 00:00 UTC.
    last_evaluated_at: Optional[float]
    # Sequences held that no fetch or evaluation has named yet. 0 if the server has a store.
    unread_sequences: int
    # Who created the run; empty if the server does not ask who calls.
    owner: str
    # That of the worst finding.
    verdict: Verdict
    # The worst first.
    findings: Tuple[Finding, ...]
    # Of the append stream that was opened last; None before the first since the server started.
    sampling: Optional[Sampling]
    # Policy versions by the label that the trainer announced them with; the last 1,024.
    version_labels: Dict[str, int]

    @staticmethod
    def from_proto(run: pb.Run) -> RunStatus:
        own = Run(run.run_id, run.incarnation, RunConfig.from_proto(run.config))
        sampling = Sampling.from_proto(run.sampling) if run.HasField("sampling") else None
        labels = {named.label: named.policy_version for named in run.version_labels}
        return read(RunStatus, run, run=own, owner=run.config.owner, sampling=sampling, version_labels=labels)


class Runs(List[RunStatus]):
    """By run id."""

    def __init__(self, runs: Iterable[RunStatus] = (), unanswered: Iterable[int] = ()) -> None:
        super().__init__(runs)
        # The places, in the client's list of addresses, of those that gave no answer: what these
        # hold is not here.
        self.unanswered: Tuple[int, ...] = tuple(unanswered)


_LOG_PROBS = {"raw": pb.Sampling.LOG_PROBS_RAW, "processed": pb.Sampling.LOG_PROBS_PROCESSED}


@dataclass(frozen=True)
class Sampling:
    """How the recorded log-probs were made. None leaves a setting neutral.

    `log_probs` is "processed" (of the distribution that the token was drawn from, after
    temperature, penalties and filters) or "raw" (log-softmax of the logits). Raw ones are the
    behaviour policy's only if all settings are neutral and the temperature is 1; anything else is
    refused by the service.
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
        """Whether a filter leaves tokens out, and the log-probs of the others are normalised anew."""
        return self.top_p not in (None, 1.0) or self.top_k not in (None, 0, -1) or self.min_p not in (None, 0.0)

    def to_proto(self) -> pb.Sampling:
        return pb.Sampling(**{**asdict(self), "log_probs": _LOG_PROBS[self.log_probs]})

    @staticmethod
    def from_proto(sampling: pb.Sampling) -> Sampling:
        return read(Sampling, sampling, log_probs="raw" if sampling.log_probs == pb.Sampling.LOG_PROBS_RAW else "processed")
