"""JSON without NaN and infinities."""

from __future__ import annotations

import math
from typing import Any


def finite(value: Any) -> Any:
    """Returns what JSON can hold of dictionaries and lists: numbers that are not finite become None."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(item) for item in value]
    return value
