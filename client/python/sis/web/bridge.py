"""Read-only calls of the service, by name: from the query of a URL to JSON."""

from __future__ import annotations

from typing import Any, Dict, Iterable, Sequence, Tuple

import grpc
from google.protobuf import json_format

from sis._client import Client
from sis._errors import Error, InvalidArgument, NotFound
from sis.v1 import ratio_service_pb2 as pb

METHODS = (
    "ListRuns", "GetRun", "GetStep", "ListSteps", "ListSequences", "GetServer", "InspectRun", "InspectSequence",
)  # fmt: skip

# protobuf 5.26 renamed the option.
_EVERY_FIELD = next(
    name
    for name in ("always_print_fields_with_no_presence", "including_default_value_fields")
    if name in json_format.MessageToDict.__code__.co_varnames
)


def call_for_json(
    client: Client, addresses: Sequence[str], method: str, query: Iterable[Tuple[str, str]]
) -> Dict[str, Any]:
    """Calls `method` and returns the response in protobuf's JSON, with every field present.

    `unanswered` lists the addresses of the unreachable servers. GetServer's response is a list, `servers`: `address`
    of each with its response, or with `error`.

    Args:
        addresses: The addresses of the client's servers, in its order.
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
    if method == "GetServer":
        return _servers(client, addresses)
    answer = _json(getattr(client._service, method)(request))
    if "unanswered" in answer:
        answer["unanswered"] = [addresses[index] for index in answer["unanswered"]]
    return answer


def _json(message: Any) -> Dict[str, Any]:
    return json_format.MessageToDict(message, **{_EVERY_FIELD: True})


def _servers(client: Client, addresses: Sequence[str]) -> Dict[str, Any]:
    answers = client._service.get_servers()
    if all(isinstance(answer, Error) for answer in answers):
        raise answers[0]
    return {
        "servers": [
            {"address": address, **({"error": answer.message} if isinstance(answer, Error) else _json(answer))}
            for address, answer in zip(addresses, answers)
        ]
    }


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
