"""Record blocks in numpy: a second implementation of docs/record_block.md, made from that document
alone. Section numbers are those of docs/numerics.md."""

from typing import NamedTuple, Optional

import numpy as np
from numpy.typing import NDArray

from tests.reference import numerics
from tests.reference.numerics import Records

FLOAT32, FIXED16 = 0, 1
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
    """Returns the bytes of a block."""

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


def read(data: bytes) -> Block:
    """Returns the sections of a valid block."""
    h = np.frombuffer(data, _HEADER, 1)[0]
    positions, used, width = int(h["positions"]), int(h["used_slots"]), int(h["id_bytes"])
    fixed = h["encoding"] == FIXED16
    sizes = [(2 if fixed else 4) * used, positions if fixed else 0, positions]
    sizes += [-sum(sizes) % 8, 4 * positions, positions, width * positions, width * used]
    ends = np.cumsum([_HEADER.itemsize, *sizes])
    sections = [data[begin:end] for begin, end in zip(ends, ends[1:])]
    return Block(
        encoding=int(h["encoding"]),
        id_bytes=width,
        slots=int(h["slots"]),
        vocabulary_size=int(h["vocabulary_size"]),
        first_position=int(h["first_position"]),
        policy_version=int(h["policy_version"]),
        log_probs=np.frombuffer(sections[0], "<u2" if fixed else "<f4"),
        multipliers=np.frombuffer(sections[1], np.uint8) if fixed else None,
        ranks=np.frombuffer(sections[2], np.uint8),
        sampled_log_probs=np.frombuffer(sections[4], "<f4"),
        counts=np.frombuffer(sections[5], np.uint8),
        sampled_ids=_ids_of_bytes(sections[6], width),
        ids=_ids_of_bytes(sections[7], width),
    )


def digest(block: Block) -> int:
    """Section 9, of all positions."""
    ends = np.cumsum(block.counts, dtype=np.int64)
    keys = []
    for i, (end, count) in enumerate(zip(ends, block.counts)):
        used = slice(end - count, end)
        multiplier = 0 if block.multipliers is None else int(block.multipliers[i])
        parts = [
            block.log_probs[used].tobytes(),
            bytes([multiplier, block.ranks[i], count, 0]) + block.sampled_log_probs[i].tobytes(),
            _bytes_of_ids(block.sampled_ids[i : i + 1], block.id_bytes),
            _bytes_of_ids(block.ids[used], block.id_bytes),
        ]
        data = b"".join(part + bytes(-len(part) % 8) for part in parts)
        keys.append((block.first_position + i) << 32 | numerics.crc32c(data))
    return int(numerics.mix(np.array(keys, np.uint64)).sum(dtype=np.uint64))
