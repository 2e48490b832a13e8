"""Client spans for OpenTelemetry, and the trace context that servers are sent.

All of it does nothing unless opentelemetry-api is installed and the program has configured an SDK.
"""

from __future__ import annotations

import contextlib
import functools
from typing import Any, Callable, ContextManager, Dict, List, Optional, Tuple, TypeVar, Union

try:
    from opentelemetry import context, propagate, trace
except ImportError:
    _tracer: Any = None
else:
    _tracer = trace.get_tracer("sis")

_Result = TypeVar("_Result")


def client_span(name: str, **attributes: Union[str, int]) -> ContextManager[object]:
    """A span `sis.NAME` as the current one, with attributes `sis.KEY`, as the server names its own."""
    if _tracer is None:
        return contextlib.nullcontext()
    named = {f"sis.{key}": value for key, value in attributes.items()}
    return _tracer.start_as_current_span(f"sis.{name}", kind=trace.SpanKind.CLIENT, attributes=named)


def is_sampled() -> bool:
    """Whether there is a current span, and it is to be kept."""
    return _tracer is not None and trace.get_current_span().get_span_context().trace_flags.sampled


def metadata() -> Optional[List[Tuple[str, str]]]:
    """Of a call, so that the server's spans become children of the current one; None without."""
    if _tracer is None or not trace.get_current_span().get_span_context().is_valid:
        return None
    carrier: Dict[str, str] = {}
    propagate.inject(carrier)
    return [(key.lower(), value) for key, value in carrier.items()]  # gRPC takes no others


def in_this_context(call: Callable[..., _Result]) -> Callable[..., _Result]:
    """The same, for another thread."""
    if _tracer is None:
        return call
    here = context.get_current()

    @functools.wraps(call)
    def call_there(*arguments: Any, **named: Any) -> _Result:
        token = context.attach(here)
        try:
            return call(*arguments, **named)
        finally:
            context.detach(token)

    return call_there
