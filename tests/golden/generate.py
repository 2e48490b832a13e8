"""Writes the golden vectors of docs/numerics.md, from the numpy implementation, beside this file.

    python3 -m tests.golden.generate

ASCII tokens, separated by blanks and line ends. Every number is hexadecimal, without a prefix:

- 8 digits: the bits of a float32, an int32 (two's complement; -1 is ffffffff) or a uint32
- 16 digits: a uint64, or an int64 (two's complement)
- 2 digits: a uint8
- bytes: two digits a byte, in order, never empty

Current values in unused slots may be NaN. [K] is K tokens. Records and current values are valid (section 2),
for a vocabulary of 2^24 tokens.

- exp32.txt: x, exp32(x): float32
- philox.txt: key [2], counter [4], result [4]: uint32
- sequence_key.txt: run seed (uint64), attempt (uint32), sequence id (bytes), key (uint64)
- placement.txt: run id, sequence id (bytes), n (uint8); n times a replica's name (bytes) and its score
  (uint64); the index of the replica that has the sequence (uint8). docs/concepts.md
- crc32c.txt: message (bytes), checksum (uint32)
- mass_cut.txt: mass target (the bits of a float64), K (uint8), n (uint32); n times a record, and once cut its
  used slots and rank (uint8)
- blocks.txt: encoding (uint8), mass target (the bits of a float64), K (uint8), vocabulary size (uint32),
  first position (uint32), policy version (uint64), n (uint32); n records; the block (bytes), its digest
  (uint64)
- decisions_gathered.txt, decisions_reduced.txt, decisions_fixed16.txt: a case

A record is y (int32), lqy (float32), id [K] (int32), lq [K] (float32). Positions follow each other. A case is

1. run seed (uint64), attempt (uint32), sequence id (bytes), first position (uint32), draw (uint64), K
   (uint8), k (uint8), n (uint32);
2. n times
   - the record;
   - current values: lpy, lp [K] when GATHERED; lpy, lM, c when REDUCED (float32, lM not yet flushed);
   - expected: rank, decision, accept bit, envelope violation (uint8 each); the uniform r (uint32); lM, c, a,
     log-ratio out, ratio out (float32);
3. the accept bits (bytes);
4. the sums of section 8 (int64 each): accepted, rejected, outside, envelope violations, D, D_SIS,
   log-envelope, residual mass, acceptance probability, expected acceptance, k3, total variation (0 when REDUCED);
5. when GATHERED the prefix curve: how many points (uint8); per point k (uint8), residual mass and expected
   acceptance (int64).

The expected lM is flushed. decisions_fixed16.txt is GATHERED, with what follows from the records' block in
fixed16.
"""

import pathlib
from typing import Callable, Iterable, Iterator

import numpy as np

from tests.golden import cases
from tests.reference import block, numerics, placement


def _word(value: int, digits: int) -> str:
    return f"{int(value) % 16**digits:0{digits}x}"


def _words(values: np.ndarray) -> str:
    """A line of the bits of float32, int32 or uint32 values."""
    return " ".join(_word(v, 8) for v in np.ascontiguousarray(values).view(np.uint32).reshape(-1))


def _exp32() -> Iterator[str]:
    random = cases.Source("exp32")
    xs = [0.0, -0.0, cases.SUBNORMAL, -cases.SUBNORMAL, cases.SMALLEST_NORMAL, -cases.SMALLEST_NORMAL]
    xs += [-cases.INFINITY, cases.INFINITY, cases.LARGEST, -cases.LARGEST, 2.0**-24, -(2.0**-24), 2.0**-25, -(2.0**-25)]
    for clamp in (-87.0, 88.0):
        xs += cases.neighbours(clamp, 4)
    # Where n steps.
    for half in range(-251, 254, 2):
        xs += cases.neighbours(half * 0.5 * 0.6931471805599453)
    xs += [x for n in range(-125, 127) for x in cases.neighbours(n * 0.6931471805599453)]
    xs += list(-90 + 180 * random.reals(1500))
    xs += list(2 * random.reals(500) - 1)
    # Each tells a coefficient of the polynomial from its neighbours in the last place.
    xs += [0.2632860541343689, -0.2730174958705902, 0.28846853971481323, -0.27635660767555237]
    x = np.array(xs, np.float32)
    for pair in zip(x, numerics.exp32(x)):
        yield _words(np.array(pair))


def _philox() -> Iterator[str]:
    random = cases.Source("philox")
    ones = 2**32 - 1
    inputs = [[0] * 6, [ones] * 6, [0xA4093822, 0x299F31D0, 0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344]]
    inputs += [[0] * i + [1] + [0] * (5 - i) for i in range(6)]
    inputs += random.words(6 * 100).reshape(-1, 6).tolist()
    for k0, k1, *counter in inputs:
        result = numerics.philox4x32_10((k0, k1), np.array([counter], np.uint32))
        yield _words(np.array([k0, k1, *counter, *result[0]], np.uint32))


def _sequence_key() -> Iterator[str]:
    numbers = [(0, 0), (1, 0), (0, 1), (2**64 - 1, 2**32 - 1), (0x0123456789ABCDEF, 0x89ABCDEF), (2**63, 2**31)]
    ids = ["0", "a", "seq-000017", "rollout/3/7", "ränder", "辺の列", "🎲", "x" * 200]
    for seed, attempt in numbers:
        for sequence_id in ids:
            key = numerics.sequence_key(seed, attempt, sequence_id)
            yield f"{_word(seed, 16)} {_word(attempt, 8)} {sequence_id.encode().hex()} {_word(key, 16)}"


def _placement() -> Iterator[str]:
    names = ["sis-0.sis:7777", "sis-1.sis:7777", "sis-2.sis:7777", "127.0.0.1:50051", "[::1]:50051", "ränder:1", "a"]
    ids = ["0", "a", "seq-000017", "prompt-3/response-7", "ränder", "辺の列", "🎲", "x" * 200]
    for run_id in ("r", "example", "qwen3-4b.grpo_7", "y" * 200):
        for sequence_id in ids:
            for some in (names, names[:3], names[2::-1], names[-1:]):
                yield f"{run_id.encode().hex()} {sequence_id.encode().hex()} {_word(len(some), 2)}"
                for name in some:
                    yield f"{name.encode().hex()} {_word(placement.score(name, run_id, sequence_id), 16)}"
                yield _word(some.index(placement.place(some, run_id, sequence_id)), 2)


def _crc32c() -> Iterator[str]:
    random = cases.Source("crc32c")
    messages = [b"123456789", bytes(32), b"\xff" * 32, bytes(range(32)), bytes(range(31, -1, -1)), b"a"]
    messages += [random.words(length).astype(np.uint8).tobytes() for length in range(1, 70)]
    for message in messages:
        yield f"{message.hex()} {_word(numerics.crc32c(message), 8)}"


def _record_lines(records: numerics.Records) -> Iterator[str]:
    for i in range(len(records.positions)):
        row = (records.sampled_ids[i], records.sampled_log_probs[i], records.ids[i], records.log_probs[i])
        yield " ".join(_words(column) for column in row)


def _mass_cut() -> Iterator[str]:
    for mass, records in cases.mass_cut_cases():
        cut = numerics.cut_to_mass(records, mass)
        count, slots = records.ids.shape
        yield f"{_word(np.float64(mass).view(np.uint64), 16)} {_word(slots, 2)} {_word(count, 8)}"
        counts = numerics.used_slots(cut.log_probs).sum(axis=1)
        ranks = numerics.rank(cut.sampled_ids, cut.ids, cut.log_probs)
        for record, used, rank in zip(_record_lines(records), counts, ranks):
            yield record
            yield f"{_word(used, 2)} {_word(rank, 2)}"


def _blocks() -> Iterator[str]:
    for encoding, mass, records, vocabulary_size, policy_version in cases.block_cases():
        count, slots = records.ids.shape
        yield " ".join([
            _word(encoding, 2),
            _word(np.float64(mass).view(np.uint64), 16),
            _word(slots, 2),
            _word(vocabulary_size, 8),
            _words(records.positions[:1]),
            _word(policy_version, 16),
            _word(count, 8),
        ])
        yield from _record_lines(records)
        packed = block.pack(records, vocabulary_size, encoding, mass, policy_version)
        yield f"{packed.hex()} {_word(block.digest(block.read(packed)), 16)}"


def _case_line(case: cases.Case) -> str:
    """Where its uniforms come from, and its sizes."""
    count, slots = case.records.ids.shape
    return " ".join([
        _word(case.seed, 16),
        _word(case.attempt, 8),
        case.sequence_id.encode().hex(),
        _words(case.records.positions[:1]),
        _word(case.draw, 16),
        _word(slots, 2),
        _word(case.k, 2),
        _word(count, 8),
    ])


def _fixed16(records: numerics.Records) -> numerics.Records:
    """What a block holds of them."""
    return block.read(block.pack(records, 2**24, block.FIXED16)).records()


def _decisions(
    inputs: Iterable[cases.Case],
    decide: Callable[..., numerics.Evaluation],
    recorded: Callable[[numerics.Records], numerics.Records] = lambda records: records,
) -> Iterator[str]:
    for case in inputs:
        records, words = recorded(case.records), case.words()
        result = decide(records, case.current, case.k, words)
        totals = numerics.totals(result)
        ranks = numerics.rank(records.sampled_ids, records.ids, records.log_probs)
        accepted = result.decisions == numerics.Decision.ACCEPTED
        yield _case_line(case)
        for i, record in enumerate(_record_lines(case.records)):
            yield record
            yield " ".join(_words(column[i]) for column in case.current)
            bytes_ = (ranks[i], result.decisions[i], accepted[i], result.violations[i])
            floats = (result.log_envelopes, result.covered_masses, result.acceptance_probabilities)
            floats += (result.log_ratios, result.ratios)
            yield " ".join([*(_word(b, 2) for b in bytes_), _word(words[i], 8), *(_words(f[i]) for f in floats)])
        yield result.accept_bits().hex()
        yield " ".join(_word(value, 16) for name, value in vars(totals).items() if name != "missing")
        if isinstance(case.current, numerics.Gathered):
            ks = sorted({k for k in (1, 2, 5, 10, 20, 50) if k < case.k} | {case.k})
            curve = numerics.prefix_curve(records, case.current, ks)
            yield _word(len(curve), 2)
            for point in curve:
                yield " ".join([
                    _word(point.top_k, 2),
                    _word(point.residual_mass, 16),
                    _word(point.expected_acceptance, 16),
                ])


def files() -> dict[str, str]:
    """The content of every golden file, by name."""
    lines = {
        "exp32.txt": _exp32(),
        "philox.txt": _philox(),
        "sequence_key.txt": _sequence_key(),
        "placement.txt": _placement(),
        "crc32c.txt": _crc32c(),
        "mass_cut.txt": _mass_cut(),
        "blocks.txt": _blocks(),
        "decisions_gathered.txt": _decisions(cases.gathered_cases(), numerics.decide_gathered),
        "decisions_fixed16.txt": _decisions(cases.fixed16_cases(), numerics.decide_gathered, _fixed16),
        "decisions_reduced.txt": _decisions(cases.reduced_cases(), numerics.decide_reduced),
    }
    return {name: "".join(line + "\n" for line in content) for name, content in lines.items()}


if __name__ == "__main__":
    for _name, _content in files().items():
        pathlib.Path(__file__).with_name(_name).write_text(_content, encoding="ascii")
