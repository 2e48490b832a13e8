"""The state of a server."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Tuple


@dataclass(frozen=True)
class Activity:
    """Counts over all runs since the server started."""

    # Seconds since 1970.
    at: float
    ingested_positions: int
    ingested_bytes: int
    # Scored and missing positions, once per draw.
    evaluated_positions: int
    dropped_sequences: int
    rpcs: int
    failed_rpcs: int
    # Bytes in the cache now.
    cache_bytes: int


@dataclass(frozen=True)
class ServerState:
    """Configuration and activity of a server."""

    version: str
    # Descriptions of the backend and of the store.
    backend: str
    store: str
    # True if other servers use the same store.
    shared_store: bool
    # Seconds since 1970.
    started_at: float
    ready: bool
    cache_bytes: int
    cache_budget_bytes: int
    # One per 5 s, at most 360; the last one is current.
    history: Tuple[Activity, ...]
