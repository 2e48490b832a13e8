"""Record blocks (docs/record_block.md): packed by libsis_kernels, read by numpy.

Without the library numpy writes blocks in float32 that are not cut, which every server accepts.
"""

from __future__ import annotations

import ctypes
import functools
import pathlib
import struct
import warnings
from typing import TYPE_CHECKING, Any, List, NamedTuple, Optional, Sequence, Tuple, Union

import numpy as np

if TYPE_CHECKING:
    from sis._run import RunConfig

MAX_POSITIONS = 4096
MAX_BYTES = 1 << 20
# Maximum K of a block.
MAX_SLOTS = 254

_ENCODINGS = {"float32": 0, "fixed16": 1}
_FLOAT32, _FIXED16 = 0, 1
_OUTSIDE = 255
# Vector instructions may write this many bytes after a block.
_SLACK = 64
# Size limit, in bytes, of the buffers that hold blocks packed together.
_BUFFER_BYTES = 4 << 20
_ERROR_BYTES = 1024
# Size of Records in the library: three numbers and the addresses of four arrays.
_RECORDS_BYTES = 7 * 8
_LIBRARY = pathlib.Path(__file__).with_name("libsis_kernels.so")


_first_byte: Any = ctypes.c_char.from_buffer
# The bytes of a block.
Bytes = Union[bytes, memoryview]


class Header(NamedTuple):
    magic: bytes
    crc1: int
    crc2: int
    version: int
    encoding: int
    id_bytes: int
    slots: int
    vocabulary_size: int
    first_position: int
    positions: int
    used_slots: int
    policy_version: int


_HEADER = struct.Struct("<4sIIBBBBIIIIQ24x")
_USED_SLOTS = Header._fields.index("used_slots")
# Damages that a reader finds in a block.
_DAMAGES = (
    "block: its checksum is wrong",
    "block: its counts are not those of its header",
    "block: it has no log-probs",
)


class Records(NamedTuple):
    """The records of T consecutive positions of one sequence and one policy version. Arrays are contiguous and
    little-endian."""

    first_position: int
    policy_version: int
    # int32 [T], float32 [T].
    sampled_ids: np.ndarray
    sampled_log_probs: np.ndarray
    # int32 [T, K], float32 [T, K]; unused slots are last, and hold -1 and -inf.
    ids: np.ndarray
    log_probs: np.ndarray


class Part(NamedTuple):
    """Positions of a block."""

    # The complete block, or its header and part 2.
    block: Bytes
    # Counted from the block's first position.
    rows: slice
    # Index of the first row in arrays of all parts.
    begin: int


class Invalid(ValueError):
    """Invalid records, or a damaged block. The text names field, position and value."""

    def __init__(self, text: str, number: int) -> None:
        super().__init__(text)
        # Index of the records or of the part in the list that was packed or read.
        self.number = number


def split(records: Records, config: RunConfig) -> List[Records]:
    """Splits the records into parts that each fit a block."""
    most = min(MAX_POSITIONS, (MAX_BYTES - _HEADER.size - 16) // _position_bytes(config))
    first, version, *arrays = records
    if len(arrays[0]) <= most:
        return [records]
    begins = range(0, len(arrays[0]), most)
    return [Records(first + begin, version, *(array[begin : begin + most] for array in arrays)) for begin in begins]


def _position_bytes(config: RunConfig) -> int:
    """Returns the bytes of a position that uses all slots, in the wider of the possible encodings."""
    width = _id_bytes(config.vocabulary_size)
    log_prob = 4 if config.log_prob_encoding == "float32" or _kernels() is None else 2
    return config.top_k * (log_prob + width) + width + 7


def pack(records: Sequence[Records], config: RunConfig) -> List[Bytes]:
    """Returns a block for each of `records`.

    Args:
        records: Each of at least one position, and no more than fit a block: see `split`.
        config: The run's: encoding, mass, vocabulary and K.

    Raises:
        Invalid: A record has a fault that its block would hide. Without the library only ids are checked. The
            server checks the rest.
    """
    kernels = _kernels()
    if kernels is None:
        for number, each in enumerate(records):
            _check_ids(each, config.vocabulary_size, number)
        return [_packed_by_numpy(each, config) for each in records]
    numbers: List[int] = []
    for first, version, *arrays in records:
        numbers += (first, version, len(arrays[0]), *map(_address, arrays))
    given = struct.pack(f"<{len(numbers)}Q", *numbers)
    # Upper bound of the blocks' bytes.
    room = sum(len(each.sampled_ids) for each in records) * _position_bytes(config) + (_HEADER.size + 16) * len(records)
    encoding = _ENCODINGS[config.log_prob_encoding]
    error = ctypes.create_string_buffer(_ERROR_BYTES)
    ends = np.empty(len(records), np.uint64)
    packed: List[Bytes] = []
    while len(packed) < len(records):
        rest = given[_RECORDS_BYTES * len(packed) :]
        buffer: Any = np.empty(min(room, _BUFFER_BYTES) + _SLACK, np.uint8)
        count = kernels.sis_pack(
            rest, len(records) - len(packed), config.top_k, config.vocabulary_size, encoding, config.mass,
            _address(buffer), len(buffer), _address(ends), error, _ERROR_BYTES,
        )  # fmt: skip
        if error.value:
            raise Invalid(error.value.decode(errors="replace"), len(packed) + count)
        view, begin = memoryview(buffer), 0
        for end in ends[:count].tolist():
            packed.append(view[begin:end])
            begin = end
    return packed


class Columns(NamedTuple):
    """The records of N positions with S used slots in all."""

    # uint8 [N], int32 [N], float32 [N].
    counts: np.ndarray
    sampled_ids: np.ndarray
    sampled_log_probs: np.ndarray
    # int32 [S], float32 [S]; None if not requested.
    used_ids: np.ndarray
    used_log_probs: Optional[np.ndarray]


def read(parts: Sequence[Part], positions: int, log_probs: bool) -> Columns:
    """Returns the records of all parts, at their indices among `positions`. Others have no slots, id -1 and NaN.

    Args:
        parts: By ascending `begin`. Their blocks must have the right size: see `opened`.
        positions: N.
        log_probs: Whether to read the log-probs of the sets, for which all blocks must be complete.

    Raises:
        Invalid: A block was damaged in transit.
    """
    counts = np.zeros(positions, np.uint8)
    sampled_ids = np.full(positions, -1, np.int32)
    sampled_log_probs = np.full(positions, np.nan, np.float32)
    kernels = _kernels()
    if kernels is None:
        ids, values = [np.empty(0, np.int32)], [np.empty(0, np.float32)]
        for number, part in enumerate(parts):
            try:
                block = Block(part.block)
            except ValueError as error:
                raise Invalid(str(error), number) from error
            rows = slice(part.begin, part.begin + part.rows.stop - part.rows.start)
            counts[rows] = block.counts[part.rows]
            sampled_ids[rows] = block.sampled_ids(part.rows)
            sampled_log_probs[rows] = block.sampled_log_probs[part.rows]
            slots = block.slots_of(part.rows)
            ids.append(block.ids(slots))
            if log_probs:
                values.append(block.log_probs(slots))
        used_log_probs = np.concatenate(values) if log_probs else None
        return Columns(counts, sampled_ids, sampled_log_probs, np.concatenate(ids), used_log_probs)
    # An upper bound.
    slots = sum(_HEADER.unpack_from(part.block)[_USED_SLOTS] for part in parts)
    used_ids = np.empty(slots, np.int32)
    used_log_probs = np.empty(slots, np.float32) if log_probs else None
    columns = Columns(counts, sampled_ids, sampled_log_probs, used_ids, used_log_probs)
    given = np.array(
        [
            (_address(np.frombuffer(block, np.uint8)), len(block), rows.start, rows.stop - rows.start, begin)
            for block, rows, begin in parts
        ],
        np.uint64,
    )
    to = np.array([0 if column is None else _address(column) for column in columns], np.uint64)
    damaged = ctypes.c_uint64()
    found = kernels.sis_read(_address(given), len(parts), _address(to), ctypes.byref(damaged))
    if found < 0:
        raise Invalid(_DAMAGES[-1 - found], damaged.value)
    return columns._replace(
        used_ids=used_ids[:found], used_log_probs=None if used_log_probs is None else used_log_probs[:found]
    )


def _address(array: np.ndarray) -> int:
    try:
        # Takes a quarter of the time of __array_interface__, and a tenth of that of ndarray.ctypes.
        return ctypes.addressof(_first_byte(array))
    except (TypeError, ValueError):  # read-only or empty
        return array.__array_interface__["data"][0]


class Block:
    """A received block, or its header and part 2. Arrays are views of it if possible.

    Raises:
        ValueError: The bytes are not a block, or were damaged in transit.
    """

    def __init__(self, data: Bytes) -> None:
        self._data = data
        self.header = h = opened(data)
        part2, size = _part_2(h)
        # True if part 1, with the log-probs, is present.
        self.whole = len(data) == part2 + size
        if not self.whole:
            part2 = _HEADER.size
        self._multipliers = _HEADER.size + 2 * h.used_slots
        blank = crc32c(0, b"".join((data[:4], bytes(8), data[12 : _HEADER.size])))
        parts = [(h.crc2, part2, len(data))] + ([(h.crc1, _HEADER.size, part2)] if self.whole else [])
        if any(crc32c(blank, data, begin, end) != crc for crc, begin, end in parts):
            raise ValueError(_DAMAGES[0])
        self.sampled_log_probs = np.frombuffer(data, "<f4", h.positions, part2)
        # uint8 [T]: the number of used slots of each position.
        self.counts = np.frombuffer(data, np.uint8, h.positions, part2 + 4 * h.positions)
        self._sampled_ids = part2 + 5 * h.positions
        self._ids = self._sampled_ids + h.id_bytes * h.positions
        if int(self.counts.sum()) != h.used_slots or int(self.counts.max()) > h.slots:
            raise ValueError(_DAMAGES[1])

    def sampled_ids(self, rows: slice = slice(None)) -> np.ndarray:
        """Returns int32, for the positions `rows`, counted from the block's first."""
        return self._read_ids(self._sampled_ids, rows, self.header.positions)

    def ids(self, slots: slice = slice(None)) -> np.ndarray:
        """Returns int32, for the used slots `slots`; see `slots_of`."""
        return self._read_ids(self._ids, slots, self.header.used_slots)

    def log_probs(self, slots: slice = slice(None)) -> np.ndarray:
        """Returns float32, for the used slots `slots`, as decisions use them. The block must be complete."""
        if not self.whole:
            raise ValueError("block: it has no log-probs")
        h = self.header
        stored = np.frombuffer(self._data, "<u2" if h.encoding == _FIXED16 else "<f4", h.used_slots, _HEADER.size)[slots]
        if h.encoding == _FLOAT32:
            return stored
        multipliers = np.frombuffer(self._data, np.uint8, h.positions, self._multipliers)
        # Each step is exact.
        out = np.multiply(stored, np.repeat(multipliers, self.counts)[slots], dtype=np.float32)
        np.subtract(np.float32(4096), out, out=out)
        return np.multiply(out, np.float32(2.0**-18), out=out)

    def slots_of(self, rows: slice) -> slice:
        """Returns the range of used slots of these positions."""
        begin, end, _ = rows.indices(self.header.positions)
        before = int(self.counts[:begin].sum())
        return slice(before, before + int(self.counts[begin:end].sum()))

    def _read_ids(self, at: int, part: slice, size: int) -> np.ndarray:
        begin, end, _ = part.indices(size)
        width = self.header.id_bytes
        place, count = at + width * begin, end - begin
        if width == 3:
            # Reads four bytes from one before each id, which are inside the block, and takes the upper three.
            return (np.ndarray(count, "<u4", self._data, place - 1, (3,)) >> np.uint32(8)).view(np.int32)
        return np.frombuffer(self._data, f"<u{width}", count, place).astype(np.int32)


def opened(data: Bytes) -> Header:
    """Returns the header. Raises ValueError if the bytes are not a block, or don't have the header's size."""
    if len(data) < _HEADER.size:
        raise ValueError(f"block: {len(data)} bytes, fewer than a header has")
    h = Header._make(_HEADER.unpack_from(data))
    if (h.magic, h.version) != (b"SISB", 1) or h.encoding not in _ENCODINGS.values() or not 2 <= h.id_bytes <= 4:
        raise ValueError(f"block: it is of another kind or version: {h.magic!r}, {h.version}, {h.encoding}")
    if not 1 <= h.positions <= MAX_POSITIONS:
        raise ValueError(f"block: {h.positions} positions, must be in [1, {MAX_POSITIONS}]")
    part2, size = _part_2(h)
    if len(data) not in (part2 + size, _HEADER.size + size):
        raise ValueError(f"block: {len(data)} bytes, not the {part2 + size} of its header")
    return h


def _part_2(h: Header) -> Tuple[int, int]:
    """Returns the offset of part 2 in a complete block, and its size in bytes."""
    slot, part1 = (2, 2 * h.positions) if h.encoding == _FIXED16 else (4, h.positions)
    begin = _HEADER.size + _filled(slot * h.used_slots + part1)
    return begin, _filled(5 * h.positions + h.id_bytes * (h.positions + h.used_slots))


def _filled(size: int) -> int:
    return -(-size // 8) * 8


def _id_bytes(vocabulary_size: int) -> int:
    return 2 if vocabulary_size <= 1 << 16 else 3


@functools.lru_cache(maxsize=None)
def _kernels() -> Any:
    """Returns the library, or None. ctypes releases the GIL during its calls."""
    try:
        library = ctypes.CDLL(str(_LIBRARY))
    except OSError as error:
        warnings.warn(
            f"libsis_kernels cannot be loaded: {error}. Records are appended in float32 and without the run's mass",
            RuntimeWarning,
            stacklevel=2,
        )
        return None
    pointer, int32, uint32, uint64 = ctypes.c_void_p, ctypes.c_int32, ctypes.c_uint32, ctypes.c_uint64
    library.sis_pack.argtypes = [
        pointer, uint64, int32, int32, uint32, ctypes.c_double, pointer, uint64, pointer, pointer, uint64,
    ]  # fmt: skip
    library.sis_pack.restype = uint64
    library.sis_read.argtypes = [pointer, uint64, pointer, pointer]
    library.sis_read.restype = ctypes.c_int64
    library.sis_crc32c.argtypes = [uint32, pointer, uint64, uint64]
    library.sis_crc32c.restype = uint32
    return library


def crc32c(crc: int, data: Bytes, begin: int = 0, end: Optional[int] = None) -> int:
    """Returns the CRC-32C of the bytes that gave `crc`, followed by data[begin:end]."""
    end = len(data) if end is None else end
    kernels = _kernels()
    if kernels is not None:
        return kernels.sis_crc32c(crc, _address(np.frombuffer(data, np.uint8)) if len(data) else None, begin, end)
    return _crc32c_by_numpy(crc, np.frombuffer(data, np.uint8, end - begin, begin))


@functools.lru_cache(maxsize=None)
def _crc_table() -> np.ndarray:
    """Returns the CRC of each single byte."""
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = np.where(table & 1, table >> 1 ^ 0x82F63B78, table >> 1).astype(np.uint32)
    return table


def _crc32c_by_numpy(crc: int, data: np.ndarray) -> int:
    """Computes the CRC of many parts at once, then joins neighbours pair by pair."""
    table, bits = _crc_table(), np.arange(32, dtype=np.uint32)
    parts = 1 << max(0, len(data).bit_length() - 6)
    size = len(data) // parts
    # 32 additional parts of zeros give the effect of `size` further bytes on each bit of a state.
    rows = np.zeros((parts + 32, size), np.uint8)
    rows[:parts] = data[: parts * size].reshape(parts, size)
    states = np.concatenate([np.zeros(parts, np.uint32), np.uint32(1) << bits])
    states[0] = ~np.uint32(crc)
    for column in rows.T:
        states = table[(states ^ column) & 255] ^ states >> 8
    states, behind = states[:parts], states[parts:]

    def moved(values: np.ndarray) -> np.ndarray:
        return np.bitwise_xor.reduce(np.where(values[:, None] >> bits & 1, behind, np.uint32(0)), axis=1)

    while len(states) > 1:
        states = moved(states[::2]) ^ states[1::2]
        behind = moved(behind)
    state = int(states[0])
    for byte in data[parts * size :].tolist():
        state = int(table[(state ^ byte) & 255]) ^ state >> 8
    return state ^ 0xFFFFFFFF


def _check_ids(records: Records, vocabulary_size: int, number: int) -> None:
    """Raises Invalid for an id outside the vocabulary, which fewer bytes would turn into another id."""
    for name, values, least in (("sampled_ids", records.sampled_ids, 0), ("top_k_ids", records.ids, -1)):
        wrong = np.argwhere((values < least) | (values >= vocabulary_size))
        if len(wrong):
            position, value = records.first_position + int(wrong[0][0]), values[tuple(wrong[0])]
            raise Invalid(f"{name} at position {position}: {value} is not in [0, {vocabulary_size})", number)


def _packed_by_numpy(records: Records, config: RunConfig) -> bytes:
    first, version, sampled_ids, sampled_log_probs, ids, log_probs = records
    width = _id_bytes(config.vocabulary_size)
    used = ids >= 0
    hit = used & (ids == sampled_ids[:, None])
    ranks = np.where(hit.any(axis=1), hit.argmax(axis=1), _OUTSIDE).astype(np.uint8)
    narrow = [values.astype("<u4").view(np.uint8).reshape(-1, 4)[:, :width] for values in (sampled_ids, ids[used])]
    parts = [
        _joined(log_probs[used].astype("<f4"), ranks),
        _joined(sampled_log_probs.astype("<f4"), used.sum(axis=1).astype(np.uint8), *narrow),
    ]
    h = Header(
        b"SISB", 0, 0, 1, _FLOAT32, width, config.top_k, config.vocabulary_size, first, len(ids), int(used.sum()), version
    )
    blank = crc32c(0, _HEADER.pack(*h))
    crc1, crc2 = (crc32c(blank, part) for part in parts)
    return b"".join([_HEADER.pack(*h._replace(crc1=crc1, crc2=crc2)), *parts])


def _joined(*sections: np.ndarray) -> bytes:
    """Returns a part of a block."""
    part = b"".join(section.tobytes() for section in sections)
    return part + bytes(_filled(len(part)) - len(part))
