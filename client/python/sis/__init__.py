"""Python client of the SIS ratio service: stream behaviour log-probs in, get acceptance masks and ratios back."""

from sis.append import AppendStream
from sis.client import Client, Released
from sis.errors import (
    AlreadyExists,
    AppendError,
    DeadlineExceeded,
    Error,
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    Refusal,
    ResourceExhausted,
    Unavailable,
)
from sis.evaluation import Decision, Evaluation, PrefixPoint, Step, Totals
from sis.records import MissingRange, MissingReason, SequenceRef, Slice, TopKRecords
from sis.reduction import gather, reduce
from sis.run import Run, RunConfig, RunStatus, Sampling
from sis.top_k import TopK, canonical

__all__ = [
    "AlreadyExists",
    "AppendError",
    "AppendStream",
    "Client",
    "DeadlineExceeded",
    "Decision",
    "Error",
    "Evaluation",
    "FailedPrecondition",
    "InvalidArgument",
    "MissingRange",
    "MissingReason",
    "NotFound",
    "PrefixPoint",
    "Refusal",
    "Released",
    "ResourceExhausted",
    "Run",
    "RunConfig",
    "RunStatus",
    "Sampling",
    "SequenceRef",
    "Slice",
    "Step",
    "TopK",
    "TopKRecords",
    "Totals",
    "Unavailable",
    "canonical",
    "gather",
    "reduce",
]
