"""Client spans for OpenTelemetry.

All of it does nothing unless opentelemetry-api is installed and the program has configured an SDK.
"""

from __future__ import annotations

import contextlib
import contextvars
from typing import Any, Callable, ContextManager, TypeVar, Union

try:
    from opentelemetry import trace
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
    """Returns a call for other threads, as part of the current span."""
    here = contextvars.copy_context()
    # Only one thread may be in a context.
    return lambda *arguments: here.copy().run(call, *arguments)
