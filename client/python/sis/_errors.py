"""Exceptions: one class for each status code of the service that a caller may want to tell apart."""

from __future__ import annotations

from typing import NamedTuple, Sequence, Union

import grpc


class Error(Exception):
    """A call that failed. `code` is a grpc.StatusCode, `message` the server's words (or the client
    library's)."""

    def __init__(self, code: grpc.StatusCode, message: str) -> None:
        """Makes an error.

        Args:
            code: gRPC's status code.
            message: The server's message, or gRPC's.
        """
        super().__init__(f"{code.name}: {message}")
        self.code = code
        self.message = message
        # Whether a server found an UNAVAILABLE itself, of its store.
        self.answered = False


class InvalidArgument(Error, ValueError):
    """The service refused the input, and changed nothing. The message names field, sequence,
    position and value."""


class NotFound(Error):
    """No such run or step, or nothing that was kept of the sequence to be inspected."""


class AlreadyExists(Error):
    """The run is there with another configuration."""


class FailedPrecondition(Error):
    """Superseded incarnation, changed records, ratios wanted of missing positions, and the like."""


class ResourceExhausted(Error):
    """Over a budget, quota or limit of the server."""


class Unauthenticated(Error):
    """The server asks who calls, and knows neither the client's token nor its certificate."""


class PermissionDenied(Error):
    """The client's role does not allow the call, or the run's id is somebody else's."""


class Unavailable(Error):
    """The server can't be reached, or ended a stream; or its store failed. Every call may be repeated."""


class DeadlineExceeded(Error):
    """No answer within the client's `timeout`. Every call may be repeated."""


class Refusal(NamedTuple):
    """An entry of an append stream that the server did not take.

    Attributes:
        sequence: Id of the sequence.
        attempt: Number of the attempt.
        entry: "block [first, end)", "gap [first, end)" or "seal at length".
        code: gRPC's status code.
        message: What was wrong.
    """

    sequence: str
    attempt: int
    entry: str
    code: grpc.StatusCode
    message: str


class AppendError(Error):
    """Entries that were refused since the last flush, in `refused`; all others are stored."""

    def __init__(self, refused: Sequence[Refusal]) -> None:
        """Makes an error.

        Args:
            refused: The refused entries.
        """
        first = refused[0]
        more = f" (and {len(refused) - 1} more refused)" if len(refused) > 1 else ""
        super().__init__(
            first.code, f"sequence '{first.sequence}' attempt {first.attempt}, {first.entry}: {first.message}{more}"
        )
        self.refused = tuple(refused)


# INVALID_ARGUMENT is an InvalidArgument.
_BY_NAME = {kind.__name__: kind for kind in Error.__subclasses__()}
_BY_NUMBER = {code.value[0]: code for code in grpc.StatusCode}


def status_code(number: int) -> grpc.StatusCode:
    """Returns the code with this number in google.rpc.Code; UNKNOWN for an unknown number."""
    return _BY_NUMBER.get(number, grpc.StatusCode.UNKNOWN)


def from_status(code: grpc.StatusCode, message: str) -> Error:
    """Returns an exception of the class of `code`."""
    return _BY_NAME.get(code.name.title().replace("_", ""), Error)(code, message)


def is_unreachable(error: Error) -> bool:
    """Returns True if the server did not answer, for any reason. A server that shuts down cancels calls."""
    return is_away(error) and not error.answered


def is_away(error: Union[Error, Refusal]) -> bool:
    """Returns True if a server did not answer, or its store failed. The call may succeed later."""
    return error.code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED)


def from_rpc(error: grpc.RpcError) -> Error:
    """The exception that stands for what grpcio raised."""
    message = error.details() or ""
    # gRPC's words, which don't tell whose maximum it is.
    if error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED and "larger than max" in message:
        message += ": see the server's --max_message_bytes"
    raised = from_status(error.code(), message)
    raised.answered = any(key == "sis-answered" for key, _ in error.trailing_metadata() or ())
    return raised
