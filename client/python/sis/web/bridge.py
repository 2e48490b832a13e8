"""Calls of the service that change nothing, by name: from the query of a URL to JSON."""

from __future__ import annotations

from typing import Any, Dict, Iterable, Tuple

import grpc
from google.protobuf import json_format

from sis.client import Client
from sis.errors import Error, InvalidArgument, NotFound
from sis.v1 import ratio_service_pb2 as pb

METHODS = (
    "ListRuns",
    "GetRun",
    "GetStep",
    "ListSteps",
    "ListSequences",
    "GetServer",
    "InspectRun",
    "InspectSequence",
)

# protobuf 5.26 renamed the option.
_EVERY_FIELD = next(
    name
    for name in ("always_print_fields_with_no_presence", "including_default_value_fields")
    if name in json_format.MessageToJson.__code__.co_varnames
)


def call_for_json(client: Client, method: str, query: Iterable[Tuple[str, str]]) -> str:
    """Calls `method` and returns the response in protobuf's JSON, with every field present.

    Args:
        query: Fields of the request, as in sequence.id=s, and their values.

    Raises:
        sis.Error: NotFound for a method that is not offered, InvalidArgument for a field or value that the request does
            not have, or the error of the call.
    """
    if method not in METHODS:
        raise NotFound(grpc.StatusCode.NOT_FOUND, f"method '{method}': not offered over HTTP")
    request = pb.message_named(pb.methods()[method].input_type)()
    try:
        json_format.ParseDict(_nested(query), request)
    except json_format.ParseError as error:
        raise InvalidArgument(grpc.StatusCode.INVALID_ARGUMENT, str(error)) from None
    return json_format.MessageToJson(client._service.look_up(method, request), **{_EVERY_FIELD: True}, indent=None)


def _nested(query: Iterable[Tuple[str, str]]) -> Dict[str, Any]:
    fields: Dict[str, Any] = {}
    for path, value in query:
        *parents, name = path.split(".")
        inner = fields
        for parent in parents:
            inner = inner.setdefault(parent, {})
            if not isinstance(inner, dict):
                raise InvalidArgument(grpc.StatusCode.INVALID_ARGUMENT, f"{path}: '{parent}' has a value already")
        inner[name] = value
    return fields
