"""What users see of a message: its values under their names."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, List, Tuple, Type, TypeVar

_Made = TypeVar("_Made")


def read(kind: Type[_Made], message: Any, **made: Any) -> _Made:
    """A `kind`, dataclass or NamedTuple, of the message's values of the same names, but for `made`.
    What is optional and not there is None."""
    names, optional = _names(kind, type(message), *made)
    for name in names:
        made[name] = getattr(message, name)
    for name in optional:
        if not message.HasField(name):
            made[name] = None
    return kind(**made)


@functools.lru_cache(maxsize=None)
def _names(kind: Any, message: Any, *made: str) -> Tuple[List[str], List[str]]:
    """The names of `kind` that are fields of the message, and of these the optional ones."""
    if issubclass(kind, tuple):
        names = kind._fields
    else:
        names = [entry.name for entry in dataclasses.fields(kind)]
    fields = message.DESCRIPTOR.fields_by_name
    read_here = [name for name in names if name not in made]
    return read_here, [name for name in read_here if fields[name].containing_oneof is not None]
