"""Reading a log: from the cache if it holds the offset, else from the segments, never past the durable end.

A reader keeps its position in the file between calls, so reading on needs no search. It has a lease on what it reads,
see `read_leases`. If retention has removed its offset, a read raises `OffsetOutOfRangeError`.
"""

from bisect import bisect_left, bisect_right
from pathlib import Path
from typing import NamedTuple

from icestream.model.errors import OffsetOutOfRangeError
from icestream.model.frames import Scan, SparseIndex
from icestream.model.messages import Frame
from icestream.wal.files import File
from icestream.wal.log import Log
from icestream.wal.segment import (
    SEGMENT_HEADER_BYTES,
    ActiveSegment,
    LogSnapshot,
    SealedSegment,
    damaged_segment,
    scan_sound,
)

DEFAULT_READ_BYTES = 1 << 20


class LogReader:
    """One reader of a log. Not thread-safe: each thread needs its own."""

    def __init__(self, log: Log, offset: int) -> None:
        self._log = log
        self._file: File | None = None
        self._path: Path | None = None
        self._position = 0
        with log.leases.lock:
            check_offset(log, offset)
            self._lease = log.leases.take(offset)

    @property
    def offset(self) -> int:
        """The offset of the next message."""
        return self._lease.offset

    def jump(self, offset: int) -> None:
        """Continue at another offset."""
        self._leave_file()
        self._lease.offset = offset

    def read(self, max_bytes: int = DEFAULT_READ_BYTES) -> list[Frame]:
        """Return the next frames, about `max_bytes` and at least one; none at the durable end.

        The first frame may begin before the reader's offset, if the offset lies within a batch.
        """
        snapshot = self._log.snapshot
        if self.offset >= snapshot.end_offset:
            return []
        frames = self._log.cache.read(self.offset, max_bytes)
        if frames:
            self._leave_file()
        else:
            try:
                frames = self._read_file(snapshot, max_bytes)
            except FileNotFoundError as error:
                check_offset(self._log, self.offset)  # raises if the segment was pruned meanwhile
                raise damaged_segment(Path(error.filename), 0, "the segment's file is missing", self.offset) from error
        self._lease.offset = frames[-1].end_offset
        return frames

    def wait(self, timeout: float | None = None) -> bool:
        """Sleep until there is a message to read. Return False if the time is up before."""
        return self._log.wait_past(self.offset, timeout)

    def close(self) -> None:
        self._leave_file()
        self._log.leases.release(self._lease)

    def _leave_file(self) -> None:
        if self._file is not None:
            self._file.close()
        self._file = self._path = None

    def _read_file(self, snapshot: LogSnapshot, max_bytes: int) -> list[Frame]:
        if self.offset < snapshot.start_offset:
            check_offset(self._log, self.offset)
        segment = find_segment(snapshot, self.offset)
        limit = segment.footer.position if isinstance(segment, SealedSegment) else snapshot.active_position
        if self._path != segment.path:
            self._seek(segment)
        assert self._file is not None
        frames: list[Frame] = []
        position = self._position
        while not frames:  # the index may point to a position well before the offset
            scan = Scan(self._file, position, limit, seed=segment.header.seed, read_bytes=max_bytes, one_read=True)
            frames += [complete.frame for _, complete in scan if complete.frame.end_offset > self.offset]
            if scan.stop is not None or scan.position == position:
                reached = frames[-1].end_offset if frames else self.offset
                raise damaged_segment(segment.path, scan.position, scan.stop or "frames are missing", reached)
            position = scan.position
        self._position = position
        if position >= limit and isinstance(segment, SealedSegment):
            self._leave_file()
        return frames

    def _seek(self, segment: SealedSegment | ActiveSegment) -> None:
        self._leave_file()
        file = self._log.context.files.open(segment.path)
        index = self._log.indexes.get(segment, file) if isinstance(segment, SealedSegment) else segment.index
        self._file, self._path = file, segment.path
        self._position = index.position_of_offset(self.offset) or SEGMENT_HEADER_BYTES


def find_segment(snapshot: LogSnapshot, offset: int) -> SealedSegment | ActiveSegment:
    index = bisect_right(snapshot.sealed, offset, key=lambda segment: segment.header.base_offset) - 1
    if index >= 0 and offset < snapshot.sealed[index].footer.end_offset:
        return snapshot.sealed[index]
    return snapshot.active


def check_offset(log: Log, offset: int) -> None:
    """Raise unless the log has the offset, or it is the next one."""
    snapshot = log.snapshot
    if not snapshot.start_offset <= offset <= snapshot.end_offset:
        raise OffsetOutOfRangeError(
            f"offset {offset} is not in the log, which holds {snapshot.start_offset} to {snapshot.end_offset - 1}",
            operation="read",
            place=log.stream.topic,
            remedy="start at earliest, latest or an offset in between",
            details={"start_offset": snapshot.start_offset, "durable_end": snapshot.end_offset},
        )


def offset_at_time(log: Log, time_us: int) -> int:
    """Return the first offset in the log published at or after a time; the durable end if there is none.

    Messages before a clock reset were published before it, whatever their times say.
    """
    while True:
        snapshot = log.snapshot
        try:
            return _offset_at_time(log, snapshot, time_us)
        except FileNotFoundError as error:
            if log.start_offset == snapshot.start_offset:
                raise damaged_segment(
                    Path(error.filename), 0, "the segment's file is missing", snapshot.start_offset
                ) from error


def _offset_at_time(log: Log, snapshot: LogSnapshot, time_us: int) -> int:
    first = log.stream.reset_before(time_us)
    segments: list[SealedSegment | ActiveSegment] = [*snapshot.sealed, snapshot.active]
    for segment in segments:
        if segment.header.base_offset < first:  # a reset begins a segment
            continue
        if isinstance(segment, SealedSegment):
            last_time_us, limit = segment.footer.last_time_us, segment.footer.position
        else:
            last_time_us, limit = segment.last_time_us, snapshot.active_position
        if last_time_us < time_us:
            continue
        file = log.context.files.open(segment.path)
        try:
            index = log.indexes.get(segment, file) if isinstance(segment, SealedSegment) else segment.index
            start = index.position_of_time(time_us) or SEGMENT_HEADER_BYTES
            for _, frame in scan_sound(file, segment.path, start, limit, segment.header.seed):
                if frame.publish_time_us >= time_us:
                    return frame.base_offset
        finally:
            file.close()
    return snapshot.end_offset


def time_at_offset(log: Log, offset: int) -> int:
    """Return the publish time of the message at an offset; the present time at the durable end."""
    reader = LogReader(log, offset)
    try:
        return next((frame.publish_time_us for frame in reader.read(max_bytes=1)), log.context.clock())
    finally:
        reader.close()


# Splitting a range of offsets into ranges of about equal bytes, by the segments' sparse indexes


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
