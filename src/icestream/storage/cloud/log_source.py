"""A log as the uploader's source of frames, and the uploader's notes in the log's directory."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import structlog

from icestream.cloud import LogPosition, LogRange, SegmentSlice, UploadNotes
from icestream.model.enums import SyncMode
from icestream.model.errors import DamagedError, UnavailableError
from icestream.model.frames import HEADER_BYTES as FRAME_HEADER_BYTES
from icestream.model.frames import SparseIndex, decode_header
from icestream.model.messages import Frame
from icestream.wal import (
    PRODUCERS_SUFFIX,
    SEGMENT_HEADER_BYTES,
    ActiveSegment,
    File,
    Log,
    LogSnapshot,
    Producers,
    SealedSegment,
    SegmentHeader,
    damaged_segment,
    find_segment,
    read_record,
    scan_sound,
    segment_path,
    write_record,
)

NOTES_FILE = "upload.json"
MAX_PARTS = 256
"""Segments in one object: its descriptor has to stay small."""
_NO_LIMIT = 1 << 62
_log = structlog.get_logger(__name__)


class SegmentSpan(NamedTuple):
    """The durable part of a segment."""

    segment: SealedSegment | ActiveSegment
    limit: int
    end_offset: int

    @property
    def header(self) -> SegmentHeader:
        return self.segment.header

    @property
    def path(self) -> Path:
        return self.segment.path

    def start(self, place: LogPosition) -> int:
        """Return the first byte of the segment in a range that begins at a position."""
        return place.byte_pos if place.file_seq == self.header.number else SEGMENT_HEADER_BYTES


class LogSource:
    """`icestream.cloud.object_builder.FrameSource` over a log. For one cycle at a time."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._synced = log.context.options.sync_mode is SyncMode.ALWAYS
        self._producers: LogProducers | None = None
        """The producers after the last range, so that the next one need not find them again."""

    @property
    def epoch(self) -> int:
        return self._log.stream.epoch

    @property
    def schemas(self) -> dict[int, str]:
        return self._log.stream.schemas

    def bounds(self) -> tuple[int, int]:
        snapshot = self._look()
        return snapshot.start_offset, snapshot.end_offset

    def _look(self) -> LogSnapshot:
        """Return what may be uploaded. Readers may see frames that a power cut removes; objects must not have them."""
        snapshot = self._log.snapshot
        if not self._synced:
            self._log.sync()
        return snapshot

    def plan(self, first_offset: int, hint: LogPosition, max_bytes: int | None) -> LogRange | None:
        snapshot = self._look()
        if first_offset >= snapshot.end_offset:
            return None
        start = self._locate(snapshot, first_offset, hint)
        if start is None:
            raise DamagedError(
                f"everything below offset {first_offset} is uploaded, but no frame of the log begins there",
                operation="upload",
                place=self._log.stream.topic,
                remedy="the log was repaired or replaced; look with `icestream verify`",
            )
        room = max_bytes if max_bytes is not None else _NO_LIMIT
        end, end_offset = start, first_offset
        resets = {reset.offset for reset in self._log.stream.clock_resets}
        for span in _segment_spans(snapshot, start)[:MAX_PARTS]:
            if end_offset > first_offset and span.header.base_offset in resets:
                break  # publish times never go back within an object
            position = span.start(start)
            length = span.limit - position
            if length > room:
                first = end_offset == first_offset
                end, end_offset = self._cut(span, position, room, first=first) or (end, end_offset)
                if end_offset > first_offset:
                    break
            if length:
                end, end_offset = LogPosition(span.header.number, span.limit), span.end_offset
            room -= length
            if room <= 0:
                break
        return LogRange(first_offset, end_offset, start, end)

    def _cut(self, span: SegmentSpan, position: int, room: int, *, first: bool) -> tuple[LogPosition, int] | None:
        """Return the last indexed position in a segment that fits; with `first`, the next one, to make progress."""
        found = self._index(span).frame_within(position, position + room)
        if found is None or found[1] >= span.limit or (found[1] > position + room and not first):
            return None
        return LogPosition(span.header.number, found[1]), found[0]

    def find_range(self, first_offset: int, end_offset: int) -> LogRange | None:
        snapshot = self._look()
        if not snapshot.start_offset <= first_offset < end_offset <= snapshot.end_offset:
            return None
        start, end = self._locate(snapshot, first_offset), self._locate(snapshot, end_offset)
        return LogRange(first_offset, end_offset, start, end) if start is not None and end is not None else None

    @contextmanager
    def slices(self, log_range: LogRange) -> Iterator[Iterator[SegmentSlice]]:
        log = self._log
        with log.leases.lock:
            snapshot = log.snapshot
            if log_range.first_offset < snapshot.start_offset:
                raise self._pruned(log_range)
            lease = log.leases.take(log_range.first_offset)
        try:
            yield self._slices(snapshot, log_range)
        except FileNotFoundError as error:
            if log_range.first_offset < log.start_offset:
                raise self._pruned(log_range) from error
            raise damaged_segment(
                Path(error.filename), 0, "the segment's file is missing", log_range.first_offset
            ) from error
        finally:
            log.leases.release(lease)

    def _slices(self, snapshot: LogSnapshot, log_range: LogRange) -> Iterator[SegmentSlice]:
        for span in _segment_spans(snapshot, log_range.start):
            number, start = span.header.number, span.start(log_range.start)
            end = log_range.end.byte_pos if number == log_range.end.file_seq else span.limit
            if number > log_range.end.file_seq or start >= end:
                continue
            with self._open(span) as file:
                yield SegmentSlice(file, str(span.path), number, span.header.seed, start, end)

    @contextmanager
    def _open(self, span: SegmentSpan) -> Iterator[File]:
        file = self._log.context.files.open(span.path)
        try:
            yield file
        finally:
            file.close()

    def producers(self, log_range: LogRange) -> "LogProducers":
        """Return the producers before a range: known from the last range, or read from the segment it begins in."""
        known = self._producers
        if known is None or known.offset != log_range.first_offset:
            known = self._restored(log_range)
        self._producers = known
        return known

    def _restored(self, log_range: LogRange) -> "LogProducers":
        log = self._log
        span = _segment_spans(log.snapshot, log_range.start)[0]
        base_offset = span.header.base_offset
        state = Producers(log.context.options.max_producers)
        state.load(log.context.files, segment_path(log.directory, base_offset, PRODUCERS_SUFFIX))
        found = LogProducers(state, base_offset)
        with self._open(span) as file:
            for _, frame in scan_sound(
                file, span.path, SEGMENT_HEADER_BYTES, log_range.start.byte_pos, span.header.seed
            ):
                found.note(frame)
        return found

    def _locate(self, snapshot: LogSnapshot, offset: int, hint: LogPosition | None = None) -> LogPosition | None:
        """Return the position of the frame that begins with an offset; None if no frame begins there."""
        if offset == snapshot.end_offset:
            return LogPosition(snapshot.active.header.number, snapshot.active_position)
        header = find_segment(snapshot, offset).header
        if offset == header.base_offset:
            return LogPosition(header.number, SEGMENT_HEADER_BYTES)
        span = next(span for span in _segment_spans(snapshot) if span.header.number == header.number)
        with self._open(span) as file:
            if (
                hint is not None
                and hint.file_seq == header.number
                and SEGMENT_HEADER_BYTES <= hint.byte_pos < span.limit
            ):
                found = memoryview(file.read(FRAME_HEADER_BYTES, hint.byte_pos))
                fields = decode_header(found, 0, header.seed + hint.byte_pos)
                if fields is not None and fields[0] == offset:
                    return hint
            start = self._index(span).position_of_offset(offset) or SEGMENT_HEADER_BYTES
            for position, frame in scan_sound(file, span.path, start, span.limit, header.seed):
                if frame.base_offset >= offset:
                    return LogPosition(header.number, position) if frame.base_offset == offset else None
        return None

    def _index(self, span: SegmentSpan) -> SparseIndex:
        if isinstance(span.segment, ActiveSegment):
            return span.segment.index
        with self._open(span) as file:
            return self._log.indexes.get(span.segment, file)

    def _pruned(self, log_range: LogRange) -> UnavailableError:
        return UnavailableError(
            f"offset {log_range.first_offset} was pruned from the log while it was to be uploaded",
            operation="upload",
            place=self._log.stream.topic,
        )


class LogProducers:
    """`icestream.cloud.object_builder.ProducerTracker` by the log's own rules."""

    def __init__(self, state: Producers, offset: int) -> None:
        self._state = state
        self.offset = offset
        """The offset of the next frame."""

    def note(self, frame: Frame) -> None:
        self.offset = frame.end_offset
        self._state.note_frame(frame)

    def to_bytes(self) -> bytes:
        return self._state.to_bytes()


class LogNotes:
    """`icestream.cloud.uploader.NotesFile` in the log's directory."""

    def __init__(self, log: Log) -> None:
        self._files = log.context.files
        self._path = log.directory / NOTES_FILE

    @property
    def name(self) -> str:
        return str(self._path)

    def load(self) -> UploadNotes | None:
        if not self._files.exists(self._path):
            return None
        try:
            return UploadNotes.from_fields(read_record(self._files, self._path))
        except DamagedError as error:
            _log.warning("upload_notes_damaged", error=str(error))
            return None

    def save(self, notes: UploadNotes) -> None:
        write_record(self._files, self._path, notes.to_fields())


def _segment_spans(snapshot: LogSnapshot, start: LogPosition | None = None) -> list[SegmentSpan]:
    """Return the segments from the one with a position on."""
    spans = [SegmentSpan(segment, segment.footer.position, segment.footer.end_offset) for segment in snapshot.sealed]
    spans.append(SegmentSpan(snapshot.active, snapshot.active_position, snapshot.end_offset))
    return [span for span in spans if start is None or span.header.number >= start.file_seq]
