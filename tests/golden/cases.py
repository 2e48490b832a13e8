"""The inputs of the golden decisions.

Everything here is made of correctly rounded operations only (no libm, no numpy random generator),
so that every machine and every numpy regenerates the same bytes.
"""

import decimal
import math
from typing import Iterator, NamedTuple, Optional, Union

import numpy as np

from tests.reference import numerics
from tests.reference.numerics import Gathered, Records, Reduced

INFINITY = math.inf
SUBNORMAL = 2.0**-130
SMALLEST_NORMAL = 2.0**-126
FLUSH_BELOW = 2.0**-100
LARGEST = float(np.finfo(np.float32).max)
MAX_LOG_PROB = 2.0**-6


class Case(NamedTuple):
    """N consecutive positions of one sequence, evaluated in one draw."""

    seed: int
    attempt: int
    sequence_id: str
    draw: int
    k: int
    records: Records
    current: Union[Gathered, Reduced]

    def words(self) -> np.ndarray:
        key = numerics.sequence_key(self.seed, self.attempt, self.sequence_id)
        return numerics.uniforms(key, self.records.positions, self.draw)


class Source:
    """Pseudo-random numbers, the same for a name for ever: Philox under the name's FNV-1a."""

    def __init__(self, name: str):
        self._key = numerics.fnv1a(name.encode())
        self._next = 0

    def words(self, count: int) -> np.ndarray:
        """uint32 [count]."""
        counters = np.zeros(((count + 3) // 4, 4), np.uint32)
        counters[:, 0] = np.arange(self._next, self._next + len(counters))
        self._next += len(counters)
        key = (self._key & 0xFFFFFFFF, self._key >> 32)
        return numerics.philox4x32_10(key, counters).reshape(-1)[:count]

    def reals(self, count: int) -> np.ndarray:
        """float64 [count] in [0, 1)."""
        return self.words(count) * 2.0**-32


def neighbours(x: float, distance: int = 1) -> list[float]:
    """x and the float32 values up to `distance` steps below and above it, in order."""
    below, above = [np.float32(x)], [np.float32(x)]
    for _ in range(distance):
        below.append(np.nextafter(below[-1], np.float32(-INFINITY)))
        above.append(np.nextafter(above[-1], np.float32(INFINITY)))
    return [float(v) for v in below[:0:-1] + above]


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """float32 [V] from float64 [V], good to float32 and the same on every machine."""
    mass = math.fsum(numerics.exp32(logits.astype(np.float32)).tolist())
    return (logits - float(decimal.Decimal(mass).ln())).astype(np.float32)


def records_of(first_position: int, sampled_ids: list, sampled: list, ids: list, log_probs: list) -> Records:
    return Records(
        np.arange(first_position, first_position + len(sampled_ids), dtype=np.int64).astype(np.uint32),
        np.array(sampled_ids, np.int32),
        np.array(sampled, np.float32),
        np.array(ids, np.int32),
        np.array(log_probs, np.float32),
    )


def random_positions(
    name: str, first_position: int, count: int, slots: int, vocabulary: int, shift: float, half: bool
) -> tuple[Records, Gathered]:
    """Records and current values of a made-up model.

    Args:
        vocabulary: how many tokens have a probability; where fewer than `slots`, slots stay unused.
        shift: how far the policies' logits differ, at most; 0: equal policies.
        half: behaviour log-probs as float16 holds them, which makes ties.
    """
    source = Source(name)
    rows = []
    for _ in range(count):
        ids = np.arange(vocabulary) * 1009 + source.words(vocabulary) % 1009
        behaviour_logits = -12 * source.reals(vocabulary) * source.reals(vocabulary)
        current_logits = behaviour_logits + shift * (source.reals(vocabulary) - source.reals(vocabulary))
        behaviour, current = log_softmax(behaviour_logits), log_softmax(current_logits)
        if half:
            behaviour = behaviour.astype(np.float16).astype(np.float32)
        order = np.lexsort((ids, -behaviour))
        u, v = source.reals(2)
        sampled = order[int(u * v * vocabulary)]
        top = order[:slots]
        unused = slots - len(top)
        rows.append((
            ids[sampled],
            behaviour[sampled],
            [*ids[top], *[-1] * unused],
            [*behaviour[top], *[-INFINITY] * unused],
            current[sampled],
            [*current[top], *[math.nan] * unused],
        ))
    columns = list(zip(*rows))
    return records_of(first_position, *columns[:4]), Gathered(*(np.array(c, np.float32) for c in columns[4:]))


# K, n, k below K, first position, draw.
_SHAPES = [
    (1, 33, 1, 0, 0),
    (2, 33, 1, 1, 1),
    (5, 40, 3, 2, 2**32 - 1),
    (10, 40, 4, 3, 2**32),
    (50, 12, 20, 2**20 - 5, 2**32 + 7),
    (100, 9, 33, 2**22 - 3, 2**63 + 2**31),
    (128, 9, 127, 2**32 - 9, 2**64 - 1),
]


def random_cases() -> Iterator[Case]:
    for slots, count, fewer, first_position, draw in _SHAPES:
        variants = [
            ("plain", slots, 3 * slots + 2, 3.0, False),
            ("fewer", fewer, 2 * slots, 6.0, True),
            ("equal", slots, 2 * slots + 1, 0.0, False),
            ("unused", slots, max(1, slots // 2), 2.0, True),
        ]
        for number, (variant, k, vocabulary, shift, half) in enumerate(variants):
            name = f"{variant}-{slots}"
            records, current = random_positions(name, first_position, count, slots, vocabulary, shift, half)
            yield Case(0x0123456789ABCDEF * (slots + 1) % 2**64, number, name, draw, k, records, current)


class Row(NamedTuple):
    """One position, by hand; `slot` is where the sampled token stands, None if outside."""

    log_probs: list[float]
    current: list[float]
    slot: Optional[int]
    sampled: Optional[float] = None  # None: as in the slot
    sampled_current: Optional[float] = None  # None: as in the slot


def _edge_rows() -> list[Row]:
    rows = [
        # Nothing recorded, and nothing left of what was.
        Row([], [], None, -1.5, -1.25),
        Row([], [], None, -1.5, -INFINITY),
        Row([-0.5, -2], [-INFINITY] * 2, 0, None, -1.0),
        Row([-0.5, -2], [-INFINITY] * 2, 0),
        Row([-0.5, -2], [-INFINITY] * 2, None, -3.0, -1.0),
        Row([-0.5, -2], [-INFINITY] * 2, None, -3.0, -INFINITY),
        # -inf in some slots.
        Row([-0.5, -2], [-INFINITY, -1], 0),
        Row([-0.5, -2], [-INFINITY, -1], 1),
        Row([-0.5, -2, -4], [-0.25, -INFINITY, -INFINITY], 0),
        Row([-0.5, -2, -4], [-0.25, -3, -5], 2, None, -INFINITY),
        # Not a violation, although above the envelope: outside.
        Row([-0.5, -2], [-0.75, -2.5], None, -6.0, -1.0),
        # Ties, and both zeros.
        Row([-1.5, -1.5, -1.5], [-1.25, -2, -1.75], 1),
        Row([-1.5, -1.5, -1.5], [-1.5, -1.5, -1.5], 2),
        Row([0.0], [-0.0], 0),
        Row([-0.0], [0.0], 0),
        Row([0.0], [0.0], 0),
        Row([-0.0], [-0.0], 0),
        # The slack.
        Row([MAX_LOG_PROB * 0.75], [MAX_LOG_PROB * 0.75], 0),
        Row([-0.25], [MAX_LOG_PROB * 0.75], 0),
        # Differences that are subnormal: zero, whatever the machine does with them.
        Row([-SMALLEST_NORMAL], [-1.5 * SMALLEST_NORMAL], 0),
        Row([-1.5 * SMALLEST_NORMAL], [-SMALLEST_NORMAL], 0),
        Row([-1.5 * SMALLEST_NORMAL], [-SMALLEST_NORMAL], None, -1.5 * SMALLEST_NORMAL, -1.25 * SMALLEST_NORMAL),
        Row([-SMALLEST_NORMAL], [-2 * SMALLEST_NORMAL], 0, None, -3.5 * SMALLEST_NORMAL),
        Row([-3 * SMALLEST_NORMAL], [-2 * SMALLEST_NORMAL], 0, None, -1.5 * SMALLEST_NORMAL),
        # lw - lM subnormal.
        Row([-8 * SMALLEST_NORMAL], [-5 * SMALLEST_NORMAL], 0, None, -6.5 * SMALLEST_NORMAL),
        Row([-4 * SMALLEST_NORMAL], [-2.5 * SMALLEST_NORMAL], 0, None, -3 * SMALLEST_NORMAL),
        # A subnormal beside a small normal number: below the flush, so that it can't be seen.
        Row([SMALLEST_NORMAL], [-SUBNORMAL], 0),
        Row([1.5 * SMALLEST_NORMAL], [4 * SUBNORMAL], 0),
        # Around the flush itself.
        Row([-FLUSH_BELOW], [-2 * FLUSH_BELOW], 0),
        Row([-FLUSH_BELOW], [-1.5 * FLUSH_BELOW], 0),
        Row([-2 * FLUSH_BELOW], [-FLUSH_BELOW], 0),
        Row([-FLUSH_BELOW - 2.0**-123], [0.0], 0),
        # Subnormal log-probs.
        Row([-SUBNORMAL], [-SUBNORMAL], 0),
        Row([SUBNORMAL], [-1.0], 0),
        Row([-0.5, -1.0], [-SUBNORMAL, -5.0], 0),
        # The ends of the float range.
        Row([-0.5, -LARGEST], [-LARGEST, -0.5], 0),
        Row([-0.5, -LARGEST], [-LARGEST, -0.5], 1),
        Row([-0.5, -LARGEST], [-1.0, -LARGEST], 1),
        Row([-LARGEST], [-LARGEST], 0),
        Row([MAX_LOG_PROB * 0.5], [-LARGEST], None, -LARGEST, MAX_LOG_PROB),
        # Sampled token one step above and below its own slot: a violation by one step, and nearly
        # certain.
        *[Row([-0.5, -2], [-0.25, -2.5], 0, None, lpy) for lpy in neighbours(-0.25, 2)],
        *[Row([-3.0, -3.5], [-0.5, -3.0], 0, None, lpy) for lpy in (-0.5 + 2.0**-24, -0.25, 0.0, MAX_LOG_PROB)],
    ]
    # lw, and so the ratio and the terms of D, around what it is clamped at: outside, and rejected.
    for clamp in (-87.0, -88.0, -64.0):
        rows += [Row([-1.0], [-1.0], None, 0.0, lpy) for lpy in neighbours(clamp)]
        rows += [Row([0.0, -9.0], [lpy, -9.0], 0) for lpy in neighbours(clamp)]
    for clamp in (87.0, 88.0, 64.0):
        rows += [Row([-1.0], [-1.0], None, lqy, 0.0) for lqy in neighbours(-clamp)]
        # lM there as well: the last slot raises it.
        rows += [Row([-0.5, lq], [-5.0, 0.0], 0) for lq in neighbours(-clamp)]
        rows += [Row([-0.5, lq], [-5.0, 0.0], 1) for lq in neighbours(-clamp)]
    # lM far below: lM at -64, -87, -88, and the sampled token's ratio with it.
    for clamp in (-87.0, -88.0, -64.0):
        rows += [Row([0.0], [lp], 0) for lp in neighbours(clamp)]
    # a around 2^-32, where no draw accepts any more.
    rows += [Row([0.0, -9.0], [x, -9.0], 0) for x in (-22.0, -22.18, -22.1807, -22.181, -22.2, -23.0)]
    return rows


_JUNK = [math.nan, 5.0, INFINITY, -INFINITY]


def _gathered_case(rows: list[Row], slots: int, k: int, name: str, first_position: int, draw: int) -> Case:
    """`rows` in order, padded to `slots`; what stands in the unused slots' current values must not
    matter."""
    sampled_ids, sampled, ids, log_probs, sampled_current, current = [], [], [], [], [], []
    for row in rows:
        used = len(row.log_probs)
        ids.append([7 * slot + 3 for slot in range(used)] + [-1] * (slots - used))
        log_probs.append(row.log_probs + [-INFINITY] * (slots - used))
        current.append(row.current + [_JUNK[slot % len(_JUNK)] for slot in range(slots - used)])
        inside = row.slot is not None
        sampled_ids.append(ids[-1][row.slot] if inside else 262207)
        sampled.append(row.log_probs[row.slot] if row.sampled is None else row.sampled)
        sampled_current.append(row.current[row.slot] if row.sampled_current is None else row.sampled_current)
    return Case(
        0xFEDCBA9876543210,
        0xFFFFFFFF,
        name,
        draw,
        k,
        records_of(first_position, sampled_ids, sampled, ids, log_probs),
        Gathered(np.array(sampled_current, np.float32), np.array(current, np.float32)),
    )


def edge_cases() -> Iterator[Case]:
    rows = _edge_rows()
    name = "kanten/ränder/辺"
    yield _gathered_case(rows, 5, 5, name, 0, 0)
    yield _gathered_case(rows, 5, 1, name, 2**20 - 3, 2**32 + 1)
    yield _gathered_case(rows, 3, 2, name, 2**20 + 2, 2**64 - 1)
    for count in (1, 7, 8, 9):
        yield _gathered_case(rows[2 : 2 + count], 5, 4, "lengths", 4 * count + 3, 3)


def threshold_cases() -> Iterator[Case]:
    """Positions whose uniform equals the threshold (rejected), and is one below it (accepted).

    The thresholds are what is left of numbers that would be rounded upwards.
    """
    seed, attempt, sequence_id, draw, wanted = 20, 26, "threshold", 2**40 + 17, 6
    key = numerics.sequence_key(seed, attempt, sequence_id)
    positions = np.arange(2**18, dtype=np.uint32)
    words = numerics.uniforms(key, positions, draw)
    # So small a word that the steps of a are finer than those of the threshold.
    for index in np.flatnonzero((words > 0) & (words < 2**18))[:wanted]:
        word = int(words[index])
        near = np.array(neighbours(float((decimal.Decimal(word) / 2**32).ln()), 64), np.float32)
        thresholds = (numerics.exp32(near) * np.float32(2.0**32)).astype(np.uint64)
        for threshold in (word, word + 1):
            x = float(near[np.flatnonzero(thresholds == threshold)[-1]])
            case = _gathered_case([Row([0.0, -9.0], [x, -9.0], 0)], 2, 2, sequence_id, int(positions[index]), draw)
            yield case._replace(seed=seed, attempt=attempt)


def gathered_cases() -> Iterator[Case]:
    yield from random_cases()
    yield from edge_cases()
    yield from threshold_cases()


def fixed16_cases() -> Iterator[Case]:
    for case in [*random_cases(), *edge_cases()]:
        if case.records.ids.shape[1] in (1, 5, 50):
            yield case


def _reduced_edges() -> Iterator[Case]:
    """Values that no gather gives, but a client may send."""
    envelopes = [-INFINITY, -LARGEST, LARGEST, 0.0, -0.0, SUBNORMAL, -SUBNORMAL, SMALLEST_NORMAL, 0.25, 3.0]
    for clamp in (-88.0, -87.0, -64.0, 64.0, 87.0, 88.0):
        envelopes += neighbours(clamp)
    masses = [0.0, -0.0, 0.5, 1.0, 1 + 2.0**-6, 2.0**-31, 2.0**-100, 2.0**-101, SUBNORMAL]
    rows = [
        (inside, behaviour, current, envelope, masses[i % len(masses)])
        for inside in (True, False)
        for behaviour, current in [(-1.0, -1.0), (-1.0, -INFINITY), (-3.0, -0.5), (-0.5, -90.0)]
        for i, envelope in enumerate(envelopes)
    ]
    inside, behaviour, current, envelope, mass = zip(*rows)
    records = records_of(
        2**20 - 2,
        [40 if i else 9 for i in inside],
        list(behaviour),
        [[40, -1] for _ in inside],
        [[lq, -INFINITY] for lq in behaviour],
    )
    values = Reduced(*(np.array(column, np.float32) for column in (current, envelope, mass)))
    for draw in (0, 2**33):
        yield Case(1, 0, "reduced", draw, 1, records, values)


def reduced_cases() -> Iterator[Case]:
    for case in gathered_cases():
        yield case._replace(current=numerics.reduce_gathered(case.records, case.current, case.k))
    yield from _reduced_edges()


def _reached_exactly() -> Iterator[tuple[float, Records]]:
    """Targets that a covered mass equals, and their neighbours as float64, most no float32."""
    log_probs = np.array([[-0.5, -1.5, -2.5, -4.0, -INFINITY]], np.float32)
    records = records_of(0, [4], [-2.5], [[9, 2, 4, 1, -1]], log_probs.tolist())
    for slots in range(1, 5):
        covered = float(numerics.covered_mass(log_probs[:, :slots], numerics.used_slots(log_probs[:, :slots]))[0])
        for mass in (math.nextafter(covered, 0), covered, math.nextafter(covered, 1)):
            yield mass, records


def mass_cut_cases() -> Iterator[tuple[float, Records]]:
    """Mass targets, and valid records."""
    yield from _reached_exactly()
    for case in [*random_cases(), *edge_cases()]:
        if case.records.ids.shape[1] <= 10 and case.k >= 2:
            for mass in (0.5, 0.97):
                yield mass, case.records


def block_cases() -> Iterator[tuple[int, float, Records, int, int]]:
    """Encoding, mass target, valid records, vocabulary size, policy version."""
    deep = records_of(2**32 - 2, [7, 8], [-70.0, -63.5], [[9, 7], [8, 2]], [[-0.01, -70.0], [-63.5, -63.75]])
    empty = records_of(0, [0], [-0.0], [[-1]], [[-INFINITY]])
    for encoding in (0, 1):
        yield encoding, 0, deep, 2**16, 2**64 - 1
        yield encoding, 0, empty, 1, 0
        for case in [*random_cases(), *edge_cases()]:
            if case.k < 2 or case.records.ids.shape[1] > 10:
                continue
            for mass in (0, 0.97):
                records = Records(*(column[:9] for column in case.records))
                yield encoding, mass, records, 2**24, case.draw
