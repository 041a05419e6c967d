"""Splitting a range of a log's offsets into ranges of about equal bytes, by the segments' sparse indexes."""

from bisect import bisect_left
from typing import NamedTuple

from icestream.model.frames import SparseIndex
from icestream.wal.log import Log
from icestream.wal.segment import LogSnapshot, SealedSegment


class _SegmentRange(NamedTuple):
    """One segment's part of the log: offsets `first` to `end`, which begins `before` bytes into the log."""

    first: int
    end: int
    before: int
    sparse: SparseIndex

    def position(self, offset: int) -> int:
        """Return the bytes of log before the frame that holds `offset`, as precisely as the index tells."""
        return self.before + (self.sparse.position_of_offset(offset) or 0)


def split_range(log: Log, start: int, end: int, *, range_bytes: int, max_ranges: int) -> list[int]:
    """Return where each of the first `max_ranges` ranges ends; the last number is `end` if they reach so far."""
    segments = _segment_ranges(log, log.snapshot, start, end)
    cuts: list[int] = []
    offset = start
    while offset < end and len(cuts) < max_ranges:
        offset = min(end, _cut(segments, offset, range_bytes))
        cuts.append(offset)
    return cuts


def _cut(segments: list[_SegmentRange], start: int, range_bytes: int) -> int:
    """Return the first offset that lies `range_bytes` or more after the one at `start`."""
    target: int | None = None
    for segment in segments:
        if segment.end <= start:
            continue
        if target is None:
            target = segment.position(start) + range_bytes
        offsets = range(max(start + 1, segment.first), segment.end)
        index = bisect_left(offsets, target, key=segment.position)
        if index < len(offsets):
            return offsets[index]
    return segments[-1].end


def _segment_ranges(log: Log, snapshot: LogSnapshot, start: int, end: int) -> list[_SegmentRange]:
    found: list[_SegmentRange] = []
    before = 0
    for segment in snapshot.sealed:
        first, segment_end = segment.header.base_offset, segment.footer.end_offset
        if segment_end > start and first < end:
            found.append(_SegmentRange(first, segment_end, before, _sparse_index(log, segment)))
        before += segment.footer.position
    active = snapshot.active
    if snapshot.end_offset > start:
        found.append(_SegmentRange(active.header.base_offset, snapshot.end_offset, before, active.index))
    return found


def _sparse_index(log: Log, segment: SealedSegment) -> SparseIndex:
    file = log.context.files.open(segment.path)
    try:
        return log.indexes.get(segment, file)
    finally:
        file.close()
