"""The sparse index of a file of frames: offset, position and publish time of about one frame per interval of bytes.

It is derived from the frames and has a checksum. A missing or damaged index is rebuilt.
"""

import struct
from array import array
from bisect import bisect_left, bisect_right
from typing import Self

import xxhash

_HEADER = struct.Struct("<8sQQ")
_MAGIC = b"ICEIDX\x00\x01"


class SparseIndex:
    def __init__(self, interval_bytes: int) -> None:
        self.interval_bytes = interval_bytes
        self._offsets = array("q")
        self._positions = array("q")
        self._times = array("q")

    def __len__(self) -> int:
        return len(self._offsets)

    def add(self, offset: int, position: int, time_us: int) -> None:
        """Add the frame at `position`, unless the last added one is within the interval."""
        if not self._positions or position - self._positions[-1] >= self.interval_bytes:
            # Readers look up offsets and times without a lock, so the position must be there first.
            self._positions.append(position)
            self._times.append(time_us)
            self._offsets.append(offset)

    def position_of_offset(self, offset: int) -> int | None:
        """Return a position at or before the frame with `offset`."""
        index = bisect_right(self._offsets, offset) - 1
        return self._positions[index] if index >= 0 else None

    def position_of_time(self, time_us: int) -> int | None:
        """Return a position at or before the first frame published at `time_us` or later."""
        index = bisect_left(self._times, time_us) - 1
        return self._positions[index] if index >= 0 else None

    def frame_within(self, start: int, limit: int) -> tuple[int, int] | None:
        """Return offset and position of the last entry after `start` up to `limit`; the first after `start` if none."""
        positions, count = self._positions, len(self._offsets)
        first = bisect_right(positions, start, hi=count)
        index = max(first, bisect_right(positions, limit, hi=count) - 1)
        return (self._offsets[index], positions[index]) if index < count else None

    def to_bytes(self) -> bytes:
        """Return the bytes, with a checksum at the end."""
        columns = self._offsets.tobytes() + self._positions.tobytes() + self._times.tobytes()
        data = _HEADER.pack(_MAGIC, self.interval_bytes, len(self)) + columns
        return data + struct.pack("<Q", xxhash.xxh3_64_intdigest(data))

    @classmethod
    def from_bytes(cls, data: bytes) -> Self | None:
        """Return the index that `to_bytes` wrote, or None if the bytes are damaged."""
        if len(data) < _HEADER.size + 8 or xxhash.xxh3_64_intdigest(data[:-8]) != int.from_bytes(data[-8:], "little"):
            return None
        magic, interval_bytes, count = _HEADER.unpack_from(data)
        if magic != _MAGIC or len(data) != _HEADER.size + 24 * count + 8:
            return None
        index = cls(interval_bytes)
        width = 8 * count
        for number, column in enumerate((index._offsets, index._positions, index._times)):
            start = _HEADER.size + number * width
            column.frombytes(data[start : start + width])
        return index
