"""Repairing a damaged log, on request only.

Repair rebuilds what can be derived: checkpoint, identity and indexes. Damaged or missing frames cannot
be restored. A *lost* frame takes their place, which holds only the number of lost messages. So every other message
keeps its offset, lost offsets are never used again, and readers skip them.

For each damaged segment:

1. Write a new file, sealed and durable.
2. Copy the old file to `torn/`, and rename the new one over it.

At the end `stream.json` and `checkpoint.json` are written. A crash in between leaves a log that is still damaged and
can be repaired again.
"""

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from icestream.model.errors import InvalidRequestError
from icestream.model.frames import encode, prepare, segment_seed
from icestream.model.messages import Encoding, Frame
from icestream.wal.files import Files, write_all
from icestream.wal.inspect import SegmentRange, read_checkpoint, read_header, read_stream, scan_ranges
from icestream.wal.records import Checkpoint, StreamInfo
from icestream.wal.recovery import TORN_DIRECTORY, keep_torn
from icestream.wal.segment import (
    INDEX_SUFFIX,
    SEGMENT_HEADER_BYTES,
    SegmentFooter,
    SegmentHeader,
    decode_header,
    encode_footer,
    encode_header,
    read_footer,
    segment_offsets,
    segment_path,
)

_NEW_SUFFIX = ".repaired"
MAX_LOST_MESSAGES = (1 << 32) - 1
"""The most messages that one frame's header can count."""


@dataclass
class RepairReport:
    directory: str
    actions: list[str] = field(default_factory=list)
    lost: list[tuple[int, int]] = field(default_factory=list)
    """The lost ranges of offsets, each from the first to before the second."""

    @property
    def lost_messages(self) -> int:
        return sum(end - first for first, end in self.lost)

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "lost_messages": self.lost_messages}


def repair_directory(files: Files, directory: Path) -> RepairReport:
    """Repair a log that no process has open. The report names the lost offsets."""
    return _Repair(files, directory).run()


class _Repair:
    def __init__(self, files: Files, directory: Path) -> None:
        self._files = files
        self._directory = directory
        self._report = RepairReport(str(directory))
        self._epoch = 1
        self._stream: StreamInfo | None = None

    def run(self) -> RepairReport:
        found = read_checkpoint(self._files, self._directory)
        checkpoint = found if isinstance(found, Checkpoint) else None
        self._identify()
        offsets = segment_offsets(self._files, self._directory)
        expected = start = checkpoint.start_offset if checkpoint is not None else (offsets[0] if offsets else 0)
        number = -1
        position = SEGMENT_HEADER_BYTES
        for index, offset in enumerate(offsets):
            if offset < start:
                continue
            following = offsets[index + 1] if index + 1 < len(offsets) else None
            if offset > expected:
                number = self._write_lost_segment(number + 1, expected, offset)
            number, expected, position = self._repair_segment(offset, number, following, checkpoint)
        if checkpoint is not None and expected < checkpoint.durable_end:
            number = self._write_lost_segment(
                max(number + 1, checkpoint.segment_number), expected, checkpoint.durable_end
            )
            expected, position = checkpoint.durable_end, SEGMENT_HEADER_BYTES
        elif checkpoint is not None and number < checkpoint.segment_number:
            self._report.actions.append(
                f"the newest segment was missing: what it held is not known, and offsets from {expected} on are given "
                "out again"
            )
        self._write_records(start, expected, number, position, checkpoint)
        return self._report

    def _identify(self) -> None:
        """Find stream id, salt and epoch, in `stream.json` or in the segments."""
        stream = read_stream(self._files, self._directory)
        self._stream = stream if isinstance(stream, StreamInfo) else None
        if self._stream is not None:
            self._epoch = self._stream.epoch
            self._stream_id, self._salt = self._stream.stream_id, self._stream.salt
            return
        for offset in segment_offsets(self._files, self._directory):
            header = read_header(self._files, segment_path(self._directory, offset))
            if header is not None:
                self._stream_id, self._salt = header.stream_id, header.salt
                self._epoch = max(self._epochs(), default=1)
                return
        raise InvalidRequestError(
            "neither stream.json nor any segment header can be read",
            operation="repair",
            place=str(self._directory),
            remedy="check that this is the directory of a log; if it is, nothing of it can be saved",
        )

    def _epochs(self) -> Iterator[int]:
        for offset in segment_offsets(self._files, self._directory):
            file = self._files.open(segment_path(self._directory, offset))
            try:
                for found in scan_ranges(file, file.size(), segment_seed(self._salt, offset)):
                    if found.complete is not None:
                        yield found.complete.frame.epoch
            finally:
                file.close()

    def _repair_segment(
        self, offset: int, number: int, following: int | None, checkpoint: Checkpoint | None
    ) -> tuple[int, int, int]:
        """Repair one segment. Return its number, its end offset and the position where its frames end."""
        path = segment_path(self._directory, offset)
        file = self._files.open(path)
        try:
            header, footer = decode_header(file.read(SEGMENT_HEADER_BYTES, 0)), read_footer(file)
            limit = footer.position if footer is not None else file.size()
            seed = segment_seed(header.salt if header is not None else self._salt, offset)
            end, position, has_gaps = _survey(scan_ranges(file, limit, seed), offset)
            durable_end = checkpoint.durable_end if checkpoint is not None else end
            target = following or max(end, footer.end_offset if footer is not None else durable_end)
            number = max(number + 1, header.number if header is not None else 0)
            sound = header is not None and header.stream_id == self._stream_id and header.base_offset == offset
            closed = footer is not None or following is None
            if sound and closed and not has_gaps and end == target:
                return number, end, position
            new = _NewSegment(self._files, path, self._new_header(number, offset), epoch=self._epoch)
            for found in scan_ranges(file, limit, seed):
                if found.complete is not None:
                    new.add(found.complete.frame)
            new.lose_up_to(target)
        finally:
            file.close()
        position = new.finish()
        self._report.lost += new.lost
        self._replace(path)
        self._report.actions.append(f"rewrote {path.name}, {len(new.lost)} gaps marked as lost")
        return number, target, position

    def _new_header(self, number: int, base_offset: int) -> SegmentHeader:
        return SegmentHeader(number, base_offset, 0, self._stream_id, self._salt)

    def _write_lost_segment(self, number: int, first: int, end: int) -> int:
        path = segment_path(self._directory, first)
        new = _NewSegment(self._files, path, self._new_header(number, first), epoch=self._epoch)
        new.lose_up_to(end)
        new.finish()
        self._report.lost += new.lost
        self._replace(path)
        self._report.actions.append(f"{path.name} was missing: offsets {first} to {end - 1} are marked as lost")
        return number

    def _replace(self, path: Path) -> None:
        files, torn = self._files, self._directory / TORN_DIRECTORY
        files.make_directory(torn)
        if files.exists(path):
            keep_torn(files, self._directory, f"{path.name}.damaged", files.read_bytes(path))
        files.replace(path.with_name(path.name + _NEW_SUFFIX), path)
        # The producers' state stays: it is that before the segment, and cannot be rebuilt once older ones are pruned.
        index = segment_path(self._directory, int(path.stem), INDEX_SUFFIX)
        if files.exists(index):
            files.remove(index)
        files.sync_directory(self._directory)

    def _write_records(self, start: int, end: int, number: int, position: int, found: Checkpoint | None) -> None:
        if self._stream is None:
            topic = "/".join(self._directory.parts[-2:])
            StreamInfo(topic, self._stream_id, self._epoch, self._salt).save(self._files, self._directory)
            self._report.actions.append(
                f"rebuilt stream.json, epoch {self._epoch}, from the segments and the directory's name"
            )
        offsets = segment_offsets(self._files, self._directory)
        base_offset = offsets[-1] if offsets else start
        checkpoint = Checkpoint(number, base_offset, position, end, start)
        if checkpoint != found:
            checkpoint.save(self._files, self._directory)
        if found is None:
            self._report.actions.append("rebuilt checkpoint.json from the segments")


def _survey(ranges: Iterable[SegmentRange], offset: int) -> tuple[int, int, bool]:
    """Return the offset and position where a segment's frames end, and whether frames are missing between them."""
    position, has_gaps = SEGMENT_HEADER_BYTES, False
    for found in ranges:
        if found.complete is not None and found.complete.frame.base_offset >= offset:
            has_gaps |= found.complete.frame.base_offset != offset or found.position != position
            offset, position = found.complete.frame.end_offset, found.end
    return offset, position, has_gaps


class _NewSegment:
    """A segment that replaces a damaged one. It is sealed when it is finished."""

    def __init__(self, files: Files, path: Path, header: SegmentHeader, *, epoch: int) -> None:
        temporary = path.with_name(path.name + _NEW_SUFFIX)
        if files.exists(temporary):
            files.remove(temporary)
        self._file = files.open(temporary, create=True)
        write_all(self._file, [encode_header(header)], 0)
        self._position = SEGMENT_HEADER_BYTES
        self._offset = header.base_offset
        self._seed = header.seed
        self._epoch = epoch
        self._times: list[int] = []
        self._frames = 0
        self.lost: list[tuple[int, int]] = []

    def add(self, frame: Frame) -> None:
        if frame.base_offset < self._offset:
            return
        self.lose_up_to(frame.base_offset)
        self._write(frame)
        self._times = [*self._times[:1], frame.publish_time_us]

    def lose_up_to(self, offset: int) -> None:
        if offset > self._offset:
            self.lost.append((self._offset, offset))
        time_us = self._times[-1] if self._times else 0
        while offset > self._offset:
            count = min(offset - self._offset, MAX_LOST_MESSAGES)
            self._write(Frame(self._offset, count, time_us, self._epoch, "", 0, Encoding.LOST, 0, b""))

    def _write(self, frame: Frame) -> None:
        payload = prepare(
            frame.body,
            message_count=frame.message_count,
            encoding=frame.encoding,
            schema_id=frame.schema_id,
            producer=frame.producer,
            sequence=frame.sequence,
        )
        buffers = encode(
            payload,
            frame.base_offset,
            frame.publish_time_us,
            epoch=frame.epoch,
            synced_position=SEGMENT_HEADER_BYTES,
            seed=self._seed + self._position,
        )
        write_all(self._file, buffers, self._position)
        self._position += payload.frame_bytes
        self._offset = frame.end_offset
        self._frames += 1

    def finish(self) -> int:
        first, last = (self._times[0], self._times[-1]) if self._times else (0, 0)
        footer = SegmentFooter(self._offset, self._position, first, last, self._frames)
        write_all(self._file, [encode_footer(footer)], self._position)
        self._file.datasync()
        self._file.close()
        return self._position
