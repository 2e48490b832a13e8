"""Record blocks in numpy: a second implementation of docs/record_block.md, made from that document
alone. Section numbers are those of docs/numerics.md."""

from typing import NamedTuple, Optional

import numpy as np
from numpy.typing import NDArray

from tests.reference import numerics
from tests.reference.numerics import Records

FLOAT32, FIXED16 = 0, 1
MAX_POSITIONS = 4096
MAX_BYTES = 1 << 20
MAX_SLOTS = 254
MAX_VOCABULARY = 1 << 24
LOWEST_CODE = 65534
MAX_MULTIPLIER = 255

_HEADER = np.dtype([
    ("magic", "S4"),
    ("crcs", "<u4", 2),
    ("version", "u1"),
    ("encoding", "u1"),
    ("id_bytes", "u1"),
    ("slots", "u1"),
    ("vocabulary_size", "<u4"),
    ("first_position", "<u4"),
    ("positions", "<u4"),
    ("used_slots", "<u4"),
    ("policy_version", "<u8"),
    ("zeros", "u1", 24),
])
assert _HEADER.itemsize == 64
_CRCS = slice(4, 12)


class Block(NamedTuple):
    """The sections of a block; S used slots of T positions, position after position."""

    encoding: int
    id_bytes: int
    slots: int
    vocabulary_size: int
    first_position: int
    policy_version: int
    log_probs: NDArray  # float32 [S], or codes uint16 [S]
    multipliers: Optional[NDArray[np.uint8]]  # [T] with FIXED16
    ranks: NDArray[np.uint8]  # [T]
    sampled_log_probs: NDArray[np.float32]  # [T]
    counts: NDArray[np.uint8]  # [T]
    sampled_ids: NDArray[np.int32]  # [T]
    ids: NDArray[np.int32]  # [S]

    def records(self) -> Records:
        """[T, K], with -1 and -inf in unused slots. Log-probs are those that decisions are made with."""
        used = np.arange(self.slots) < self.counts[:, None]
        values = self.log_probs
        if self.encoding == FIXED16:
            multipliers = np.repeat(self.multipliers, self.counts).astype(np.int64)
            values = ((4096 - self.log_probs.astype(np.int64) * multipliers) * 2.0**-18).astype(np.float32)
        ids = np.full(used.shape, -1, np.int32)
        ids[used] = self.ids
        log_probs = np.full(used.shape, -np.inf, np.float32)
        log_probs[used] = values
        positions = (self.first_position + np.arange(len(self.counts))).astype(np.uint32)
        return Records(positions, self.sampled_ids, self.sampled_log_probs, ids, log_probs)


def _depths(log_probs: NDArray[np.float32]) -> NDArray[np.int64]:
    # Below -64 no depth fits a code; the lowest floats would overflow.
    return 4096 - np.floor(np.maximum(log_probs.astype(np.float64), -64) * 2.0**18).astype(np.int64)


def _divided_up(depths: NDArray[np.int64], by: NDArray) -> NDArray[np.int64]:
    return -(-depths // by)


def _bytes_of_ids(ids: NDArray[np.int32], width: int) -> bytes:
    return ids.astype("<u4")[:, None].view(np.uint8)[:, :width].tobytes()


def _ids_of_bytes(data: bytes, width: int) -> NDArray[np.int32]:
    ids = np.zeros((len(data) // width, 4), np.uint8)
    ids[:, :width] = np.frombuffer(data, np.uint8).reshape(-1, width)
    return ids.view("<u4")[:, 0].astype(np.int64).astype(np.int32)


def least_id_bytes(vocabulary_size: int) -> int:
    return 2 if vocabulary_size <= 1 << 16 else 3


def pack(
    records: Records, vocabulary_size: int, encoding: int, mass: float = 0, policy_version: int = 0, id_bytes: int = 0
) -> bytes:
    """The block of valid records [T, K] that follow each other. `mass` 0 cuts nothing."""
    numerics.validate_records(records, vocabulary_size)
    if 0 < mass < 1:
        records = numerics.cut_to_mass(records, mass)
    used = numerics.used_slots(records.log_probs)
    multipliers = None
    if encoding == FIXED16:
        depths = _depths(np.where(used, records.log_probs, np.float32(0)))
        used &= depths <= LOWEST_CODE * MAX_MULTIPLIER
        deepest = np.where(used, depths, 0).max(axis=1, initial=0)
        multipliers = np.maximum(1, _divided_up(deepest, LOWEST_CODE))
        log_probs = _divided_up(depths, multipliers[:, None])[used].astype("<u2")
        multipliers = multipliers.astype(np.uint8)
    else:
        log_probs = records.log_probs[used].astype("<f4")
    ranks = numerics.rank(records.sampled_ids, records.ids, np.where(used, records.log_probs, -np.inf))
    return write(
        Block(
            encoding=encoding,
            id_bytes=id_bytes or least_id_bytes(vocabulary_size),
            slots=records.ids.shape[1],
            vocabulary_size=vocabulary_size,
            first_position=int(records.positions[0]),
            policy_version=policy_version,
            log_probs=log_probs,
            multipliers=multipliers,
            ranks=ranks,
            sampled_log_probs=records.sampled_log_probs,
            counts=used.sum(axis=1).astype(np.uint8),
            sampled_ids=records.sampled_ids,
            ids=records.ids[used],
        )
    )


def write(block: Block) -> bytes:
    """The bytes of the sections, whether they make sense or not."""

    def filled(*sections: bytes) -> bytes:
        part = b"".join(sections)
        return part + bytes(-len(part) % 8)

    header = np.zeros((), _HEADER)
    for name in ("encoding", "id_bytes", "slots", "vocabulary_size", "first_position", "policy_version"):
        header[name] = getattr(block, name)
    header["magic"], header["version"] = b"SISB", 1
    header["positions"], header["used_slots"] = len(block.counts), len(block.ids)
    multipliers = b"" if block.multipliers is None else block.multipliers.tobytes()
    parts = (
        filled(block.log_probs.tobytes(), multipliers, block.ranks.tobytes()),
        filled(
            block.sampled_log_probs.astype("<f4").tobytes(),
            block.counts.tobytes(),
            _bytes_of_ids(block.sampled_ids, block.id_bytes),
            _bytes_of_ids(block.ids, block.id_bytes),
        ),
    )
    blank = header.tobytes()
    header["crcs"] = [numerics.crc32c(blank + part) for part in parts]
    return header.tobytes() + b"".join(parts)


def _require(fine: bool, what: str) -> None:
    if not fine:
        raise ValueError(what)


def read(data: bytes) -> Block:
    """The sections of a block. Raises ValueError that says what is wrong in header, lengths, counts,
    filling or checksums; the values themselves are looked at by `check` alone."""
    _require(len(data) >= _HEADER.itemsize, f"block: {len(data)} bytes, fewer than a header has")
    h = np.frombuffer(data, _HEADER, 1)[0]
    positions, used, width = int(h["positions"]), int(h["used_slots"]), int(h["id_bytes"])
    vocabulary_size, slots = int(h["vocabulary_size"]), int(h["slots"])
    _require(h["magic"] == b"SISB", "magic: not SISB")
    _require(h["version"] == 1, f"version: {h['version']}, must be 1")
    _require(h["encoding"] in (FLOAT32, FIXED16), f"encoding: {h['encoding']}, must be 0 or 1")
    _require(1 <= vocabulary_size <= MAX_VOCABULARY, f"vocabulary_size: {vocabulary_size}, must be in [1, 2^24]")
    _require(least_id_bytes(vocabulary_size) <= width <= 4, f"id_bytes: {width} for {vocabulary_size} ids")
    _require(1 <= slots <= MAX_SLOTS, f"slots: {slots}, must be in [1, {MAX_SLOTS}]")
    _require(1 <= positions <= MAX_POSITIONS, f"positions: {positions}, must be in [1, {MAX_POSITIONS}]")
    _require(int(h["first_position"]) + positions <= 1 << 32, "first_position: the last position is above 2^32 - 1")
    _require(used <= slots * positions, f"used_slots: {used}, above {slots} * {positions}")
    _require(not h["zeros"].any(), "header: the last 24 bytes are not 0")

    fixed = h["encoding"] == FIXED16
    sizes = [(2 if fixed else 4) * used, positions if fixed else 0, positions]
    part1 = sum(sizes)
    sizes += [-part1 % 8, 4 * positions, positions, width * positions, width * used]
    sizes += [-(sum(sizes[4:])) % 8]
    ends = np.cumsum([_HEADER.itemsize, *sizes])
    _require(ends[-1] <= MAX_BYTES, f"block: {ends[-1]} bytes, above {MAX_BYTES}")
    _require(ends[-1] == len(data), f"block: {len(data)} bytes, not the {ends[-1]} of its header")
    sections = [data[begin:end] for begin, end in zip(ends, ends[1:])]
    blank = bytearray(data[: _HEADER.itemsize])
    blank[_CRCS] = bytes(8)
    for number, part in enumerate((data[64 : ends[4]], data[ends[4] :])):
        crc = numerics.crc32c(bytes(blank) + part)
        _require(crc == h["crcs"][number], f"part {number + 1}: its CRC-32C is {crc:08x}, not {h['crcs'][number]:08x}")
    _require(not any(sections[3] + sections[8]), "block: filling bytes are not 0")

    counts = np.frombuffer(sections[5], np.uint8)
    _require(int(counts.max()) <= slots, f"counts: {counts.max()}, above the {slots} slots of the header")
    _require(int(counts.sum()) == used, f"counts: {counts.sum()} in all, not the {used} of the header")
    return Block(
        encoding=int(h["encoding"]),
        id_bytes=width,
        slots=slots,
        vocabulary_size=vocabulary_size,
        first_position=int(h["first_position"]),
        policy_version=int(h["policy_version"]),
        log_probs=np.frombuffer(sections[0], "<u2" if fixed else "<f4"),
        multipliers=np.frombuffer(sections[1], np.uint8) if fixed else None,
        ranks=np.frombuffer(sections[2], np.uint8),
        sampled_log_probs=np.frombuffer(sections[4], "<f4"),
        counts=counts,
        sampled_ids=_ids_of_bytes(sections[6], width),
        ids=_ids_of_bytes(sections[7], width),
    )


def check(data: bytes) -> Block:
    """A block that another program wrote. Raises ValueError that says what is wrong, and where."""
    block = read(data)
    ends = np.cumsum(block.counts, dtype=np.int64)
    for position, (end, count) in enumerate(zip(ends, block.counts)):
        where = f"position {block.first_position + position}"
        ids = block.ids[end - count : end]
        values = block.log_probs[end - count : end]
        log_probs = block.records().log_probs[position, :count] if block.encoding == FIXED16 else values
        sampled_id, sampled = block.sampled_ids[position], block.sampled_log_probs[position]
        for name, some in (("ids", ids), ("sampled_ids", sampled_id[None])):
            beyond = some[(some < 0) | (some >= block.vocabulary_size)]
            _require(not len(beyond), f"{name}: {where}: {beyond[:1]} is not below {block.vocabulary_size}")
        _require(len(set(ids.tolist())) == count, f"ids: {where}: an id stands twice")
        _require(
            np.isfinite(sampled) and sampled <= numerics.MAX_LOG_PROB,
            f"sampled_log_probs: {where}: {sampled} is not a finite log-prob of at most 1/64",
        )
        fits = np.isfinite(log_probs) & (log_probs <= numerics.MAX_LOG_PROB)
        _require(fits.all(), f"log_probs: {where}: {log_probs[~fits][:1]} is not a finite log-prob of at most 1/64")
        if block.encoding == FIXED16:
            multiplier = int(block.multipliers[position])
            last = int(values[-1]) if count else 0
            _require((values <= LOWEST_CODE).all(), f"log_probs: {where}: code 65535 stands for nothing")
            _require((values[1:] >= values[:-1]).all(), f"log_probs: {where}: they rise")
            _require(multiplier >= 1, f"multipliers: {where}: 0")
            least = multiplier == 1 or last * multiplier > LOWEST_CODE * (multiplier - 1)
            _require(least, f"multipliers: {where}: {multiplier} is not the least that reaches code {last}")
            expected = _divided_up(_depths(sampled[None]), np.int64(multiplier))[0]
        else:
            _require((log_probs[1:] <= log_probs[:-1]).all(), f"log_probs: {where}: they rise")
            ties = log_probs[1:] == log_probs[:-1]
            _require((ids[1:] > ids[:-1])[ties].all(), f"ids: {where}: they must rise between equal log-probs")
            expected = sampled
        slot = np.flatnonzero(ids == sampled_id)
        rank = int(slot[0]) if len(slot) else numerics.NO_RANK
        _require(block.ranks[position] == rank, f"ranks: {where}: {block.ranks[position]}, must be {rank}")
        if rank != numerics.NO_RANK:
            same = values[rank] == expected if block.encoding == FIXED16 else values[rank].tobytes() == sampled.tobytes()
            _require(same, f"log_probs: {where}: slot {rank} is not the sampled log-prob {sampled}, rounded down")
        mass = numerics.covered_mass(log_probs[None].astype(np.float32), np.ones((1, count), bool))[0]
        _require(mass <= numerics.MAX_MASS, f"log_probs: {where}: probabilities sum to {mass}, above 1 + 1/64")
    return block


def merge(first: bytes, second: bytes) -> bytes:
    """The block of both, which must follow each other."""
    a, b = read(first), read(second)
    equal = ("encoding", "id_bytes", "slots", "vocabulary_size", "policy_version")
    different = [name for name in equal if getattr(a, name) != getattr(b, name)]
    _require(not different, f"merge: {different} differ")
    _require(a.first_position + len(a.counts) == b.first_position, "merge: the blocks don't follow each other")

    def joined(name: str) -> Optional[NDArray]:
        one, two = getattr(a, name), getattr(b, name)
        return None if one is None else np.concatenate((one, two))

    arrays = ("log_probs", "multipliers", "ranks", "sampled_log_probs", "counts", "sampled_ids", "ids")
    return write(a._replace(**{name: joined(name) for name in arrays}))


def digest(block: Block) -> int:
    """Section 9, of all positions."""
    ends = np.cumsum(block.counts, dtype=np.int64)
    keys = []
    for i, (end, count) in enumerate(zip(ends, block.counts)):
        used = slice(end - count, end)
        data = block.log_probs[used].tobytes()
        if block.multipliers is not None:
            data += block.multipliers[i].tobytes()
        data += block.ranks[i].tobytes() + block.sampled_log_probs[i].tobytes() + block.counts[i].tobytes()
        data += _bytes_of_ids(block.sampled_ids[i : i + 1], block.id_bytes)
        data += _bytes_of_ids(block.ids[used], block.id_bytes)
        data += bytes(-len(data) % 8)
        keys.append((block.first_position + i) << 32 | numerics.crc32c(data))
    return int(numerics.mix(np.array(keys, np.uint64)).sum(dtype=np.uint64))
