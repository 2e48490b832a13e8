"""Memory shared with a server on the same machine: arrays in it need not travel."""

from __future__ import annotations

import collections
import math
import mmap
import os
import struct
import threading
import weakref
from ctypes import addressof, c_char
from typing import Any, Callable, Deque, List, NamedTuple, Optional, Sequence, Tuple

import grpc
import numpy as np

from sis import errors
from sis.v1 import ratio_service_pb2 as pb

# Arrays that a segment hands out, and those of answers, begin at a multiple of it.
ALIGNMENT = 64
# Where an array lies, as messages say it: offset and size.
_PART = struct.Struct("<QQ")


def _address(array: np.ndarray) -> int:
    return array.__array_interface__["data"][0]


def aligned(size: int) -> int:
    """The next multiple of the alignment."""
    return -(-size // ALIGNMENT) * ALIGNMENT


class _Range(NamedTuple):
    start: int
    stop: int


class _Allocator:
    """Hands out aligned ranges of a segment, the first that is large enough. Thread-safe."""

    def __init__(self, size: int) -> None:
        self._lock = threading.Lock()
        # In order, never side by side; guarded by _lock.
        self._free: List[_Range] = [_Range(0, size)]
        # Ranges whose arrays are gone. The garbage collector may say so at any moment, even while
        # the lock is held.
        self._returned: Deque[_Range] = collections.deque()

    def take(self, size: int) -> Optional[_Range]:
        """None if there is no such range."""
        size = max(aligned(size), ALIGNMENT)
        with self._lock:
            self._collect()
            for index, free in enumerate(self._free):
                if free.stop - free.start >= size:
                    return self._cut(index, size)
        return None

    def take_largest(self) -> Optional[_Range]:
        with self._lock:
            self._collect()
            if not self._free:
                return None
            index = max(range(len(self._free)), key=lambda i: self._free[i].stop - self._free[i].start)
            return self._cut(index, self._free[index].stop - self._free[index].start)

    def give_back(self, part: _Range) -> None:
        if part.start < part.stop:
            self._returned.append(part)

    def _cut(self, index: int, size: int) -> _Range:
        free = self._free[index]
        part = _Range(free.start, free.start + size)
        self._free[index : index + 1] = [_Range(part.stop, free.stop)] if part.stop < free.stop else []
        return part

    def _collect(self) -> None:
        while self._returned:
            self._free.append(self._returned.popleft())
        merged: List[_Range] = []
        for part in sorted(self._free):
            if merged and merged[-1].stop == part.start:
                part = _Range(merged.pop().start, part.stop)
            merged.append(part)
        self._free = merged


class Segment:
    """Shared memory, leased from the server until close(), or until server or client end. A context
    manager.

    Arrays in it that are given to evaluate are read by the server where they are; so is what
    fetch_top_k is told to put there. They stay valid, as memory of this process alone, when the
    lease ends. Thread-safe.
    """

    def __init__(self, lease: Any, name: str, path: str, size: int, alignment: int = 0) -> None:
        """`lease` is the call that holds it, `name` what messages call it, `path` the POSIX
        object's. alignment: of the arrays in requests, as the server says it; 0 from an older server."""
        self.name = name
        # In bytes: messages can refer to arrays that begin at a multiple of it.
        self.alignment = alignment or ALIGNMENT
        # In bytes.
        self.size = size
        self._lease = lease
        file = os.open(path, os.O_RDWR)
        try:
            self._memory: Optional[mmap.mmap] = mmap.mmap(file, size)
            # Nothing is left behind now, however client and server end.
            os.unlink(path)
        finally:
            os.close(file)
        self._mapped = weakref.ref(self._memory)
        self._address = _address(np.frombuffer(self._memory, np.uint8))
        self._allocator = _Allocator(size)
        # Arrays that the server may still read, though nobody waits for it.
        self._abandoned: List[np.ndarray] = []

    def empty(self, shape: Any, dtype: Any = np.float32) -> np.ndarray:
        """An array in the segment, uninitialised; torch.from_numpy takes it.

        Its memory is used again when it and all views of it are gone. MemoryError if there is no
        room, NotFound if the lease is over.
        """
        self.check()
        shape = (shape,) if isinstance(shape, int) else tuple(shape)
        size = math.prod(shape) * np.dtype(dtype).itemsize
        part = self._allocator.take(size)
        if part is None:
            raise MemoryError(f"segment of {self.size} bytes: no {size} in a row are free")
        return self.array(part, size).view(dtype).reshape(shape)

    def close(self) -> None:
        """Ends the lease."""
        self._lease.cancel()
        self._memory = None
        # None of it is handed out again.
        self._abandoned.clear()

    def __enter__(self) -> Segment:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def ended(self) -> bool:
        """Whether the lease is over."""
        return self._memory is None or not self._lease.is_active()

    def check(self) -> None:
        """Raises NotFound if the lease is over."""
        if self.ended:
            raise errors.from_status(grpc.StatusCode.NOT_FOUND, f"segment '{self.name}': its lease has ended")

    def holds(self, array: np.ndarray) -> bool:
        """Whether all of the array lies here."""
        address = _address(array)
        inside = self._address <= address and address + array.nbytes <= self._address + self.size
        return inside and array.nbytes > 0 and self._mapped() is not None

    def refer_all(self, arrays: Sequence[np.ndarray]) -> Optional[List[bytes]]:
        """`refer` of each; None if messages can't refer to all of them."""
        if self._mapped() is None:
            return None
        places = []
        for array in arrays:
            try:
                # Of what is contiguous and may be written to; it takes a quarter of the time.
                address = addressof(c_char.from_buffer(array))
            except (TypeError, ValueError):
                if not array.flags.c_contiguous:
                    return None
                address = _address(array)
            size, begins = array.nbytes, address - self._address
            if size == 0 or not 0 <= begins <= self.size - size or begins % self.alignment:
                return None
            places.append(_PART.pack(begins, size))
        return places

    def abandon(self, arrays: Sequence[np.ndarray]) -> None:
        """Never uses the memory of these again."""
        self._abandoned.extend(arrays)

    def place(self, array: np.ndarray) -> np.ndarray:
        """The array, if messages can refer to it; else a copy of it here."""
        if self.refer_all([array]) is not None:
            return array
        copy = self.empty(array.shape, array.dtype)
        copy[...] = array
        return copy

    def refer(self, array: np.ndarray) -> bytes:
        """What stands in a message for an array that messages can refer to."""
        if array.nbytes == 0:
            return b""
        return _PART.pack(_address(array) - self._address, array.nbytes)

    def read_arrays(self, response: pb.EvaluateResponse) -> None:
        """Puts the arrays that an answer refers to into it."""
        for field, value in response.ListFields():
            if field.type == field.TYPE_BYTES:
                offset, size = _PART.unpack(value)
                setattr(response, field.name, self._mapping()[offset : offset + size])

    @property
    def mapped(self) -> bool:
        """Whether there are arrays in it, or can be."""
        return self._mapped() is not None

    def largest_room(self) -> Room:
        """All that is free in a row, for an answer of unknown length. MemoryError if nothing is
        free."""
        part = self._allocator.take_largest()
        if part is None:
            raise MemoryError(f"segment of {self.size} bytes: nothing is free")
        return Room(self, part, self._allocator.give_back)

    def room(self, size: int) -> Optional[Room]:
        """For an answer; None if there is none."""
        part = self._allocator.take(size)
        return None if part is None else Room(self, part, self._allocator.give_back)

    def _mapping(self) -> mmap.mmap:
        memory = self._mapped()
        if memory is None:
            self.check()
            raise AssertionError("an open segment is mapped")
        return memory

    def array(self, part: _Range, size: int) -> np.ndarray:
        """uint8 [size], from the beginning of a range which is given back when it goes."""
        block = np.frombuffer(self._mapping(), np.uint8, size, part.start)
        # A view's base is the array that it is of, whatever lies between: so this one goes with the
        # last view.
        weakref.finalize(block, self._allocator.give_back, part).atexit = False
        return block


class Room:
    """A range of a segment that an answer may go to. A context manager: what is not kept is given
    back.

    After an error that may leave the server at work on the call, the range is never used again.
    """

    def __init__(self, segment: Segment, part: _Range, give_back: Callable[[_Range], None]) -> None:
        self._segment = segment
        self._part = part
        self._give_back = give_back
        self._calls = 1

    def to_proto(self) -> pb.SegmentRange:
        return pb.SegmentRange(offset=self._part.start, bytes=self._part.stop - self._part.start)

    def split(self, sizes: Sequence[int]) -> List[pb.SegmentRange]:
        """Consecutive parts of these sizes, for as many calls."""
        self._calls = len(sizes)
        starts = [self._part.start]
        for size in sizes:
            starts.append(starts[-1] + aligned(size))
        return [pb.SegmentRange(offset=start, bytes=size) for start, size in zip(starts, sizes)]

    def keep(self, parts: Sequence[Tuple[bytes, Any]]) -> List[np.ndarray]:
        """The arrays at these parts, with their dtypes: they keep the memory, the rest of the room
        is given back."""
        begin, end = self._part
        places = [_PART.unpack(part) for part, _ in parts]
        stop = min(aligned(max(offset + size for offset, size in places)), end)
        block = self._segment.array(_Range(begin, stop), stop - begin)
        self._part = _Range(stop, end)
        return [
            block[offset - begin : offset - begin + size].view(dtype) for (offset, size), (_, dtype) in zip(places, parts)
        ]

    def __enter__(self) -> Room:
        return self

    def __exit__(self, _: object, exception: Optional[BaseException], *__: object) -> None:
        refused = isinstance(exception, errors.Error) and not errors.is_unreachable(exception) and self._calls == 1
        if exception is None or refused:
            self._give_back(self._part)


def has_abandoned(segment: Segment) -> bool:
    """Whether some of its memory is never used again."""
    return bool(segment._abandoned)
