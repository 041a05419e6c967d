"""The sparse index of a file of frames: for one frame in every so many bytes its offset, position and publish time.

Derived from the frames and never trusted beyond its checksum: a missing or damaged index is made anew.
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
        """Take note of the frame at `position`, unless the last noted one is near."""
        if not self._positions or position - self._positions[-1] >= self.interval_bytes:
            # Readers look offsets and times up without a lock, so a position is there before they can find it.
            self._positions.append(position)
            self._times.append(time_us)
            self._offsets.append(offset)

    def position_of_offset(self, offset: int) -> int | None:
        """A position at or before the frame that holds `offset`."""
        place = bisect_right(self._offsets, offset) - 1
        return self._positions[place] if place >= 0 else None

    def position_of_time(self, time_us: int) -> int | None:
        """A position at or before the first frame published at `time_us` or later."""
        place = bisect_left(self._times, time_us) - 1
        return self._positions[place] if place >= 0 else None

    def frame_within(self, start: int, limit: int) -> tuple[int, int] | None:
        """Offset and position of the last noted frame behind `start` and up to `limit`; the first behind it if none."""
        positions, count = self._positions, len(self._offsets)
        first = bisect_right(positions, start, hi=count)
        place = max(first, bisect_right(positions, limit, hi=count) - 1)
        return (self._offsets[place], positions[place]) if place < count else None

    def to_bytes(self) -> bytes:
        """Its own checksum is at the end."""
        columns = self._offsets.tobytes() + self._positions.tobytes() + self._times.tobytes()
        data = _HEADER.pack(_MAGIC, self.interval_bytes, len(self)) + columns
        return data + struct.pack("<Q", xxhash.xxh3_64_intdigest(data))

    @classmethod
    def from_bytes(cls, data: bytes) -> Self | None:
        """The index that was made these bytes, or None where they are not what was made."""
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
