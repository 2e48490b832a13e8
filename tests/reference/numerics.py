"""The numerics of the service in numpy: a second implementation of docs/numerics.md, made from that
document alone.

The section numbers below are its sections. Shapes: N positions, K slots per position, one sequence
per call. Every float in here is float32; an argument of another type is refused rather than
converted, because a silent round trip through float64 is what this module has to rule out.
"""

import dataclasses
import enum
from typing import Iterable, NamedTuple, Optional

import numpy as np
from numpy.typing import NDArray

Float32s = NDArray[np.float32]
Bools = NDArray[np.bool_]

NO_RANK = 255

_ZERO = np.float32(0)
_ONE = np.float32(1)
_MINUS_INFINITY = np.float32(-np.inf)
_FLUSH_BELOW = np.float32(2.0**-100)


class Decision(enum.IntEnum):
    """Section 7: the decision bytes."""

    ACCEPTED = 1
    REJECTED = 2
    OUTSIDE_TOP_K = 3
    MISSING = 4


class Records(NamedTuple):
    """Section 2: what is stored of N positions of one sequence."""

    positions: NDArray[np.uint32]  # [N]
    sampled_ids: NDArray[np.int32]  # [N], y
    sampled_log_probs: Float32s  # [N], lqy
    ids: NDArray[np.int32]  # [N, K], most probable first; -1 in unused slots
    log_probs: Float32s  # [N, K], lq; -inf in unused slots


class Gathered(NamedTuple):
    """Section 2: the current policy's values at the recorded slots."""

    sampled_log_probs: Float32s  # [N], lpy
    log_probs: Float32s  # [N, K], lp


class Reduced(NamedTuple):
    """Section 5: the current policy's values, already reduced to three per position."""

    sampled_log_probs: Float32s  # [N], lpy
    log_envelopes: Float32s  # [N], lM
    covered_masses: Float32s  # [N], c


class Evaluation(NamedTuple):
    """Section 7 for N positions, with the values that section 8 sums. Where MISSING, floats other
    than a are NaN."""

    decisions: NDArray[np.uint8]  # [N], of Decision
    acceptance_probabilities: Float32s  # [N], a
    violations: Bools  # [N]
    log_ratios: Float32s  # [N], log-ratio out
    ratios: Float32s  # [N], ratio out
    log_weights: Float32s  # [N], lw
    log_envelopes: Float32s  # [N], lM
    covered_masses: Float32s  # [N], c
    total_variations: Float32s  # [N], min(1, t / 2); 0 in the REDUCED form, which has no slots

    def accept_bits(self) -> bytes:
        """ceil(N / 8) bytes, the least significant bit first."""
        return np.packbits(self.decisions == Decision.ACCEPTED, bitorder="little").tobytes()


@dataclasses.dataclass(frozen=True)
class Totals:
    """Section 8. The first five are counts, the others sums in units of 2^-30."""

    accepted: int
    rejected: int
    outside_top_k: int
    missing: int
    envelope_violations: int
    d: int
    d_sis: int
    log_envelope: int
    residual_mass: int
    acceptance_probability: int
    expected_acceptance: int
    k3: int
    total_variation: int


@dataclasses.dataclass(frozen=True)
class PrefixPoint:
    """Section 8: a point of the prefix curve. Sums in units of 2^-30."""

    top_k: int
    residual_mass: int
    expected_acceptance: int


def _float32(name: str, values: Float32s) -> Float32s:
    if not isinstance(values, np.ndarray) or values.dtype != np.float32:
        raise TypeError(f"{name}: want an array of float32, got {getattr(values, 'dtype', type(values))}")
    return values


def flush(x: Float32s) -> Float32s:
    """Section 5: +0 where |x| < 2^-100, else x. Any shape."""
    return np.where(np.abs(x) < _FLUSH_BELOW, _ZERO, x)


_LOG2_E = np.float32(float.fromhex("0x1.715476p+0"))
_ROUND = np.float32(float.fromhex("0x1.8p+23"))
_LN2_HIGH = np.float32(float.fromhex("0x1.63p-1"))
_MINUS_LN2_LOW = np.float32(float.fromhex("0x1.bd0106p-13"))
_POLYNOMIAL = [
    np.float32(float.fromhex(c))
    for c in ("0x1.6a243ap-10", "0x1.1239ep-7", "0x1.5558f2p-5", "0x1.555492p-3", "0x1.fffffcp-2")
]
_EXP_MIN = np.float32(-87)
_EXP_MAX = np.float32(88)


def _exp32_steps(x: Float32s) -> tuple[Float32s, Float32s, Float32s]:
    """Section 3: n, r and s of x in [-87, 88]."""
    n = (x * _LOG2_E + _ROUND) - _ROUND
    r = x - n * _LN2_HIGH
    r = r + n * _MINUS_LN2_LOW
    p = _POLYNOMIAL[0]
    for coefficient in _POLYNOMIAL[1:]:
        p = p * r + coefficient
    return n, r, (r * r) * p


def exp32(x: Float32s) -> Float32s:
    """Section 3, of any shape; x must not be NaN."""
    _float32("x", x)
    vanishes = x < _EXP_MIN
    n, r, s = _exp32_steps(np.where(vanishes, _ZERO, np.minimum(x, _EXP_MAX)))
    e = _ONE + (r + s)
    power = ((n.astype(np.int32) + 127) << 23).astype(np.int32).view(np.float32)
    return np.where(vanishes, _ZERO, e * power)


def excess32(x: Float32s) -> Float32s:
    """Section 8: e^x - 1 - x, of any shape; x must not be NaN."""
    x = np.minimum(_float32("x", x), _EXP_MAX)
    n, _, s = _exp32_steps(np.maximum(x, _EXP_MIN))
    return np.where(n == 0, s, (exp32(x) - _ONE) - x)


def used_slots(log_probs: Float32s) -> Bools:
    """Section 2: [N, K], from the behaviour log-probs [N, K]."""
    return log_probs != _MINUS_INFINITY


def rank(sampled_ids: NDArray[np.int32], ids: NDArray[np.int32], log_probs: Float32s) -> NDArray[np.uint8]:
    """Section 2: the slot [N] that holds the sampled id, NO_RANK if no used one does. From [N], [N,
    K], [N, K]."""
    holds = used_slots(log_probs) & (ids == sampled_ids[:, None])
    return np.where(holds.any(axis=1), holds.argmax(axis=1), NO_RANK).astype(np.uint8)


def covered_mass(log_probs: Float32s, used: Bools) -> Float32s:
    """Section 4: [N] sums, slot after slot, of exp32 over the used ones of m slots; both arguments
    are [N, m]."""
    probabilities = exp32(np.where(used, _float32("log_probs", log_probs), _MINUS_INFINITY))
    mass = np.zeros(len(log_probs), np.float32)
    for slot in range(log_probs.shape[1]):  # numpy's own sum adds in pairs
        mass = mass + probabilities[:, slot]
    return mass


def cut_to_mass(records: Records, mass: float) -> Records:
    """Section 4: the records of a run with this mass target, in (0, 1)."""
    used = used_slots(records.log_probs)
    kept = np.zeros(used.shape, bool)
    for slot in range(used.shape[1]):
        before = covered_mass(records.log_probs[:, :slot], used[:, :slot])
        kept[:, slot] = before.astype(np.float64) < mass
    return records._replace(
        ids=np.where(kept, records.ids, np.int32(-1)), log_probs=np.where(kept, records.log_probs, _MINUS_INFINITY)
    )


def log_ratio(current: Float32s, behaviour: Float32s) -> Float32s:
    """Section 5: lw, of any shape. The behaviour log-probs must be finite."""
    return flush(_float32("current", current) - _float32("behaviour", behaviour))


def log_envelope(current: Float32s, behaviour: Float32s) -> Float32s:
    """Section 5: lM [N], from the log-probs [N, k] of both policies at the first k slots."""
    used = used_slots(_float32("behaviour", behaviour))
    difference = np.where(used, _float32("current", current), _MINUS_INFINITY) - np.where(used, behaviour, _ZERO)
    return flush(difference.max(axis=1))


def reduce_gathered(records: Records, current: Gathered, k: int) -> Reduced:
    """Returns a client's REDUCED form of `current`, with the same bits as the server's reduction."""
    behaviour, now = records.log_probs[:, :k], current.log_probs[:, :k]
    return Reduced(current.sampled_log_probs, log_envelope(now, behaviour), covered_mass(now, used_slots(behaviour)))


def total_variation(current: Float32s, behaviour: Float32s) -> Float32s:
    """Section 8: min(1, t / 2) [N], from the log-probs [N, k] of both policies at the first k
    slots."""
    used = used_slots(_float32("behaviour", behaviour))
    now = exp32(np.where(used, _float32("current", current), _MINUS_INFINITY))
    differences = np.abs(now - exp32(behaviour))
    t = np.zeros(len(behaviour), np.float32)
    for slot in range(behaviour.shape[1]):
        t = t + differences[:, slot]
    return np.minimum(_ONE, np.float32(0.5) * t)


_MASK32 = 0xFFFFFFFF
_MASK64 = 0xFFFFFFFFFFFFFFFF
_ACCEPTANCE_DOMAIN = 1


def fnv1a(data: bytes) -> int:
    """FNV-1a, 64 bits (section 6)."""
    h = 0xCBF29CE484222325
    for byte in data:
        h = ((h ^ byte) * 0x100000001B3) & _MASK64
    return h


def sequence_key(seed: int, attempt: int, sequence_id: str) -> int:
    """Section 6: the 64 bits that key a sequence's uniforms."""
    return fnv1a(seed.to_bytes(8, "little") + attempt.to_bytes(4, "little") + sequence_id.encode("utf-8"))


def philox4x32_10(key: tuple[int, int], counters: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """Section 6: counters [..., 4] to words [..., 4], under one key of two 32-bit words."""
    c0, c1, c2, c3 = (counters[..., word].astype(np.uint64) for word in range(4))
    k0, k1 = key
    low, half = np.uint64(_MASK32), np.uint64(32)
    for _ in range(10):
        product0 = c0 * np.uint64(0xD2511F53)
        product1 = c2 * np.uint64(0xCD9E8D57)
        c0, c1, c2, c3 = (
            (product1 >> half) ^ c1 ^ np.uint64(k0),
            product1 & low,
            (product0 >> half) ^ c3 ^ np.uint64(k1),
            product0 & low,
        )
        k0, k1 = (k0 + 0x9E3779B9) & _MASK32, (k1 + 0xBB67AE85) & _MASK32
    return np.stack([c0, c1, c2, c3], axis=-1).astype(np.uint32)


def uniforms(key: int, positions: NDArray[np.uint32], draw: int) -> NDArray[np.uint32]:
    """Section 6: one word [N] per position of the sequence that `key` belongs to; `draw` is below
    2^64."""
    counters = np.empty((len(positions), 4), np.uint32)
    counters[:, 0] = positions >> np.uint32(2)
    counters[:, 1] = draw & _MASK32
    counters[:, 2] = draw >> 32
    counters[:, 3] = _ACCEPTANCE_DOMAIN
    words = philox4x32_10((key & _MASK32, key >> 32), counters)
    return words[np.arange(len(positions)), positions & np.uint32(3)]


def decide_gathered(records: Records, current: Gathered, k: int, words: NDArray[np.uint32]) -> Evaluation:
    """Section 7 for valid GATHERED input; `words` [N] are the uniforms. See decide_reduced."""
    evaluation = decide_reduced(records, reduce_gathered(records, current, k), k, words)
    return evaluation._replace(total_variations=total_variation(current.log_probs[:, :k], records.log_probs[:, :k]))


def decide_reduced(
    records: Records, current: Reduced, k: int, words: NDArray[np.uint32], present: Optional[Bools] = None
) -> Evaluation:
    """Section 7 for valid REDUCED input.

    Args:
        records: N positions; empty rows (-1 and -inf in every slot) where a position is missing.
        current: the current policy's values at the same positions; anything where one is missing.
        k: the slots that count, in [1, K].
        words: the uniforms, uint32 [N].
        present: bool [N], false where a position is missing; None: all present.
    """
    here = np.ones(len(words), bool) if present is None else present
    lpy = np.where(here, _float32("sampled_log_probs", current.sampled_log_probs), _ZERO)
    lw = log_ratio(lpy, np.where(here, _float32("sampled_log_probs", records.sampled_log_probs), _ZERO))
    envelope = flush(np.where(here, _float32("log_envelopes", current.log_envelopes), _ZERO))

    inside = here & (rank(records.sampled_ids, records.ids, records.log_probs) < k)
    possible = inside & (lpy != _MINUS_INFINITY)
    violations = possible & (lw > envelope)
    below = possible & ~violations
    with np.errstate(over="ignore"):  # to -inf, between the ends of the float range
        gap = np.where(below, lw, _ZERO) - np.where(below, envelope, _ZERO)
    a = np.where(below, exp32(flush(gap)), np.where(violations, _ONE, _ZERO))

    threshold = (a * np.float32(2.0**32)).astype(np.uint64)
    accepted = inside & (words.astype(np.uint64) < threshold)
    decisions = np.select(
        [~here, accepted, inside], [Decision.MISSING, Decision.ACCEPTED, Decision.REJECTED], Decision.OUTSIDE_TOP_K
    ).astype(np.uint8)

    def where_present(values: Float32s) -> Float32s:
        return np.where(here, values, np.float32(np.nan))

    return Evaluation(
        decisions=decisions,
        acceptance_probabilities=a,
        violations=violations,
        log_ratios=where_present(np.where(accepted, _ZERO, lw)),
        ratios=where_present(np.where(accepted, _ONE, exp32(lw))),
        log_weights=where_present(lw),
        log_envelopes=where_present(envelope),
        covered_masses=where_present(current.covered_masses),
        total_variations=where_present(np.zeros(len(words), np.float32)),
    )


def fixed(x: Float32s) -> NDArray[np.int64]:
    """Section 8: x limited to [-64, 64], in units of 2^-30. Any shape; x must not be NaN."""
    limited = np.clip(_float32("x", x), np.float32(-64), np.float32(64))
    return (limited * np.float32(2.0**30)).astype(np.int64)


def residual_mass(covered_masses: Float32s) -> Float32s:
    """Section 8: max(0, 1 - c) [N]."""
    return np.maximum(_ZERO, _ONE - covered_masses)


def expected_acceptance(covered_masses: Float32s, log_envelopes: Float32s) -> Float32s:
    """Section 8: min(1, flush(c) / M) [N], 0 where the log-envelope is -inf."""
    finite = log_envelopes != _MINUS_INFINITY
    inverse = exp32(-np.where(finite, log_envelopes, _ZERO))
    return np.where(finite, np.minimum(_ONE, flush(covered_masses) * inverse), _ZERO)


def totals(evaluation: Evaluation) -> Totals:
    """Section 8, over the N positions of an evaluation."""
    scored = evaluation.decisions != Decision.MISSING
    e = Evaluation(*(column[scored] for column in evaluation))
    accepted = e.decisions == Decision.ACCEPTED
    deviation = fixed(np.abs(e.log_weights))
    return Totals(
        accepted=int(accepted.sum()),
        rejected=int((e.decisions == Decision.REJECTED).sum()),
        outside_top_k=int((e.decisions == Decision.OUTSIDE_TOP_K).sum()),
        missing=int((~scored).sum()),
        envelope_violations=int(e.violations.sum()),
        d=int(deviation.sum()),
        d_sis=int(deviation[~accepted].sum()),
        log_envelope=int(fixed(e.log_envelopes).sum()),
        residual_mass=int(fixed(residual_mass(e.covered_masses)).sum()),
        acceptance_probability=int(fixed(e.acceptance_probabilities).sum()),
        expected_acceptance=int(fixed(expected_acceptance(e.covered_masses, e.log_envelopes)).sum()),
        k3=int(fixed(excess32(e.log_weights)).sum()),
        total_variation=int(fixed(e.total_variations).sum()),
    )


def prefix_curve(records: Records, current: Gathered, ks: Iterable[int]) -> list[PrefixPoint]:
    """Section 8: a point for each k, over the N positions."""
    points = []
    for k in ks:
        _, envelopes, masses = reduce_gathered(records, current, k)
        rates = expected_acceptance(masses, envelopes)
        points.append(PrefixPoint(k, int(fixed(residual_mass(masses)).sum()), int(fixed(rates).sum())))
    return points


def wire(total: int) -> float:
    """Section 8: the double that stands for a sum in a message."""
    return float(total) * 2.0**-30


def _crc32c_table() -> NDArray[np.uint32]:
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = np.where(table & np.uint32(1), (table >> np.uint32(1)) ^ np.uint32(0x82F63B78), table >> np.uint32(1))
    return table


_CRC32C_TABLE = _crc32c_table()  # the polynomial 0x1EDC6F41, bit-reversed


def _crc32c_rows(rows: NDArray[np.uint8]) -> NDArray[np.uint32]:
    crc = np.full(len(rows), _MASK32, np.uint32)
    for column in rows.T:
        crc = _CRC32C_TABLE[(crc ^ column) & np.uint32(0xFF)] ^ (crc >> np.uint32(8))
    return ~crc


def crc32c(data: bytes) -> int:
    """Section 9."""
    return int(_crc32c_rows(np.frombuffer(data, np.uint8)[None, :])[0])


def mix(z: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Section 9, of shape [N]."""
    z = z + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))
