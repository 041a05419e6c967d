"""The bytes of one simulated file: what programs see, and what may be on the disk under it.

The disk is written a sector at a time, in any order, at any moment. So each sector written since the file's last
datasync may hold any of the contents it had meanwhile, and the file any of its sizes. Three rules bind them:

* room that the size covers and no data reached reads as zeros;
* a truncation that reached the disk took the bytes behind it away, whatever a sector held before;
* after a *failed* datasync the sectors it should have written are clean in memory and unknown on the disk. Programs
  still see the new bytes, and a later datasync does not write them: only writing them again helps.
"""

import random
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

SECTOR_BYTES = 512
PAGE_BYTES = 4096


class Version(NamedTuple):
    """What a sector held from `time` on."""

    time: int
    data: bytes


class Size(NamedTuple):
    """What the file's size was from `time` on, or to what it was cut at `time`."""

    time: int
    size: int


@dataclass(slots=True)
class Content:
    sector_bytes: int = SECTOR_BYTES
    size: int = 0
    data: bytearray = field(default_factory=bytearray)
    """What programs see; zeros from here to the size."""
    shared: bool = False
    """Another content has the same bytearray."""
    time: int = 0
    """How many changes there were."""
    versions: dict[int, tuple[Version, ...]] = field(default_factory=dict)
    """Of the sectors in doubt, all that they may hold, oldest first."""
    doomed: set[int] = field(default_factory=set)
    """Of the sectors in doubt, those that no datasync will write."""
    sizes: tuple[Size, ...] = (Size(0, 0),)
    size_doomed: bool = False
    truncations: tuple[Size, ...] = ()

    @property
    def is_durable(self) -> bool:
        return not self.versions and len(self.sizes) == 1

    def copy(self) -> "Content":
        """An independent copy; the bytes themselves are copied when one of the two is written to."""
        self.shared = True
        return replace(self, versions=dict(self.versions), doomed=set(self.doomed))

    def read(self, length: int, position: int) -> bytes:
        end = min(position + length, self.size)
        if end <= position:
            return b""
        found = bytes(self.data[position:end])
        return found if len(found) == end - position else found + bytes(end - position - len(found))

    def write(self, data: bytes, position: int) -> None:
        if not data:
            return
        end = position + len(data)
        touched = self._sectors(position, end)
        self._begin(touched)
        self._own()
        _put(self.data, data, position)
        if end > self.size:
            self._grow_by_write(end)
        if end >= self.size:
            self.size_doomed = False
        self._record(touched)

    def allocate(self, end: int) -> None:
        self.time += 1
        self.size_doomed = False
        if end > self.size:
            self._set_size(end)

    def truncate(self, length: int) -> None:
        """Zero a sector behind the cut at once. Those removed keep what they held until the new size is durable."""
        self.size_doomed = False
        self._begin(self._sectors(min(length, len(self.data)), len(self.data)))
        if length < self.size:
            self.truncations = (*self.truncations, Size(self.time, length))
        if length < len(self.data):
            self._own()
            del self.data[length:]
            if length % self.sector_bytes:
                self._record(self._sectors(length, length + 1))
        if length != self.size:
            self._set_size(length)

    def datasync(self) -> None:
        if self.size_doomed:
            self.versions = {sector: self.versions[sector] for sector in self.doomed}
            return
        self.versions = {
            sector: tuple(
                Version(version.time, self.after_truncations(sector, version, self.time))
                for version in self.versions[sector]
            )
            for sector in self.doomed
        }
        self.truncations = ()
        self.sizes = (Size(self.time, self.size),)

    def sync_range(self, start: int, end: int) -> None:
        """What a durable write does with the bytes it wrote; it says nothing of any others."""
        for sector in self._sectors(start, end):
            if sector not in self.doomed:
                self.versions.pop(sector, None)
        if not self.size_doomed:
            self.sizes = tuple(size for size in self.sizes if size.size >= end) or self.sizes[-1:]

    def fail_datasync(self) -> None:
        """What was not durable never will be by a datasync alone, and may or may not have reached the disk."""
        self.doomed = set(self.versions)
        self.size_doomed = len(self.sizes) > 1

    def drop_cache(self, rng: random.Random) -> None:
        """Read again from the disk what a failed datasync left clean in memory; the new bytes may be gone."""
        if not self.doomed:
            return
        self._own()
        for sector in sorted(self.doomed):
            version = rng.choice(self.versions.pop(sector))
            _put(self.data, self.after_truncations(sector, version, self.time), sector * self.sector_bytes)
        del self.data[self.size :]
        self.doomed = set()

    def after_truncations(self, sector: int, version: Version, moment: int) -> bytes:
        """The sector's bytes if it holds `version` and the size is that of `moment`."""
        data = version.data
        for time, length in self.truncations:
            if version.time < time <= moment:
                kept = max(0, length - sector * self.sector_bytes)
                data = data[:kept].ljust(self.sector_bytes, b"\0")
        return data

    def after_cut(self, size: Size, picks: Mapping[int, Version]) -> "Content":
        """The file found with this size, and with these versions of the sectors in doubt."""
        data = bytearray(self.data)
        for sector, version in picks.items():
            _put(data, self.after_truncations(sector, version, size.time), sector * self.sector_bytes)
        del data[size.size :]
        return Content(self.sector_bytes, size.size, data, sizes=(Size(0, size.size),))

    def _sectors(self, start: int, end: int) -> range:
        return range(start // self.sector_bytes, -(-end // self.sector_bytes))

    def _sector(self, sector: int) -> bytes:
        start = sector * self.sector_bytes
        return bytes(self.data[start : start + self.sector_bytes]).ljust(self.sector_bytes, b"\0")

    def _own(self) -> None:
        if self.shared:
            self.data = bytearray(self.data)
            self.shared = False

    def _begin(self, sectors: range) -> None:
        """Keep what the sectors hold before they change."""
        for sector in sectors:
            if sector not in self.versions:
                self.versions[sector] = (Version(self.time, self._sector(sector)),)
        self.time += 1

    def _record(self, sectors: range) -> None:
        """Note what the sectors hold now; it goes to the disk with the next datasync."""
        for sector in sectors:
            self.versions[sector] = (*self.versions[sector], Version(self.time, self._sector(sector)))
        self.doomed.difference_update(sectors)

    def _set_size(self, size: int) -> None:
        self.size = size
        self.sizes = (*self.sizes, Size(self.time, size))

    def _grow_by_write(self, end: int) -> None:
        """A write reaches the disk a page at a time, and the size with it."""
        for size in range((self.size // PAGE_BYTES + 1) * PAGE_BYTES, end, PAGE_BYTES):
            self._set_size(size)
        self._set_size(end)


def _put(data: bytearray, piece: bytes, position: int) -> None:
    if position > len(data):
        data.extend(bytes(position - len(data)))
    data[position : position + len(piece)] = piece
