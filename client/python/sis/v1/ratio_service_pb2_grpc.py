"""The stub of RatioService, as protoc would generate it (see ratio_service_pb2). A request may be a message or
its bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sis.v1 import ratio_service_pb2 as pb

SERVICE = "sis.v1.RatioService"


def _serialized(request: Any) -> bytes:
    return request if isinstance(request, bytes) else request.SerializeToString()


class RatioServiceStub:
    """One attribute per method, named like it."""

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...

    def __init__(self, channel: Any) -> None:
        """`channel`: of grpc or of grpc.aio."""
        for name, method in pb.methods().items():
            kinds = ("stream" if streams else "unary" for streams in (method.client_streaming, method.server_streaming))
            call = getattr(channel, "_".join(kinds))(
                f"/{SERVICE}/{name}",
                request_serializer=_serialized,
                response_deserializer=pb.message_named(method.output_type).FromString,
            )
            setattr(self, name, call)
