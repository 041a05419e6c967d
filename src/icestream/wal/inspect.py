"""Inspecting a log's directory without changing it: every byte is read and checked, in any state of the log."""

from collections.abc import Generator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from icestream.model.errors import DamagedError, InvalidRequestError
from icestream.model.frames import ALIGNMENT, MAGIC, Complete, Scan, segment_seed
from icestream.wal.files import File, Files
from icestream.wal.records import CHECKPOINT_FILE, STREAM_FILE, Checkpoint, StreamInfo, load_checkpoint, load_stream
from icestream.wal.recovery import TORN_DIRECTORY
from icestream.wal.segment import (
    INDEX_SUFFIX,
    SEGMENT_FOOTER_BYTES,
    SEGMENT_HEADER_BYTES,
    SegmentHeader,
    decode_header,
    load_index,
    read_footer,
    segment_offsets,
    segment_path,
)

_SEARCH_BYTES = 1 << 20


@dataclass(frozen=True)
class LogProblem:
    file: str
    position: int
    reason: str
    first_offset: int | None = None
    end_offset: int | None = None


@dataclass
class SegmentReport:
    file: str
    base_offset: int
    end_offset: int
    number: int | None
    nbytes: int
    frames: int = 0
    messages: int = 0
    sealed: bool = False
    first_time_us: int | None = None
    last_time_us: int | None = None
    index: str = "none"
    reserved_bytes: int = 0


@dataclass
class LogReport:
    directory: str
    topic: str | None = None
    stream_id: str | None = None
    epoch: int | None = None
    start_offset: int | None = None
    end_offset: int | None = None
    checkpoint: dict[str, Any] | None = None
    segments: list[SegmentReport] = field(default_factory=list)
    problems: list[LogProblem] = field(default_factory=list)
    torn_tail_bytes: int = 0
    torn_copies: list[str] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


class SegmentRange(NamedTuple):
    """A range of bytes in a segment: a sound frame, or (`complete` is None) bytes that are not a frame."""

    position: int
    end: int
    complete: Complete | None
    reason: str = ""


def scan_ranges(file: File, limit: int, seed: int) -> Generator[SegmentRange]:
    """Yield a segment's frames up to `limit` and the damaged ranges between them. After damage, find the next frame."""
    position = SEGMENT_HEADER_BYTES
    while position < limit:
        scan = Scan(file, position, limit, seed=seed)
        for found, complete in scan:
            yield SegmentRange(found, scan.position, complete)
        if scan.stop is None:
            return
        position = find_frame(file, scan.position + ALIGNMENT, limit, seed)
        yield SegmentRange(
            scan.position, position, None, reason=str(getattr(scan.stop, "reason", "the file ends in a frame"))
        )


def segment_ranges(files: Files, directory: Path, base_offset: int) -> Generator[SegmentRange]:
    """Yield the ranges of one segment of a log."""
    path = segment_path(directory, base_offset)
    header = read_header(files, path)
    salt = header.salt if header is not None else find_salt(files, directory)
    file = files.open(path)
    try:
        footer = read_footer(file)
        limit = footer.position if footer is not None else file.size()
        yield from scan_ranges(file, limit, segment_seed(salt or 0, base_offset))
    finally:
        file.close()


def find_frame(file: File, position: int, limit: int, seed: int) -> int:
    """Return the position of the next sound frame, or `limit`."""
    while position < limit:
        data = file.read(min(_SEARCH_BYTES, limit - position), position)
        index = data.find(MAGIC)
        while index >= 0:
            candidate = position + index
            if candidate % ALIGNMENT == 0:
                for _, _complete in Scan(file, candidate, limit, seed=seed, one_read=True):
                    return candidate
            index = data.find(MAGIC, index + 1)
        position += max(len(data) - len(MAGIC) + 1, 1) if position + len(data) < limit else len(data) or limit
    return limit


def read_stream(files: Files, directory: Path) -> StreamInfo | LogProblem:
    try:
        return load_stream(files, directory)
    except FileNotFoundError:
        return LogProblem(str(directory / STREAM_FILE), 0, "missing")
    except DamagedError as error:
        return LogProblem(str(directory / STREAM_FILE), 0, error.message)


def read_checkpoint(files: Files, directory: Path) -> Checkpoint | LogProblem:
    try:
        return load_checkpoint(files, directory)
    except FileNotFoundError:
        return LogProblem(str(directory / CHECKPOINT_FILE), 0, "missing")
    except DamagedError as error:
        return LogProblem(str(directory / CHECKPOINT_FILE), 0, error.message)


def find_salt(files: Files, directory: Path) -> int | None:
    """Return the salt of a log from `stream.json`, or from any segment with a sound header."""
    stream = read_stream(files, directory)
    if isinstance(stream, StreamInfo):
        return stream.salt
    headers = (read_header(files, segment_path(directory, offset)) for offset in segment_offsets(files, directory))
    return next((header.salt for header in headers if header is not None), None)


def read_header(files: Files, path: Path) -> SegmentHeader | None:
    file = files.open(path)
    try:
        return decode_header(file.read(SEGMENT_HEADER_BYTES, 0))
    finally:
        file.close()


def inspect_directory(files: Files, directory: Path) -> LogReport:
    """Read and check a whole log. Change nothing, not even what recovery would change."""
    report = LogReport(str(directory))
    offsets = segment_offsets(files, directory)
    if not offsets and not files.exists(directory / STREAM_FILE):
        raise InvalidRequestError("the directory holds no log", operation="inspect", place=str(directory))
    stream = read_stream(files, directory)
    if isinstance(stream, LogProblem):
        report.problems.append(stream)
    else:
        report.topic, report.stream_id, report.epoch = stream.topic, str(stream.stream_id), stream.epoch
    found = read_checkpoint(files, directory)
    checkpoint = found if isinstance(found, Checkpoint) else None
    if isinstance(found, LogProblem):
        report.problems.append(found)
    else:
        report.checkpoint = asdict(found)
    expected = checkpoint.start_offset if checkpoint is not None else (offsets[0] if offsets else 0)
    # A crash may have left segments that were pruned: they are no longer part of the log.
    offsets = [offset for offset in offsets if offset >= expected]
    report.start_offset = expected
    for index, base_offset in enumerate(offsets):
        is_last = index == len(offsets) - 1
        if base_offset != expected:
            path = segment_path(directory, expected)
            report.problems.append(LogProblem(str(path), 0, "a segment is missing", expected, base_offset))
        segment = _inspect_segment(files, directory, base_offset, report, is_last=is_last, checkpoint=checkpoint)
        report.segments.append(segment)
        expected = segment.end_offset
    report.end_offset = expected
    if checkpoint is not None and expected < checkpoint.durable_end:
        report.problems.append(
            LogProblem(str(directory), 0, "the log ends too early", expected, checkpoint.durable_end)
        )
    elif checkpoint is not None and _last_number(report) < checkpoint.segment_number:
        path = segment_path(directory, checkpoint.base_offset)
        report.problems.append(LogProblem(str(path), 0, "the newest segment is missing", checkpoint.base_offset))
    report.torn_copies = files.names(directory / TORN_DIRECTORY)
    return report


def _last_number(report: LogReport) -> int:
    """Return the number of the newest segment with a sound header. A damaged header is a problem of its own."""
    numbers = [segment.number for segment in report.segments if segment.number is not None]
    return max(numbers, default=-1)


def _inspect_segment(
    files: Files, directory: Path, base_offset: int, report: LogReport, *, is_last: bool, checkpoint: Checkpoint | None
) -> SegmentReport:
    path = segment_path(directory, base_offset)
    file = files.open(path)
    try:
        size, footer, header = file.size(), read_footer(file), decode_header(file.read(SEGMENT_HEADER_BYTES, 0))
        segment = SegmentReport(path.name, base_offset, base_offset, header.number if header else None, size)
        if header is None:
            report.problems.append(LogProblem(str(path), 0, "the segment's header is damaged", base_offset))
        elif header.base_offset != base_offset or report.stream_id not in (None, str(header.stream_id)):
            reason = "the segment's header is not that of this log"
            report.problems.append(LogProblem(str(path), 0, reason, base_offset))
        if footer is None and not is_last:
            report.problems.append(
                LogProblem(str(path), size - SEGMENT_FOOTER_BYTES, "the footer is missing", base_offset)
            )
        segment.sealed = footer is not None
        limit = footer.position if footer is not None else size
        durable = limit if not is_last or footer is not None else _durable_position(checkpoint, segment)
        salt = header.salt if header is not None else find_salt(files, directory)
        seed = segment_seed(salt or 0, base_offset)
        _inspect_frames(file, segment, report, path, limit=limit, durable=durable, seed=seed)
        if footer is not None and footer.end_offset != segment.end_offset:
            report.problems.append(
                LogProblem(str(path), footer.position, "frames are missing", segment.end_offset, footer.end_offset)
            )
        if footer is not None:
            index = load_index(files, segment_path(directory, base_offset, INDEX_SUFFIX))
            segment.index = f"{len(index)} entries" if index is not None else "missing or damaged (rebuilt when needed)"
        return segment
    finally:
        file.close()


def _durable_position(checkpoint: Checkpoint | None, segment: SegmentReport) -> int:
    known = checkpoint is not None and checkpoint.segment_number == segment.number
    return checkpoint.position if checkpoint is not None and known else SEGMENT_HEADER_BYTES


def _inspect_frames(
    file: File, segment: SegmentReport, report: LogReport, path: Path, *, limit: int, durable: int, seed: int
) -> None:
    """Count the frames, and tell lost bytes from a torn tail and from reserved room."""
    damaged: list[SegmentRange] = []
    for found in scan_ranges(file, limit, seed):
        if found.complete is None:
            damaged.append(found)
            continue
        frame, synced = found.complete.frame, max(durable, found.complete.synced_position)
        if frame.base_offset != segment.end_offset or any(lost.position < synced for lost in damaged):
            reason = damaged[0].reason if damaged else "a frame does not follow the one before it"
            position = damaged[0].position if damaged else found.position
            report.problems.append(LogProblem(str(path), position, reason, segment.end_offset, frame.base_offset))
            damaged.clear()
        segment.frames += 1
        segment.messages += frame.message_count
        segment.end_offset = frame.end_offset
        segment.first_time_us = segment.first_time_us or frame.publish_time_us
        segment.last_time_us = frame.publish_time_us
    if damaged:
        first = damaged[0]
        content = _content_bytes(file, first.position, limit)
        if first.position < durable:
            report.problems.append(LogProblem(str(path), first.position, first.reason, segment.end_offset))
        elif content:
            report.torn_tail_bytes += content
        segment.reserved_bytes = limit - first.position - content


def _content_bytes(file: File, position: int, limit: int) -> int:
    """Return how many bytes from `position` on precede the trailing zeros."""
    content, start = 0, position
    while position < limit:
        data = file.read(min(_SEARCH_BYTES, limit - position), position)
        if found := len(data.rstrip(b"\0")):
            content = position + found - start
        position += len(data) or limit
    return content
