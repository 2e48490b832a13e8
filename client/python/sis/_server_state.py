"""The state of a server."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Tuple


@dataclass(frozen=True)
class Activity:
    """Counts over all runs since the server started.

    Attributes:
        at: Seconds since 1970.
        ingested_positions: Positions that were appended.
        ingested_bytes: Bytes that were appended.
        evaluated_positions: Scored and missing positions, once per draw.
        dropped_sequences: Sequences that were evicted, expired or stale.
        rpcs: Calls.
        failed_rpcs: Calls that failed.
        cache_bytes: Bytes in the cache now.
    """

    at: float
    ingested_positions: int
    ingested_bytes: int
    evaluated_positions: int
    dropped_sequences: int
    rpcs: int
    failed_rpcs: int
    cache_bytes: int


@dataclass(frozen=True)
class ServerState:
    """Configuration and activity of a server.

    Attributes:
        version: Version of the server.
        backend: The backend that decides, in words.
        store: The store, in words.
        shared_store: True if other servers use the same store.
        started_at: Seconds since 1970.
        ready: Whether it serves.
        cache_bytes: Bytes held.
        cache_budget_bytes: Most bytes that it may hold.
        history: One per 5 s, at most 360; the last one is current.
    """

    version: str
    backend: str
    store: str
    shared_store: bool
    started_at: float
    ready: bool
    cache_bytes: int
    cache_budget_bytes: int
    history: Tuple[Activity, ...]
