"""Placement of sequences on replicas (docs/concepts.md), as tests/reference/placement.py defines it."""

from __future__ import annotations

import functools
from typing import Sequence

_MASK64 = 2**64 - 1


def fnv(data: bytes) -> int:
    """Returns the 64-bit FNV-1a hash."""
    value = 0xCBF29CE484222325
    for byte in data:
        value = (value ^ byte) * 0x100000001B3 & _MASK64
    return value


def _mix(value: int) -> int:
    value = (value ^ value >> 33) * 0xFF51AFD7ED558CCD & _MASK64
    value = (value ^ value >> 33) * 0xC4CEB9FE1A85EC53 & _MASK64
    return value ^ value >> 33


# Cached, because every optimiser step looks up its sequences.
@functools.lru_cache(maxsize=1 << 16)
def _sequence_hash(run_id: str, sequence_id: str) -> int:
    return fnv(run_id.encode() + b"\0" + sequence_id.encode())


def score(name: str, run_id: str, sequence_id: str) -> int:
    """Score of the replica `name` for a sequence. The replica with the largest score has the sequence."""
    return _mix(_sequence_hash(run_id, sequence_id) ^ _mix(fnv(name.encode())))


class Placement:
    """Places sequences on replicas by the replicas' names. Raises ValueError without names, or if one occurs twice."""

    def __init__(self, names: Sequence[str]) -> None:
        if not names or len(set(names)) < len(names):
            raise ValueError(f"replicas are {list(names)}, must be at least one, each once")
        # In the order of names, because the first of equal scores wins.
        self._replicas = [(_mix(fnv(names[i].encode())), i) for i in sorted(range(len(names)), key=names.__getitem__)]

    def replica(self, run_id: str, sequence_id: str) -> int:
        """Returns the index of the sequence's replica in the given list."""
        sequence = _sequence_hash(run_id, sequence_id)
        return max(self._replicas, key=lambda replica: _mix(sequence ^ replica[0]))[1]
