"""The names that users find in the package sis. Type checkers take `X as X` for a name that others may import."""

from sis._ages import AgeTotals as AgeTotals
from sis._algorithms import *
from sis._append import AppendStream as AppendStream
from sis._client import Client as Client, Released as Released, append_many as append_many
from sis._corrections import (
    CorrectionTotals as CorrectionTotals, Distributions as Distributions, Histogram as Histogram,
    PRESETS as PRESETS, SequenceMask as SequenceMask, Sis as Sis, TokenMask as TokenMask,
)  # fmt: skip
from sis._credentials import Credentials as Credentials
from sis._entries import Annotation as Annotation, Block as Block, Gap as Gap, Seal as Seal
from sis._errors import (
    AlreadyExists as AlreadyExists, AppendError as AppendError, DeadlineExceeded as DeadlineExceeded, Error as Error,
    FailedPrecondition as FailedPrecondition, InvalidArgument as InvalidArgument, NotFound as NotFound,
    PermissionDenied as PermissionDenied, Refusal as Refusal, ResourceExhausted as ResourceExhausted,
    Unauthenticated as Unauthenticated, Unavailable as Unavailable,
)  # fmt: skip
from sis._evaluation import (
    Decision as Decision, Evaluation as Evaluation, PrefixPoint as PrefixPoint, Step as Step, Steps as Steps,
    Totals as Totals,
)  # fmt: skip
from sis._inspection import (
    Deviation as Deviation, InspectedSequence as InspectedSequence, ListedSequence as ListedSequence,
    RunInspection as RunInspection, SequenceInspection as SequenceInspection, Sequences as Sequences,
    TokenCounts as TokenCounts,
)  # fmt: skip
from sis._options import EvaluateOptions as EvaluateOptions, LogRatioSum as LogRatioSum
from sis._records import (
    MissingRange as MissingRange, MissingReason as MissingReason, SequenceRef as SequenceRef, Slice as Slice,
    TopKRecords as TopKRecords,
)  # fmt: skip
from sis._reduction import gather as gather, reduce as reduce
from sis._run import (
    Finding as Finding, Run as Run, RunConfig as RunConfig, Runs as Runs, RunStatus as RunStatus, Sampling as Sampling,
    Verdict as Verdict,
)  # fmt: skip
from sis._server_process import LocalServer as LocalServer, local_server as local_server
from sis._server_state import Activity as Activity, ServerState as ServerState
from sis._top_k import TopK as TopK, canonical as canonical
