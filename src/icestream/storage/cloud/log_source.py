"""A log as the uploader sees it, and the uploader's notes beside it."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import structlog

from icestream.cloud import LogPosition, LogRange, SegmentSlice, UploadNotes
from icestream.model.enums import SyncMode
from icestream.model.errors import DamagedError, UnavailableError
from icestream.model.frame_bytes import HEADER_BYTES as FRAME_HEADER_BYTES
from icestream.model.frame_bytes import decode_header
from icestream.model.frames import Frame
from icestream.model.sparse_index import SparseIndex
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
"""Segments in one object: its description has to stay small."""
_NO_LIMIT = 1 << 62
_log = structlog.get_logger(__name__)


class SegmentSpan(NamedTuple):
    """What is durable of a segment."""

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
        """The first byte that a range from a place on has of it."""
        return place.byte_pos if place.file_seq == self.header.number else SEGMENT_HEADER_BYTES


class LogSource:
    """`icestream.cloud.object_builder.FrameSource` over a log. For one cycle at a time."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._synced = log.context.options.sync_mode is SyncMode.ALWAYS
        self._producers: LogProducers | None = None
        """After the last log_range, so that they need not be found again for the next."""

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
        """What may be shipped: readers may see frames that a power cut would take back, an object may not have them."""
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
        for piece in _pieces(snapshot, start)[:MAX_PARTS]:
            position = piece.start(start)
            length = piece.limit - position
            if length > room:
                first = end_offset == first_offset
                end, end_offset = self._cut(piece, position, room, first=first) or (end, end_offset)
                if end_offset > first_offset:
                    break
            if length:
                end, end_offset = LogPosition(piece.header.number, piece.limit), piece.end_offset
            room -= length
            if room <= 0:
                break
        return LogRange(first_offset, end_offset, start, end)

    def _cut(self, piece: SegmentSpan, position: int, room: int, *, first: bool) -> tuple[LogPosition, int] | None:
        """The last place in a segment that its index knows and that there is room for; if `first`, one too far."""
        found = self._index(piece).frame_within(position, position + room)
        if found is None or found[1] >= piece.limit or (found[1] > position + room and not first):
            return None
        return LogPosition(piece.header.number, found[1]), found[0]

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
        for piece in _pieces(snapshot, log_range.start):
            number, start = piece.header.number, piece.start(log_range.start)
            end = log_range.end.byte_pos if number == log_range.end.file_seq else piece.limit
            if number > log_range.end.file_seq or start >= end:
                continue
            with self._open(piece) as file:
                yield SegmentSlice(file, str(piece.path), number, piece.header.seed, start, end)

    @contextmanager
    def _open(self, piece: SegmentSpan) -> Iterator[File]:
        file = self._log.context.files.open(piece.path)
        try:
            yield file
        finally:
            file.close()

    def producers(self, log_range: LogRange) -> "LogProducers":
        """From the last log_range if this one follows on it, else from the segment that it begins in."""
        known = self._producers
        if known is None or known.offset != log_range.first_offset:
            known = self._restored(log_range)
        self._producers = known
        return known

    def _restored(self, log_range: LogRange) -> "LogProducers":
        log = self._log
        piece = _pieces(log.snapshot, log_range.start)[0]
        base_offset = piece.header.base_offset
        state = Producers(log.context.options.max_producers)
        state.load(log.context.files, segment_path(log.directory, base_offset, PRODUCERS_SUFFIX))
        found = LogProducers(state, base_offset)
        with self._open(piece) as file:
            for _, frame in scan_sound(
                file, piece.path, SEGMENT_HEADER_BYTES, log_range.start.byte_pos, piece.header.seed
            ):
                found.note(frame)
        return found

    def _locate(self, snapshot: LogSnapshot, offset: int, hint: LogPosition | None = None) -> LogPosition | None:
        """Where the frame begins that begins with an offset; None if that lies within a frame."""
        if offset == snapshot.end_offset:
            return LogPosition(snapshot.active.header.number, snapshot.active_position)
        header = find_segment(snapshot, offset).header
        if offset == header.base_offset:
            return LogPosition(header.number, SEGMENT_HEADER_BYTES)
        piece = next(piece for piece in _pieces(snapshot) if piece.header.number == header.number)
        with self._open(piece) as file:
            if (
                hint is not None
                and hint.file_seq == header.number
                and SEGMENT_HEADER_BYTES <= hint.byte_pos < piece.limit
            ):
                found = memoryview(file.read(FRAME_HEADER_BYTES, hint.byte_pos))
                fields = decode_header(found, 0, header.seed + hint.byte_pos)
                if fields is not None and fields[0] == offset:
                    return hint
            start = self._index(piece).position_of_offset(offset) or SEGMENT_HEADER_BYTES
            for position, frame in scan_sound(file, piece.path, start, piece.limit, header.seed):
                if frame.base_offset >= offset:
                    return LogPosition(header.number, position) if frame.base_offset == offset else None
        return None

    def _index(self, piece: SegmentSpan) -> SparseIndex:
        if isinstance(piece.segment, ActiveSegment):
            return piece.segment.index
        with self._open(piece) as file:
            return self._log.indexes.get(piece.segment, file)

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
        """The next frame's."""

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


def _pieces(snapshot: LogSnapshot, start: LogPosition | None = None) -> list[SegmentSpan]:
    """The segments from the one on that a place lies in."""
    pieces = [SegmentSpan(segment, segment.footer.position, segment.footer.end_offset) for segment in snapshot.sealed]
    pieces.append(SegmentSpan(snapshot.active, snapshot.active_position, snapshot.end_offset))
    return [piece for piece in pieces if start is None or piece.header.number >= start.file_seq]
