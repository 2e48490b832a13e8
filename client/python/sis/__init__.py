"""Python client of the SIS ratio service: stream behaviour log-probs in, get acceptance masks and
ratios back."""

from sis.algorithms import (
    Cispo,
    ClipCov,
    Dapo,
    DppoBinary,
    DppoTopK,
    Grpo,
    Gspo,
    IcePop,
    ImportanceSampling,
    NoCorrection,
    Tis,
)
from sis.append import AppendStream
from sis.client import Client, Released
from sis.corrections import CorrectionTotals, Distributions, Histogram, SequenceMask, Sis, Staleness
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
from sis.half_precision import float16_rounded_up
from sis.options import AuthorsCode, EvaluateOptions, LogRatioSum
from sis.records import MissingRange, MissingReason, SequenceRef, Slice, TopKRecords
from sis.reduction import gather, reduce
from sis.run import Run, RunConfig, RunStatus, Sampling
from sis.segment import Segment
from sis.top_k import TopK, canonical

__all__ = [
    "AlreadyExists",
    "AppendError",
    "AppendStream",
    "AuthorsCode",
    "Cispo",
    "Client",
    "ClipCov",
    "CorrectionTotals",
    "Dapo",
    "DeadlineExceeded",
    "Decision",
    "Distributions",
    "DppoBinary",
    "DppoTopK",
    "Error",
    "EvaluateOptions",
    "Evaluation",
    "FailedPrecondition",
    "Grpo",
    "Gspo",
    "Histogram",
    "IcePop",
    "ImportanceSampling",
    "InvalidArgument",
    "LogRatioSum",
    "MissingRange",
    "MissingReason",
    "NoCorrection",
    "NotFound",
    "PrefixPoint",
    "Refusal",
    "Released",
    "ResourceExhausted",
    "Run",
    "RunConfig",
    "RunStatus",
    "Sampling",
    "Segment",
    "SequenceMask",
    "SequenceRef",
    "Sis",
    "Slice",
    "Staleness",
    "Step",
    "Tis",
    "TopK",
    "TopKRecords",
    "Totals",
    "Unavailable",
    "canonical",
    "float16_rounded_up",
    "gather",
    "reduce",
]
