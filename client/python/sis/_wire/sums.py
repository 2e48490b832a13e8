"""Sums messages of several servers or requests."""

from __future__ import annotations

import math
from typing import Any, Dict, Iterable, List, Sequence, TypeVar

_Message = TypeVar("_Message")

# Fields that identify a message. They are not summed; messages of a list with equal fields are added up.
_KEYS = {
    "PrefixPoint": ("top_k",),
    "MissingTotals": ("reason",),
    "CorrectionTotals": ("correction",),
    "BeyondBound": ("bound",),
    "AgeTotals": ("ahead", "from", "to"),
    "Histogram": ("upper_bounds",),
    "TokenCounts": ("token_id",),
}

# Numbers that are merged by another function than the sum.
_OTHERS = {"begun_at": min, "ended_at": max}


def summed(parts: Sequence[Any]) -> Any:
    """Returns the sum of at least one message. It has the bits that one server computes, because addends are multiples
    of 2^-30, and exact."""
    if len(parts) == 1:
        return parts[0]
    total: Any = type(parts[0])()
    total.CopyFrom(parts[0])
    for field in total.DESCRIPTOR.fields:
        if field.name in _KEYS.get(total.DESCRIPTOR.name, ()):
            continue
        values: List[Any] = [getattr(part, field.name) for part in parts]
        if hasattr(values[0], "extend"):
            numbers = field.message_type is None
            total.ClearField(field.name)
            getattr(total, field.name).extend(map(sum, zip(*values)) if numbers else merged(values))
        elif field.message_type is None:
            add: Any = math.fsum if isinstance(values[0], float) else sum
            setattr(total, field.name, _OTHERS.get(field.name, add)(values))
        else:
            there = [part for part in parts if part.HasField(field.name)]
            if there:
                getattr(total, field.name).CopyFrom(summed([getattr(part, field.name) for part in there]))
    return total


def merged(lists: Iterable[Iterable[_Message]]) -> List[_Message]:
    """Merges several lists: sums the messages with equal keys. The order is ascending by number, or for names that of
    their first occurrence."""
    by_key: Dict[Any, List[Any]] = {}
    for message in (message for part in lists for message in part):
        names = _KEYS[message.DESCRIPTOR.name]  # type: ignore[attr-defined]
        by_key.setdefault(tuple(getattr(message, name) for name in names), []).append(message)
    keys = list(by_key) if any(isinstance(key[0], str) for key in by_key) else sorted(by_key)
    return [summed(by_key[key]) for key in keys]
