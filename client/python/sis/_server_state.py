"""What a server says of itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Tuple


@dataclass(frozen=True)
class Activity:
    """Counted since the server started, over all runs."""

    # Seconds since 1970.
    at: float
    ingested_positions: int
    ingested_bytes: int
    # Once per draw, scored and missing.
    evaluated_positions: int
    dropped_sequences: int
    rpcs: int
    failed_rpcs: int
    # Held at this moment.
    cache_bytes: int


@dataclass(frozen=True)
class ServerState:
    """What a server is, holds and did."""

    version: str
    # The backend that decides, and the store, in words.
    backend: str
    store: str
    # Whether other servers read and write the same store.
    shared_store: bool
    # Seconds since 1970.
    started_at: float
    ready: bool
    cache_bytes: int
    cache_budget_bytes: int
    # One every 5 s, at most 360; the last is of now.
    history: Tuple[Activity, ...]
