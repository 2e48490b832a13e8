"""Python client of the SIS ratio service: stream behaviour log-probs in, get acceptance masks and
ratios back."""

from sis.algorithms import (
    Cispo,
    ClipCov,
    DampedTruncation,
    Dapo,
    DppoBinary,
    DppoTopK,
    Grpo,
    Gspo,
    IcePop,
    ImportanceSampling,
    NoCorrection,
    SoftAcceptance,
    Tis,
)
from sis.append import AppendStream
from sis.client import Client, Released
from sis.corrections import (
    CorrectionTotals,
    Distributions,
    Histogram,
    SequenceMask,
    SequenceTrustRegion,
    Sis,
    Staleness,
)
from sis.credentials import Credentials
from sis.entries import Block, Seal, Truncate
from sis.errors import (
    AlreadyExists,
    AppendError,
    DeadlineExceeded,
    Error,
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    PermissionDenied,
    Refusal,
    ResourceExhausted,
    Unauthenticated,
    Unavailable,
)
from sis.evaluation import Decision, Evaluation, PrefixPoint, Step, Steps, Totals
from sis.export import Exported
from sis.half_precision import float16_rounded_up
from sis.history import History, Stretch
from sis.inspection import Deviation, InspectedSequence, RunInspection, SequenceInspection, TokenCounts
from sis.local_server import LocalServer, local_server
from sis.options import AuthorsCode, EvaluateOptions, LogRatioSum
from sis.records import MissingRange, MissingReason, SequenceRef, Slice, TopKRecords
from sis.reduction import gather, reduce
from sis.run import Finding, Run, RunConfig, Runs, RunStatus, Sampling, Verdict
from sis.segment import Segment
from sis.server_state import Activity, ServerState
from sis.top_k import TopK, canonical

# Of the whole project; the wheel has it from here.
__version__ = "0.1.0"

__all__ = [
    "Activity",
    "AlreadyExists",
    "AppendError",
    "AppendStream",
    "AuthorsCode",
    "Block",
    "Cispo",
    "Client",
    "ClipCov",
    "CorrectionTotals",
    "Credentials",
    "DampedTruncation",
    "Dapo",
    "DeadlineExceeded",
    "Decision",
    "Deviation",
    "Distributions",
    "DppoBinary",
    "DppoTopK",
    "Error",
    "EvaluateOptions",
    "Evaluation",
    "Exported",
    "FailedPrecondition",
    "Finding",
    "Grpo",
    "Gspo",
    "Histogram",
    "History",
    "IcePop",
    "ImportanceSampling",
    "InspectedSequence",
    "InvalidArgument",
    "LocalServer",
    "LogRatioSum",
    "MissingRange",
    "MissingReason",
    "NoCorrection",
    "NotFound",
    "PermissionDenied",
    "PrefixPoint",
    "Refusal",
    "Released",
    "ResourceExhausted",
    "Run",
    "RunConfig",
    "RunInspection",
    "RunStatus",
    "Runs",
    "Sampling",
    "Seal",
    "Segment",
    "SequenceInspection",
    "SequenceMask",
    "SequenceRef",
    "SequenceTrustRegion",
    "ServerState",
    "Sis",
    "Slice",
    "SoftAcceptance",
    "Staleness",
    "Step",
    "Steps",
    "Stretch",
    "Tis",
    "TokenCounts",
    "TopK",
    "TopKRecords",
    "Totals",
    "Truncate",
    "Unauthenticated",
    "Unavailable",
    "Verdict",
    "canonical",
    "float16_rounded_up",
    "gather",
    "local_server",
    "reduce",
]
