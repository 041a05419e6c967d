"""Cutting a range of a log into pieces of about equal bytes, by the segments' sparse indexes."""

from bisect import bisect_left
from typing import NamedTuple

from icestream.model.sparse_index import SparseIndex
from icestream.wal import Log
from icestream.wal.recovery import SealedSegment
from icestream.wal.view import Visible


class _Stretch(NamedTuple):
    """One segment's part of the log: offsets `first` to `end`, which begins `before` bytes into the log."""

    first: int
    end: int
    before: int
    sparse: SparseIndex

    def position(self, offset: int) -> int:
        """Bytes of log before the frame that holds `offset`, to within the distance of the index's entries."""
        return self.before + (self.sparse.position_of_offset(offset) or 0)


def cut_range(log: Log, start: int, end: int, *, piece_bytes: int, max_pieces: int) -> list[int]:
    """Where each of the first `max_pieces` pieces of the range ends; the last number is `end` if they reach so far."""
    stretches = _stretches(log, log.visible, start, end)
    cuts: list[int] = []
    offset = start
    while offset < end and len(cuts) < max_pieces:
        offset = min(end, _cut(stretches, offset, piece_bytes))
        cuts.append(offset)
    return cuts


def _cut(stretches: list[_Stretch], start: int, piece_bytes: int) -> int:
    """The first offset that lies `piece_bytes` or more behind the one at `start`."""
    target: int | None = None
    for stretch in stretches:
        if stretch.end <= start:
            continue
        if target is None:
            target = stretch.position(start) + piece_bytes
        offsets = range(max(start + 1, stretch.first), stretch.end)
        place = bisect_left(offsets, target, key=stretch.position)
        if place < len(offsets):
            return offsets[place]
    return stretches[-1].end


def _stretches(log: Log, visible: Visible, start: int, end: int) -> list[_Stretch]:
    found: list[_Stretch] = []
    before = 0
    for segment in visible.sealed:
        first, segment_end = segment.header.base_offset, segment.footer.end_offset
        if segment_end > start and first < end:
            found.append(_Stretch(first, segment_end, before, _index(log, segment)))
        before += segment.footer.position
    active = visible.active
    if visible.end_offset > start:
        found.append(_Stretch(active.header.base_offset, visible.end_offset, before, active.index))
    return found


def _index(log: Log, segment: SealedSegment) -> SparseIndex:
    file = log.context.files.open(segment.path)
    try:
        return log.indexes.get(segment, file)
    finally:
        file.close()
