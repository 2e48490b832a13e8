"""The replica that has a sequence: the one with the largest score, unsigned, or of equal scores the smallest name, byte by
byte.

    score(name, run, id) = mix(fnv(run 00 id) ^ mix(fnv(name)))

Texts are UTF-8 bytes, 00 is one zero byte, fnv is 64-bit FNV-1a, mix is MurmurHash3's fmix64.
"""

from __future__ import annotations

from tests.reference import numerics

_MASK64 = 2**64 - 1


def mix(x: int) -> int:
    x ^= x >> 33
    x = x * 0xFF51AFD7ED558CCD & _MASK64
    x ^= x >> 33
    x = x * 0xC4CEB9FE1A85EC53 & _MASK64
    return x ^ x >> 33


def score(name: str, run_id: str, sequence_id: str) -> int:
    sequence = numerics.fnv1a(run_id.encode() + b"\0" + sequence_id.encode())
    return mix(sequence ^ mix(numerics.fnv1a(name.encode())))


def place(names: list[str], run_id: str, sequence_id: str) -> str:
    best = max(score(name, run_id, sequence_id) for name in names)
    return min((n for n in names if score(n, run_id, sequence_id) == best), key=str.encode)
