"""Client spans for OpenTelemetry.

All of it does nothing unless opentelemetry-api is installed and the program has configured an SDK.
"""

from __future__ import annotations

import contextlib
import functools
from typing import Any, Callable, ContextManager, TypeVar, Union

try:
    from opentelemetry import context, trace
except ImportError:
    _tracer: Any = None
else:
    _tracer = trace.get_tracer("sis")

_Result = TypeVar("_Result")


def client_span(name: str, **attributes: Union[str, int]) -> ContextManager[object]:
    """A span `sis.NAME` as the current one, with attributes `sis.KEY`."""
    if _tracer is None:
        return contextlib.nullcontext()
    named = {f"sis.{key}": value for key, value in attributes.items()}
    return _tracer.start_as_current_span(f"sis.{name}", kind=trace.SpanKind.CLIENT, attributes=named)


def in_this_context(call: Callable[..., _Result]) -> Callable[..., _Result]:
    """The call as part of the current span, for another thread."""
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
