"""Recordings of real engines, and what faults and noise make of them.

A file is a list of sequences, a sequence a list of positions as chat completions have them: an entry of the sampled
token with `top_logprobs`, the entries of the listed tokens. An entry has `id`, `token` and `logprob`, in nats; None if
the engine gave none.
"""

import functools
import json
import math
import pathlib

from sis.diagnose import compare, read_file

TESTDATA = pathlib.Path(__file__).parent / "testdata"


def entry(id, text, log_prob, top=None):
    made = {"id": id, "token": text, "logprob": log_prob if math.isfinite(log_prob) else None}
    return made if top is None else {**made, "top_logprobs": top}


def as_positions(file):
    def of(number, log_prob, top=None):
        token = file.tokens[number]
        return entry(token.id, token.text or file.texts.get(token.id), log_prob, top)

    listed = iter([of(*token) for token in zip(file.listed.tolist(), file.log_probs.tolist())])
    tops = [[next(listed) for _ in range(count)] for count in file.counts.tolist()]
    positions = map(of, file.sampled.tolist(), file.sampled_log_probs.tolist(), tops)
    return [[next(positions) for _ in range(length)] for length in file.lengths.tolist()]


def as_file(name, sequences):
    lines = [{"logprobs": {"content": positions}} for positions in sequences]
    # An array may not be empty.
    return read_file(name, json.dumps(lines or {"choices": [{"logprobs": {"content": []}}]}))


@functools.lru_cache(maxsize=None)
def recorded(name):
    return as_positions(read_file(str(TESTDATA / f"smollm2_{name}.jsonl")))


def compared(a, b):
    return compare(as_file("a.json", a), as_file("b.json", b))


def faults(a, b):
    diagnosis = compared(a, b).diagnosis
    names = [check.name for check in diagnosis.checks if check.fault]
    assert diagnosis.fault == bool(names)
    return names


def changed(file, change):
    """change: from a position to members that are others."""
    return [[{**position, **change(position)} for position in sequence] for sequence in file]


def each_token(file, change):
    """change: from an entry to members that are others."""

    def both(position):
        return {**change(position), "top_logprobs": [{**top, **change(top)} for top in position["top_logprobs"]]}

    return changed(file, both)


def without_lists(file):
    return changed(file, lambda position: {"top_logprobs": []})


def without_ids(file):
    """Removes the token ids, which engines of other vendors leave out."""
    return each_token(file, lambda token: {"id": None})


def with_lists_of_next(file):
    """The sampled tokens keep their own log-probs."""
    return [
        [{**own, "top_logprobs": other["top_logprobs"]} for own, other in zip(sequence, [*sequence[1:], sequence[-1]])]
        for sequence in file
    ]


def merged(file):
    """Every second token is one with the next."""
    ids = iter(range(60001, 10**6))
    return [
        [
            {**first, "id": next(ids), "token": first["token"] + second["token"]}
            for first, second in zip(sequence[::2], sequence[1::2])
        ]
        for sequence in file
    ]
