"""Values as json.dumps takes them."""

from __future__ import annotations

import dataclasses
import enum
import math
from typing import Any


def plain(value: Any) -> Any:
    """Converts dataclasses, named tuples, enums, numpy arrays and what holds them. Numbers that are not finite become
    None."""
    if isinstance(value, enum.Enum):
        return value.name.lower()
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if dataclasses.is_dataclass(value):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if hasattr(value, "_asdict"):
        return plain(value._asdict())
    if hasattr(value, "items"):
        return {str(plain(key)): plain(item) for key, item in value.items()}
    return [plain(item) for item in (value.tolist() if hasattr(value, "tolist") else value)]
