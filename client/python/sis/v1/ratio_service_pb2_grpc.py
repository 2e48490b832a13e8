"""The stub of RatioService, as protoc would generate it (see ratio_service_pb2)."""

from __future__ import annotations

from typing import Any

from sis.v1 import ratio_service_pb2 as pb

SERVICE = "sis.v1.RatioService"


class RatioServiceStub:
    """One attribute per method, named like it."""

    def __init__(self, channel: Any) -> None:
        """`channel`: of grpc or of grpc.aio."""
        for name, method in pb.methods().items():
            kinds = ("stream" if streams else "unary" for streams in (method.client_streaming, method.server_streaming))
            request, response = map(pb.message_named, (method.input_type, method.output_type))
            call = getattr(channel, "_".join(kinds))(
                f"/{SERVICE}/{name}",
                request_serializer=request.SerializeToString,
                response_deserializer=response.FromString,
            )
            setattr(self, name, call)
