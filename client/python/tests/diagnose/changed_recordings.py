"""Recordings of real engines, and what faults and noise make of them."""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import pathlib
from typing import Callable, List, Optional

from sis.diagnose import RecordedFile, compare, read_file

TESTDATA = pathlib.Path(__file__).parent / "testdata"


@dataclasses.dataclass(frozen=True)
class Token:
    id: Optional[int]
    text: Optional[str]
    # Nats; -inf if the engine gave none.
    log_prob: float


@dataclasses.dataclass(frozen=True)
class Position:
    sampled: Token
    top: List[Token]


File = List[List[Position]]


def as_positions(file: RecordedFile) -> File:
    def token(number: int, log_prob: float) -> Token:
        found = file.tokens[number]
        return Token(found.id, found.text or file.texts.get(found.id), log_prob)

    ends = file.counts.cumsum()
    positions = []
    for at, end in enumerate(ends.tolist()):
        start = end - int(file.counts[at])
        tops = zip(file.listed[start:end].tolist(), file.log_probs[start:end].tolist())
        sampled = token(int(file.sampled[at]), float(file.sampled_log_probs[at]))
        positions.append(Position(sampled, [token(*top) for top in tops]))
    sequences, start = [], 0
    for length in file.lengths.tolist():
        sequences.append(positions[start : start + length])
        start += length
    return sequences


def as_file(name: str, sequences: File) -> RecordedFile:
    """As chat completions are."""

    def entry(token: Token):
        fields = {"id": token.id, "token": token.text, "logprob": token.log_prob}
        return {**fields, "logprob": token.log_prob if math.isfinite(token.log_prob) else None}

    lines = [
        {"logprobs": {"content": [{**entry(p.sampled), "top_logprobs": list(map(entry, p.top))} for p in positions]}}
        for positions in sequences
    ]
    # An array may not be empty.
    return read_file(name, json.dumps(lines or {"choices": [{"logprobs": {"content": []}}]}))


@functools.lru_cache(maxsize=None)
def recorded(name: str) -> File:
    return as_positions(read_file(str(TESTDATA / f"smollm2_{name}.jsonl")))


def compared(a: File, b: File):
    return compare(as_file("a.json", a), as_file("b.json", b))


def faults_of(comparison):
    names = [check.name for check in comparison.diagnosis.checks if check.fault]
    assert comparison.diagnosis.fault == bool(names)
    return names


def faults(a: File, b: File):
    return faults_of(compared(a, b))


def verdict(comparison) -> str:
    return comparison.diagnosis.verdict[0]


def changed(file: File, change: Callable[[Position], Position]) -> File:
    return [list(map(change, sequence)) for sequence in file]


def _of_other(file: File, shift: int, make: Callable[[Position, Position], Position]) -> File:
    return [
        [make(position, sequence[min(max(t + shift, 0), len(sequence) - 1)]) for t, position in enumerate(sequence)]
        for sequence in file
    ]


def with_lists_only_from(file: File, shift: int) -> File:
    """The same, but the sampled tokens keep their own log-probs."""
    return _of_other(file, shift, lambda own, other: Position(own.sampled, other.top))


def without_first(file: File, count: int) -> File:
    return [sequence[count:] for sequence in file]


def without_lists(file: File) -> File:
    return changed(file, lambda position: Position(position.sampled, []))


def each_token(file: File, change: Callable[[Token], Token]) -> File:
    return changed(file, lambda position: Position(change(position.sampled), list(map(change, position.top))))


def without_ids(file: File) -> File:
    """Removes the token ids, which engines of other vendors leave out."""
    return each_token(file, lambda token: dataclasses.replace(token, id=None))


def merged(file: File) -> File:
    """Every second token is one with the next."""
    ids = iter(range(60001, 10**6))
    return [
        [
            Position(
                dataclasses.replace(first.sampled, id=next(ids), text=first.sampled.text + second.sampled.text),
                first.top,
            )
            for first, second in zip(sequence[::2], sequence[1::2])
        ]
        for sequence in file
    ]
