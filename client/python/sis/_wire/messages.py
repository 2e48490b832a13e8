"""Converts messages to the dataclasses that users see."""

from __future__ import annotations

import dataclasses
import enum
import functools
import typing
from typing import Any, Callable, Dict, Optional, Tuple, Type, TypeVar

_Made = TypeVar("_Made")
_Convert = Callable[[Any], Any]


def read(kind: Type[_Made], message: Any, **made: Any) -> _Made:
    """Returns a `kind`, a dataclass or NamedTuple, with the message's values of the same names. `made` gives
    the other values. Annotations of `kind` say how to convert; nested messages are read in the same way.
    An optional field that is not set is None."""
    names, conversions, optional = _fields(typing.cast(Any, kind), *made)
    for name in names:
        made[name] = getattr(message, name)
    for name, convert in conversions.items():
        made[name] = convert(made[name])
    for name in optional:
        if not message.HasField(name):
            made[name] = None
    return kind(**made)


@functools.lru_cache(maxsize=None)
def _fields(kind: Any, *made: str) -> Tuple[Tuple[str, ...], Dict[str, _Convert], Tuple[str, ...]]:
    """Returns the field names of `kind` that `made` lacks, the conversions of fields, and the optional names."""
    hints = {name: hint for name, hint in typing.get_type_hints(kind).items() if name not in made}
    conversions = {name: convert for name, hint in hints.items() if (convert := _conversion(hint)) is not None}
    return tuple(hints), conversions, tuple(name for name in hints if type(None) in typing.get_args(hints[name]))


def _conversion(hint: Any) -> Optional[_Convert]:
    """Returns `from_proto` of the type, if it has one. None: values are used unchanged."""
    container = typing.get_origin(hint)
    if container is typing.Union:
        return _conversion(typing.get_args(hint)[0])
    if container in (tuple, list):
        each = _conversion(typing.get_args(hint)[0])
        return container if each is None else lambda values: container(map(each, values))
    if hasattr(hint, "from_proto") or isinstance(hint, type) and issubclass(hint, enum.Enum):
        return getattr(hint, "from_proto", hint)
    if dataclasses.is_dataclass(hint) or hasattr(hint, "_fields"):
        return functools.partial(read, hint)
    return None
